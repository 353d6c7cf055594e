import asyncio
import errno
import gc
import shutil
import weakref
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_file import DirectoryError
from millrace_server.channels.config import EncryptionConfig, SpillableChannelConfig
from millrace_server.channels.directories import DirectoryInUseError, open_directories
from millrace_server.channels.file_store import FileStores
from millrace_server.channels.log_store import LogStore
from millrace_server.channels.recovery import ReplayProgress
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.errors import DiskFullError
from millrace_server.wal.disk import OsDisk, OsFile
from millrace_server.wal.payload_codec import KeyMissingError
from millrace_server.wal.records import LogFailedError
from millrace_server.wal.segments import LogCorruptError
from tests.channel_events import RESPONSE_BYTES_MAX, append, begin_with_puts, queued
from tests.file_channels import file_limits
from tests.waiting import until

HAS_THREADS = True


class RefusingDisk(OsDisk):
    """Refuses to create files while `error_number` is set, and has `free` bytes, if set, whatever is written."""

    def __init__(self) -> None:
        self.error_number = 0
        self.free: int | None = None

    def free_bytes(self, directory: Path) -> int:
        return super().free_bytes(directory) if self.free is None else self.free

    def create(self, path: Path) -> OsFile:
        if self.error_number:
            raise OSError(self.error_number, "refused")
        return super().create(path)


class Stores:
    """Opens channels, and closes them at the end of the test."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.disk = RefusingDisk()
        self.stores = FileStores(base, self.disk)
        self.changes: list[str] = []
        self.progress = ReplayProgress()
        self._opened: list[LogStore] = []

    async def open(self, name: str = "orders", **limits: Any) -> tuple[LogStore, Channel]:
        config = file_limits(**limits)
        self.progress = ReplayProgress()
        store = await self.stores.open(name, config, self.progress, self.changes.append)
        self._opened.append(store)
        return store, Channel(name, config, store.storage, TxnDirectory(10), RESPONSE_BYTES_MAX)

    async def close(self, store: LogStore) -> None:
        self._opened.remove(store)
        await store.close()

    async def close_all(self) -> None:
        for store in list(self._opened):
            await self.close(store)

    def forget(self, store: LogStore) -> None:
        """Excludes a removed channel from the closing."""
        self._opened.remove(store)


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[Stores]:
    stores = Stores(tmp_path / "channels")
    yield stores
    await stores.close_all()


def names(directory: Path) -> Sequence[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_open_of_a_new_channel_makes_its_files(stores: Stores) -> None:
    """The files are in a directory of the channel's name, which is writable at once; the log begins with a commit."""
    store, channel = await stores.open()
    assert names(stores.base / "orders") == ["channel.json", "lock"]
    assert (await append(channel, b"a")).first_sequence == 1
    assert names(stores.base / "orders") == ["channel.json", "lock", "segment-000000000001.log"]
    assert (store.segment_count, store.fault) == (1, None)
    assert store.log_bytes > 64
    assert store.storage.channel_id == channel.channel_id
    assert stores.progress.fraction == 0


async def test_append_preallocates_nothing_of_what_puts_leave_free(stores: Stores) -> None:
    """Many logs that do would take the space that takes and checkpoints need."""
    stores.disk.free = 1_900_000
    store, channel = await stores.open(min_free_bytes=1_000_000)
    for body in (b"a", b"b"):
        await append(channel, body)
    assert store.log_bytes < 200_000
    stores.disk.free += 100_000
    await append(channel, b"c")
    assert store.log_bytes > 1_000_000


async def test_append_leaves_min_free_bytes_whatever_other_channels_of_the_disk_append(stores: Stores) -> None:
    """The channels of one disk share what is free above it, also between two measurements."""
    stores.disk.free = 1_000_000
    channels = [(await stores.open(f"c{number}", min_free_bytes=400_000))[1] for number in range(3)]
    refused = 0
    for channel in channels:
        try:
            await append(channel, bytes(250_000))
        except DiskFullError:
            refused += 1
    assert refused == 1


