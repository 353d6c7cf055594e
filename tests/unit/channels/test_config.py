from typing import Any

import pytest
from pydantic import ValidationError

from millrace_server.channels.config import BYTES_MAX, CAPACITY_MAX, SECONDS_MAX, ChannelConfig


def test_config_without_limits_has_the_defaults() -> None:
    """The ancestors' defaults, and a share of the machine's memory."""
    config = ChannelConfig(type="memory")
    assert (config.capacity, config.transaction_capacity, config.byte_capacity_buffer_percentage) == (100, 100, 20)
    assert (config.keep_alive_seconds, config.lease_seconds, config.open_transactions_max) == (3, 30, 5000)
    assert 1 << 20 < config.byte_capacity < BYTES_MAX


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
def test_config_of_a_small_capacity_bows_the_transactions_default(
    limits: dict[str, Any], transaction_capacity: int
) -> None:
    """A transaction never holds more than the channel."""
    assert ChannelConfig(type="memory", **limits).transaction_capacity == transaction_capacity


@pytest.mark.parametrize(
    ("byte_capacity", "percentage", "body_bytes_max"),
    [(100, 20, 80), (100, 0, 100), (100, 99, 1), (1, 20, 0), (99, 50, 49), (BYTES_MAX, 0, BYTES_MAX)],
)
def test_body_bytes_max_of_a_config_leaves_room_for_headers(
    byte_capacity: int, percentage: int, body_bytes_max: int
) -> None:
    """Exact to the byte, without slots."""
    config = ChannelConfig(type="memory", byte_capacity=byte_capacity, byte_capacity_buffer_percentage=percentage)
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
    """Neither nothing, nor too much, nor what is not known."""
    with pytest.raises(ValidationError):
        ChannelConfig(**{"type": "memory", **limits})


def test_config_of_something_else_is_refused() -> None:
    """What is no table of limits is refused as such."""
    with pytest.raises(ValidationError):
        ChannelConfig.model_validate("memory")
