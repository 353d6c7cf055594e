from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from millrace_server.channels.config import (
    BYTES_MAX,
    CAPACITY_MAX,
    SECONDS_MAX,
    SEGMENT_BYTES_MAX,
    EncryptionConfig,
    FileChannelConfig,
    MemoryChannelConfig,
    SpillableChannelConfig,
)

MIB = 1 << 20


def test_config_without_limits_has_the_defaults() -> None:
    """The defaults are Flume's, with a share of the machine's memory."""
    config = MemoryChannelConfig(type="memory")
    assert (config.capacity, config.transaction_capacity, config.byte_capacity_buffer_percentage) == (100, 100, 20)
    assert (config.keep_alive_seconds, config.lease_seconds, config.open_transactions_max) == (3, 30, 5000)
    assert 1 << 20 < config.byte_capacity < BYTES_MAX


def test_config_of_a_file_channel_has_the_defaults() -> None:
    """It has space for a backlog, syncs each commit, lies in the data directory, and is not compressed or encrypted."""
    config = FileChannelConfig(type="file")
    assert (config.capacity, config.transaction_capacity, config.byte_capacity) == (1_000_000, 10_000, 8192 * MIB)
    assert (config.keep_alive_seconds, config.lease_seconds, config.open_transactions_max) == (3, 30, 5000)
    assert (config.data_dirs, config.checkpoint_dir, config.encryption) == ([], None, None)
    assert (config.backup_checkpoint, config.checkpoint_interval_seconds) == (True, 30)
    assert (config.segment_bytes_max, config.min_free_bytes) == (256 * MIB, 500 * MIB)
    assert (config.fsync, config.fsync_interval_seconds, config.compression) == ("commit", 1, "none")


def test_config_of_a_spillable_channel_has_the_defaults() -> None:
    """They are a file channel's for the whole and the log; memory has Flume's events and a share of the machine's."""
    config = SpillableChannelConfig(type="spillable")
    same = FileChannelConfig(type="file").model_dump(exclude={"type"})
    assert config.model_dump(exclude={"type", "memory_capacity", "memory_byte_capacity"}) == same
    assert config.memory_capacity == 10_000
    assert config.memory_byte_capacity == MemoryChannelConfig(type="memory").byte_capacity
    small = SpillableChannelConfig(type="spillable", memory_byte_capacity=100, byte_capacity_buffer_percentage=30)
    assert small.memory_body_bytes_max == 70


def test_config_of_a_small_spillable_channel_reduces_both_defaults() -> None:
    """Neither a transaction nor the memory exceeds the channel; explicit values are not reduced, but refused."""
    config = SpillableChannelConfig(type="spillable", capacity=7)
    assert (config.transaction_capacity, config.memory_capacity) == (7, 7)
    config = SpillableChannelConfig(type="spillable", capacity=7, memory_capacity=6, transaction_capacity=5)
    assert (config.transaction_capacity, config.memory_capacity) == (5, 6)
    with pytest.raises(ValidationError, match="is 8; it must not be above capacity, 7"):
        SpillableChannelConfig(type="spillable", capacity=7, memory_capacity=8)


@pytest.mark.parametrize(
    ("capacity", "transaction_capacity"), [(1, 1), (9_999, 9_999), (10_000, 10_000), (1 << 20, 10_000)]
)
def test_config_of_a_small_file_channel_reduces_its_own_default(capacity: int, transaction_capacity: int) -> None:
    """The reduced default is that of the type."""
    assert FileChannelConfig(type="file", capacity=capacity).transaction_capacity == transaction_capacity


@pytest.mark.parametrize(
    ("limits", "transaction_capacity"),
    [
        ({"capacity": 1}, 1),
        ({"capacity": 99}, 99),
        ({"capacity": 100}, 100),
        ({"capacity": 5000}, 100),
        ({"capacity": 7, "transaction_capacity": 6}, 6),
        ({"capacity": 7, "transaction_capacity": 7}, 7),
    ],
)
def test_config_of_a_small_capacity_reduces_the_transactions_default(
    limits: dict[str, Any], transaction_capacity: int
) -> None:
    """A transaction never holds more than the channel."""
    assert MemoryChannelConfig(type="memory", **limits).transaction_capacity == transaction_capacity