@pytest.mark.parametrize("removes", [True, False])
async def test_end_of_a_channel_leaves_nothing_of_it_in_the_shared_cache(stores: Stores, *, removes: bool) -> None:
    """The cache may keep its last events for long, but not its queue, producers and transactions."""
    store, channel = await stores.open()
    await append(channel, b"a")
    contents = weakref.ref(store.storage.contents)
    if removes:
        stores.forget(store)
        await store.mark_deleted()
        await store.remove()
    else:
        await stores.close(store)
    del store, channel

    def is_gone() -> bool:
        gc.collect()
        return contents() is None

    # A measurement of the disk may still be under way.
    await until(is_gone)


async def test_open_after_a_close_reads_almost_nothing(stores: Stores) -> None:
    """The last checkpoint is complete; the channel is the same, and later epochs exceed all former ones."""
    store, channel = await stores.open()
    await append(channel, b"a", b"b", stamp=Stamp("p", 1, 2))
    claim = await channel.claim("r", None, takeover=False)
    await channel.claims.release("r", None)
    await channel.transactions.commit([begin_with_puts(channel, b"c")], None)
    await stores.close(store)
    assert "checkpoint" in names(stores.base / "orders")
    again, found = await stores.open()
    assert again.storage.channel_id == store.storage.channel_id
    assert queued(found) == [b"a", b"b", b"c"]
    assert (await append(found, b"b", stamp=Stamp("p", 2, 2))).is_deduplicated
    assert (await found.claim("r", None, takeover=False)).epoch == claim.epoch + 1 > store.storage.epochs_from
    found.claims.forget()


async def test_replay_bytes_are_what_the_next_open_reads(stores: Stores) -> None:
    """With segments and without, and hardly anything after a checkpoint."""
    store, channel = await stores.open(segment_bytes_max=4_096, checkpoint_interval_seconds=3_600)
    assert store.replay_bytes == 0
    for number in range(20):
        await append(channel, bytes(400), b"%d" % number)
    # A checkpoint during the copy would be in it, unknown to the store.
    await store._checkpointing.stop()
    for number in range(20, 40):
        await append(channel, bytes(400), b"%d" % number)
    assert store.segment_count > 1
    copied = Path(shutil.copytree(stores.base, stores.base.with_name("copied")))
    promised = store.replay_bytes
    found = FileStores(copied, OsDisk())
    progress = ReplayProgress()
    again = await found.open("orders", file_limits(), progress, stores.changes.append)
    assert 0.9 * promised <= progress.bytes_done <= promised
    await again.close()
    await stores.close(store)
    store, _ = await stores.open()
    assert store.replay_bytes < 100


async def test_open_reports_how_far_it_is(stores: Stores) -> None:
    """Reserved space after the log's end is included in the whole, so the progress need not reach it."""
    store, channel = await stores.open(segment_bytes_max=1000)
    for _ in range(5):
        await append(channel, b"x" * 1000)
    await stores.close(store)
    for path in (stores.base / "orders").glob("checkpoint*"):
        path.unlink()
    again, found = await stores.open()
    assert 5000 < stores.progress.bytes_done <= stores.progress.bytes_total
    assert 0 < stores.progress.fraction <= 1
    assert len(queued(found)) == 5
    await stores.close(again)


def test_progress_beyond_the_whole_is_the_whole() -> None:
    """The log may have grown since its bytes were counted."""
    assert ReplayProgress().fraction == 0
    assert ReplayProgress(3, 4).fraction == 0.75
    assert ReplayProgress(5, 4).fraction == 1


async def test_open_of_a_channel_that_is_open_is_refused(stores: Stores) -> None:
    """Two openings never share a directory."""
    await stores.open()
    with pytest.raises(DirectoryInUseError):
        await stores.open()


