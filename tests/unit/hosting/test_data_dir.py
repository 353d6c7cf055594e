import errno
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.units import MIB
from millrace_server.channels.config import (
    AnyChannelConfig,
    EncryptionConfig,
    FileChannelConfig,
    MemoryChannelConfig,
    ReplicatedChannelConfig,
)
from millrace_server.errors import StartError
from millrace_server.hosting.data_dir import Catalog, CatalogError, locked_data_dir
from millrace_server.replication.engine_settings import EngineSettings

SMALL = MemoryChannelConfig(type="memory", capacity=5, keep_alive_seconds=0.5)
LARGE = MemoryChannelConfig(type="memory", capacity=1_000_000)
DURABLE = FileChannelConfig(type="file")
SEALED = FileChannelConfig(
    type="file",
    capacity=7,
    data_dirs=[Path("/disk-1"), Path("relative/disk-2")],
    checkpoint_dir=Path("/disk-3"),
    backup_checkpoint=False,
    checkpoint_interval_seconds=1,
    fsync="interval",
    compression="zstd",
    encryption=EncryptionConfig(keys={"2025": Path("/keys/a"), "2026": Path("/keys/b")}, active_key="2026"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "catalog.json"


def written(path: Path) -> dict[str, Any]:
    """The bytes of a catalog with two channels."""
    catalog = Catalog(path)
    catalog.put("small", SMALL)
    catalog.put("large", LARGE)
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def test_load_without_a_file_gives_nothing_and_writes_nothing(path: Path) -> None:
    """A server on which no channel was created has no catalog."""
    assert Catalog(path).load() == {}
    assert not path.exists()


def test_put_survives_a_restart(path: Path) -> None:
    """Another catalog on the same file has the channel with all its limits."""
    Catalog(path).put("small", SMALL)
    again = Catalog(path)
    again.put("large", LARGE)
    assert Catalog(path).load() == {"small": SMALL, "large": LARGE}


@pytest.mark.parametrize(
    ("min_free", "after"), [({}, 3 * MIB), ({"min_free_bytes": 5}, 5), ({"min_free_bytes": 40 * MIB}, 3 * MIB)]
)
def test_load_with_an_engine_gives_it_to_replicated_channels(path: Path, min_free: dict[str, Any], after: int) -> None:
    """Nodes may have moved since a channel was created, and its stream may be smaller now."""
    former, now = (
        EngineSettings(type="jetstream", servers=[f"nats://127.0.0.1:{port}"], stream_bytes_max=size * MIB)
        for port, size in ((1, 60), (2, 30))
    )
    shared = ReplicatedChannelConfig(type="replicated", engine=former, **min_free)
    Catalog(path).put("shared", shared)
    Catalog(path).put("small", SMALL)
    moved = Catalog(path, now).load()
    assert moved["small"] == SMALL
    assert moved["shared"] == shared.model_copy(update={"engine": now, "min_free_bytes": after})
    assert Catalog(path).load()["shared"] == shared


@pytest.mark.parametrize("change", [Catalog.put, Catalog.replace])
def test_change_of_a_known_name_replaces_its_limits(
    path: Path, change: Callable[[Catalog, str, AnyChannelConfig], None]
) -> None:
    """New limits survive a restart."""
    catalog = Catalog(path)
    catalog.put("a", SMALL)
    change(catalog, "a", LARGE)
    assert catalog.load() == Catalog(path).load() == {"a": LARGE}


def test_put_of_file_channels_survives_a_restart(path: Path) -> None:
    """Directories, keys and absent settings are restored."""
    catalog = Catalog(path)
    catalog.put("durable", DURABLE)
    catalog.put("sealed", SEALED)
    catalog.put("small", SMALL)
    assert Catalog(path).load() == {"durable": DURABLE, "sealed": SEALED, "small": SMALL}


def test_load_of_what_an_older_release_wrote_knows_its_channels(path: Path) -> None:
    """These bytes are from a release with memory channels only."""
    path.write_text("""
        {"format": "millrace catalog", "version": 1, "crc32": "3ef3a0f0", "channels": {"small": {
            "type": "memory", "capacity": 5, "transaction_capacity": 5, "byte_capacity": 1000,
            "byte_capacity_buffer_percentage": 20, "keep_alive_seconds": 0.5, "lease_seconds": 30.0,
            "open_transactions_max": 5000
        }}}
    """)
    assert Catalog(path).load() == {"small": SMALL.model_copy(update={"byte_capacity": 1000})}


def test_replace_of_an_unknown_name_writes_nothing(path: Path) -> None:
    """New limits of a configured channel do not add it to the catalog."""
    Catalog(path).replace("none", SMALL)
    assert not path.exists()


def test_remove_survives_a_restart(path: Path) -> None:
    """A deleted channel does not come back."""
    written(path)
    Catalog(path).remove("small")
    assert Catalog(path).load() == {"large": LARGE}


def test_remove_of_an_unknown_name_writes_nothing(path: Path) -> None:
    """Configured channels are not in the catalog, so deleting one does not change it."""
    Catalog(path).remove("none")
    assert not path.exists()


def test_load_gives_a_copy(path: Path) -> None:
    """Changes of the loaded value do not change the catalog."""
    catalog = Catalog(path)
    catalog.load()["x"] = SMALL
    assert catalog.load() == {}


@pytest.mark.parametrize("failing_call", ["open", "fsync", "replace"])
def test_put_when_the_disk_fails_changes_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, failing_call: str
) -> None:
    """A change that could not be written has no effect, neither on the disk nor in memory."""
    catalog = Catalog(path)
    catalog.put("small", SMALL)

    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(Path if failing_call == "replace" else os, failing_call, fail)
        with pytest.raises(OSError, match="No space left"):
            catalog.put("large", LARGE)
        with pytest.raises(OSError, match="No space left"):
            catalog.remove("small")
    assert catalog.load() == Catalog(path).load() == {"small": SMALL}
    catalog.put("large", LARGE)
    assert Catalog(path).load() == {"small": SMALL, "large": LARGE}


def test_put_from_many_threads_loses_nothing(path: Path) -> None:
    """Changes from several threads are all kept."""
    catalog = Catalog(path)
    names = [f"channel-{number}" for number in range(16)]
    threads = [threading.Thread(target=catalog.put, args=(name, SMALL)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(Catalog(path).load()) == sorted(names)


def test_load_when_any_byte_is_cut_off_refuses(path: Path) -> None:
    """No truncated catalog is accepted, and the file stays unchanged."""
    written(path)
    whole = path.read_bytes().rstrip()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CatalogError, match="is damaged"):
            Catalog(path).load()
        assert path.read_bytes() == whole[:length]


def test_load_when_any_byte_is_changed_never_gives_other_channels(path: Path) -> None:
    """A flipped bit is detected, unless it is in white space."""
    written(path)
    whole = path.read_bytes()
    for index in range(len(whole)):
        damaged = bytearray(whole)
        damaged[index] ^= 1
        path.write_bytes(damaged)
        try:
            assert Catalog(path).load() == {"small": SMALL, "large": LARGE}
        except CatalogError:
            continue


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_load_of_another_version_refuses_without_judging_the_rest(path: Path, version: object) -> None:
    """A newer catalog is not reported as damaged: it needs a newer server."""
    path.write_text(json.dumps({"format": "millrace catalog", "version": version, "entries": []}))
    with pytest.raises(CatalogError, match="use the version that wrote it"):
        Catalog(path).load()


@pytest.mark.parametrize("content", ["[]", "3", "null", "{}", '{"format": "x"}', "[" * 100_000, "\0", "é"])
def test_load_of_something_else_refuses(path: Path, content: str) -> None:
    """A file of another kind is not accepted."""
    path.write_text(content, encoding="latin-1")
    with pytest.raises(CatalogError, match="is damaged"):
        Catalog(path).load()


def test_load_of_limits_that_are_not_allowed_says_which(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalog with a valid checksum may still have limits that this server does not support."""
    monkeypatch.setattr("millrace_server.hosting.data_dir.checksum_of", lambda _channels: "")
    content = written(path)
    content["channels"]["small"]["type"] = "jdbc"
    path.write_text(json.dumps(content))
    with pytest.raises(
        CatalogError, match=r'channels\.small\.type: is "jdbc"; it must be "memory" or "file"'
    ) as refusal:
        Catalog(path).load()
    assert str(refusal.value).startswith(f"cannot use the catalog {path}: "), "to move it away is no advice"


@pytest.mark.parametrize("change", [Catalog.put, Catalog.replace, lambda catalog, name, _config: catalog.remove(name)])
def test_change_when_damaged_never_overwrites(
    path: Path, change: Callable[[Catalog, str, AnyChannelConfig], None]
) -> None:
    """A damaged catalog is kept as evidence."""
    path.write_bytes(b"damaged")
    catalog = Catalog(path)
    with pytest.raises(CatalogError):
        change(catalog, "a", SMALL)
    assert path.read_bytes() == b"damaged"


def test_load_when_unreadable_says_why(path: Path) -> None:
    """An unreadable catalog is reported with the reason."""
    path.mkdir()
    with pytest.raises(CatalogError, match=r"cannot read the catalog .*: Is a directory"):
        Catalog(path).load()


def test_locked_data_dir_when_missing_makes_it(tmp_path: Path) -> None:
    """A first start needs no preparation."""
    with locked_data_dir(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()


def test_locked_data_dir_when_in_use_refuses_the_second(tmp_path: Path) -> None:
    """Two servers never share a directory; the sentence names the first one's process."""
    with (
        locked_data_dir(tmp_path),
        pytest.raises(StartError, match=rf"another server \(process {os.getpid()}\) uses it"),
        locked_data_dir(tmp_path),
    ):
        pytest.fail("the lock was given twice")


def test_locked_data_dir_when_the_first_has_ended_is_free_again(tmp_path: Path) -> None:
    """The files of an ended server do not block the next one."""
    with locked_data_dir(tmp_path):
        pass
    (tmp_path / "lock").write_bytes(b"\xff\xfe no process id")
    with locked_data_dir(tmp_path):
        assert (tmp_path / "lock").read_text().split() == [str(os.getpid())]


@pytest.mark.parametrize("path", ["file", "file/below"])
def test_locked_data_dir_when_a_file_is_in_the_way_says_so(tmp_path: Path, path: str) -> None:
    """The sentence names the setting."""
    (tmp_path / "file").touch()
    with (
        pytest.raises(StartError, match=r"cannot use .*file.* \(server\.data_dir\): "),
        locked_data_dir(tmp_path / path),
    ):
        pytest.fail("a file was taken for a directory")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_locked_data_dir_when_read_only_says_so(tmp_path: Path) -> None:
    """A directory that cannot be written to is reported at the start, not at the first write."""
    tmp_path.chmod(0o500)
    with pytest.raises(StartError, match="Permission denied"), locked_data_dir(tmp_path):
        pytest.fail("a read-only directory was taken")