@pytest.mark.parametrize(
    ("byte_capacity", "percentage", "body_bytes_max"),
    [(100, 20, 80), (100, 0, 100), (100, 99, 1), (1, 20, 0), (99, 50, 49), (BYTES_MAX, 0, BYTES_MAX)],
)
def test_body_bytes_max_of_a_config_leaves_space_for_headers(
    byte_capacity: int, percentage: int, body_bytes_max: int
) -> None:
    """The limit is exact to the byte."""
    config = MemoryChannelConfig(type="memory", byte_capacity=byte_capacity, byte_capacity_buffer_percentage=percentage)
    assert config.body_bytes_max == body_bytes_max


@pytest.mark.parametrize(
    "limits",
    [
        {"type": "file"},
        {"type": "paper"},
        {"capacity": 0},
        {"capacity": -1},
        {"capacity": CAPACITY_MAX + 1},
        {"transaction_capacity": 0},
        {"transaction_capacity": 101},
        {"capacity": 10, "transaction_capacity": 11},
        {"byte_capacity": 0},
        {"byte_capacity": BYTES_MAX + 1},
        {"byte_capacity_buffer_percentage": -1},
        {"byte_capacity_buffer_percentage": 100},
        {"keep_alive_seconds": -0.1},
        {"keep_alive_seconds": SECONDS_MAX + 1},
        {"keep_alive_seconds": float("nan")},
        {"lease_seconds": 0},
        {"lease_seconds": float("inf")},
        {"open_transactions_max": 0},
        {"unknown": 1},
        {"capacity": "many"},
    ],
)
def test_config_out_of_its_limits_is_refused(limits: dict[str, Any]) -> None:
    """Zero, excessive and unknown values are refused."""
    with pytest.raises(ValidationError):
        MemoryChannelConfig(**{"type": "memory", **limits})


def test_config_of_something_else_is_refused() -> None:
    """A value that is not a table is refused as such."""
    with pytest.raises(ValidationError):
        MemoryChannelConfig.model_validate("memory")


@pytest.mark.parametrize(
    "limits",
    [
        {"type": "memory"},
        {"capacity": 9_999, "transaction_capacity": 10_000},
        {"data_dirs": [""]},
        {"data_dirs": ["."]},
        {"data_dirs": ["a\0b"]},
        {"data_dirs": ["a", "b", "a"]},
        {"data_dirs": ["a", "b/../a"]},
        {"data_dirs": ["a", Path("a").absolute()]},
        {"data_dirs": "a"},
        {"data_dirs": [3]},
        {"checkpoint_dir": ""},
        {"checkpoint_interval_seconds": 0.09},
        {"checkpoint_interval_seconds": SECONDS_MAX + 1},
        {"segment_bytes_max": 65_535},
        {"segment_bytes_max": SEGMENT_BYTES_MAX + 1},
        {"min_free_bytes": -1},
        {"min_free_bytes": BYTES_MAX + 1},
        {"fsync": "never"},
        {"fsync_interval_seconds": 0.009},
        {"fsync_interval_seconds": float("inf")},
        {"compression": "gzip"},
        {"encryption": {"active_key": "a"}},
        {"encryption": {"active_key": "b", "keys": {"a": "k"}}},
        {"encryption": {"active_key": "a", "keys": {"a": ""}}},
        {"encryption": {"active_key": "ä", "keys": {"ä": "k"}}},
        {"encryption": {"active_key": "x" * 65, "keys": {"x" * 65: "k"}}},
        {"encryption": {"active_key": "a\n", "keys": {"a\n": "k"}}},
    ],
)
def test_config_of_a_file_channel_out_of_its_limits_is_refused(limits: dict[str, Any]) -> None:
    """Limits, duplicate disks and missing keys are checked."""
    with pytest.raises(ValidationError):
        FileChannelConfig(**{"type": "file", **limits})


@pytest.mark.parametrize("key_id", ["a", "2026", "A.b_c-9", "x" * 64])
def test_encryption_with_a_good_key_id_is_taken(key_id: str) -> None:
    """Ids of keys are letters, digits, dots, hyphens and underscores."""
    assert EncryptionConfig(keys={key_id: Path("/k")}, active_key=key_id).active_key == key_id


def test_data_dirs_that_only_begin_alike_are_taken() -> None:
    """A directory inside another one is a different directory."""
    paths = [Path("/disk"), Path("/disk/more"), Path("/disk-2")]
    assert FileChannelConfig(type="file", data_dirs=paths).data_dirs == paths