async def test_open_on_several_disks_spreads_the_segments(stores: Stores, tmp_path: Path) -> None:
    """They are below a directory with the channel's name on each; checkpoints are in the configured place."""
    dirs = [tmp_path / "left", tmp_path / "right"]
    limits: dict[str, Any] = {"data_dirs": dirs, "checkpoint_dir": tmp_path / "checkpoints", "segment_bytes_max": 1000}
    store, channel = await stores.open(**limits)
    for _ in range(4):
        await append(channel, b"x" * 1000)
    await stores.close(store)
    segments = [sum(name.startswith("segment") for name in names(path / "orders")) for path in dirs]
    # The last checkpoint may have begun another segment.
    assert sum(segments) >= 4
    assert abs(segments[0] - segments[1]) <= 1
    assert "checkpoint" in names(tmp_path / "checkpoints" / "orders")
    assert not stores.base.exists()
    _, found = await stores.open(**limits)
    assert len(queued(found)) == 4


async def test_open_of_a_channel_that_was_never_used_finds_it_as_it_was(stores: Stores) -> None:
    """It is the same channel, though it has no log."""
    store, _ = await stores.open()
    await stores.close(store)
    assert names(stores.base / "orders") == ["channel.json", "lock"]
    again, channel = await stores.open()
    assert again.storage.channel_id == store.storage.channel_id
    assert (await append(channel, b"a")).first_sequence == 1


async def test_append_that_finds_no_space_for_a_log_is_refused_until_there_is(stores: Stores) -> None:
    """The first commits that were refused leave nothing behind, and the next one begins the log."""
    _, channel = await stores.open()
    stores.disk.error_number = errno.ENOSPC
    for _ in range(2):
        with pytest.raises(DiskFullError):
            await append(channel, b"a")
    txn = begin_with_puts(channel, b"b")
    with pytest.raises(DiskFullError):
        await channel.transactions.commit([txn], None)
    stores.disk.error_number = 0
    assert (await channel.transactions.commit([txn], None)).first_sequence == 1
    assert queued(channel) == [b"b"]


async def test_open_of_a_damaged_log_leaves_the_directory_free(stores: Stores) -> None:
    """Each attempt reports the damage, and none keeps the directory locked."""
    store, channel = await stores.open()
    await append(channel, b"x" * 1000)
    await append(channel, b"y")
    await stores.close(store)
    for path in (stores.base / "orders").glob("checkpoint*"):
        path.unlink()
    segment = stores.base / "orders" / "segment-000000000001.log"
    content = bytearray(segment.read_bytes())
    content[content.index(b"x" * 1000)] ^= 1
    segment.write_bytes(content)
    for _ in range(2):
        with pytest.raises(LogCorruptError):
            await stores.open()


async def test_open_with_encryption_needs_the_keys(stores: Stores, tmp_path: Path) -> None:
    """Stored bodies are neither readable on the disk nor without the key, with and without compression."""
    key = tmp_path / "key"
    key.write_bytes(bytes(range(32)))
    key.chmod(0o600)
    encryption = EncryptionConfig(keys={"one": key}, active_key="one")
    for compression in ("none", "zstd"):
        store, channel = await stores.open(compression, encryption=encryption, compression=compression)
        await append(channel, b"secret" * 100)
        await stores.close(store)
        directory = stores.base / compression
        assert not any(b"secret" in path.read_bytes() for path in directory.iterdir())
        _, found = await stores.open(compression, encryption=encryption, compression=compression)
        assert queued(found) == [b"secret" * 100]
    await stores.close_all()
    with pytest.raises(KeyMissingError):
        await stores.open("none")


async def test_close_of_a_log_that_has_failed_writes_no_checkpoint(stores: Stores, tmp_path: Path) -> None:
    """The content of the log is unknown until the next opening."""
    store, channel = await stores.open()
    await append(channel, b"a")
    store._journal._fail(LogFailedError("for the test"))
    assert stores.changes == ["for the test"]
    await stores.close(store)
    assert "checkpoint" not in names(stores.base / "orders")
    _, found = await stores.open()
    assert queued(found) == [b"a"]


async def test_remove_of_a_marked_channel_leaves_nothing(stores: Stores) -> None:
    """A channel that is created again is another one."""
    store, channel = await stores.open()
    await append(channel, b"a")
    await store.mark_deleted()
    channel.delete()
    await store.remove()
    stores.forget(store)
    assert names(stores.base) == []
    again, found = await stores.open()
    assert again.storage.channel_id != store.storage.channel_id
    assert (await append(found, b"b")).first_sequence == 1


async def test_remove_that_fails_is_finished_when_the_channel_is_created_again(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark stays, and no lock is held."""
    store, channel = await stores.open()
    await append(channel, b"a")
    await store.mark_deleted()
    channel.delete()
    unlink = Path.unlink

    def refuse(path: Path, *, missing_ok: bool = False) -> None:
        if path.suffix == ".log":
            raise OSError(errno.EIO, "refused")
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        with pytest.raises(OSError, match="refused"):
            await store.remove()
    stores.forget(store)
    _, found = await stores.open()
    assert queued(found) == []


async def test_closed_channel_is_marked_and_removed_nevertheless(stores: Stores) -> None:
    """A channel that cannot be opened may be deleted."""
    store, channel = await stores.open()
    await append(channel, b"a")
    await stores.close(store)
    closed = stores.stores.closed("orders", file_limits())
    await closed.mark_deleted()
    await closed.remove()
    assert names(stores.base) == []


async def test_finish_deletions_removes_what_a_crash_has_left(stores: Stores) -> None:
    """Channels that will be opened complete their deletion themselves, and unmarked channels stay."""
    for name in ("gone", "kept", "recreated"):
        store, channel = await stores.open(name)
        await append(channel, b"a")
        if name != "kept":
            await store.mark_deleted()
        await stores.close(store)
    (stores.base / "strange").mkdir()
    (stores.base / "strange" / "channel.json").write_text("{")
    (stores.base / "file").write_text("")
    stores.stores.finish_deletions({"recreated"})
    assert names(stores.base) == ["file", "kept", "recreated", "strange"]
    _, found = await stores.open("kept")
    assert queued(found) == [b"a"]
    _, found = await stores.open("recreated")
    assert queued(found) == []


async def test_finish_deletions_says_nothing_of_what_a_repair_keeps(stores: Stores) -> None:
    """The copy of a damaged file is no channel that cannot be used."""
    for name in ("orders.before-repair-20260101-000000", "strange"):
        (stores.base / name).mkdir(parents=True)
        (stores.base / name / "channel.json").write_text("{")
    with capture_logs() as logged:
        stores.stores.finish_deletions(())
    assert [entry["path"] for entry in logged] == [str(stores.base / "strange")]


def test_finish_deletions_without_any_channels_does_nothing(tmp_path: Path) -> None:
    """A server without file channels has no directory for them."""
    FileStores(tmp_path / "none", OsDisk()).finish_deletions(())
    assert not (tmp_path / "none").exists()


async def test_finish_deletions_passes_over_what_another_process_uses(stores: Stores) -> None:
    """The other process completes the deletion."""
    directories = open_directories("orders", [stores.base / "orders"], stores.base / "orders")
    directories.mark_deleted()
    stores.stores.finish_deletions(())
    assert "channel.json" in names(stores.base / "orders")
    directories.close()
    stores.stores.finish_deletions(())
    assert names(stores.base) == []


async def test_open_that_is_cancelled_while_a_log_is_made_holds_nothing(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The directory can be used by the next opening."""
    config = SpillableChannelConfig(type="spillable", min_free_bytes=0)

    async def wait_for_ever(_journal: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    reached = asyncio.Event()
    with monkeypatch.context() as patch:
        patch.setattr("millrace_server.channels.journal.Journal.snapshot", wait_for_ever)
        opening = asyncio.ensure_future(stores.stores.open("orders", config, ReplayProgress(), stores.changes.append))
        await reached.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    await stores.open()


async def test_mark_of_a_closed_channel_whose_directory_is_in_use_is_refused(stores: Stores) -> None:
    """Another process uses the directory."""
    await stores.open()
    with pytest.raises(DirectoryError):
        await stores.stores.closed("orders", file_limits()).mark_deleted()
