"""The files of one channel, from its opening to its end."""

import asyncio
import threading
import time
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import structlog

from millrace_server.channels.channel_file import ChannelFile, DirectoryError
from millrace_server.channels.config import DiskChannelConfig
from millrace_server.channels.directories import KEPT_INFIX, ChannelDirectories, open_directories
from millrace_server.channels.disk_space import DiskAccount, DiskSpace
from millrace_server.channels.log_columns import LogColumns, RecentMemory
from millrace_server.channels.log_store import LogStore, OpenLog, make_codec, start_store
from millrace_server.channels.recovery import ReplayProgress, recover
from millrace_server.files import SharedSyncs
from millrace_server.histograms import Histograms
from millrace_server.wal.checkpoints import CheckpointFiles
from millrace_server.wal.disk import Disk
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.segments import SegmentFiles
from millrace_server.wal.versions import read_versions
from millrace_server.wal.writer_threads import WriterThreads

_log = structlog.stdlib.get_logger(__name__)

OPENERS_MAX = 16
"""Channels that are opened at the same time; they wait for the disk most of the time."""

# Replaying takes the processor, which the event loop needs as well.
_LONG_REPLAYS_MAX = 2


class ClosedStore:
    """The files of a channel that cannot be opened; they can still be deleted."""

    def __init__(self, open_directories: Callable[[], ChannelDirectories]) -> None:
        self._open_directories = open_directories

    async def mark_deleted(self) -> None:
        await asyncio.to_thread(self._mark)

    async def remove(self) -> None:
        await asyncio.to_thread(self._remove)

    def _mark(self) -> None:
        with closing(self._open_directories()) as directories:
            directories.mark_deleted()

    def _remove(self) -> None:
        _remove_deleted(self._open_directories())


def _remove_deleted(directories: ChannelDirectories) -> None:
    # Opening them has finished the deletion, and created the channel again: that one is removed too.
    with closing(directories):
        directories.mark_deleted()
        directories.remove()


class FileStores:
    """Opens the files of channels; those without directories of their own are below `base`."""

    def __init__(self, base: Path, disk: Disk, histograms: Histograms | None = None) -> None:
        self._base = base
        self._disk = disk
        self._histograms = histograms or Histograms()
        self._recent = RecentMemory()
        # By the file systems that a log is on, so that one that does not respond holds up the logs of no other.
        self._writers: dict[frozenset[int], WriterThreads] = {}
        # By device and size: a directory with a quota of its own has its own space in the same file system.
        self._accounts: dict[tuple[int, int], DiskAccount] = {}
        # Their own threads: reading logs back takes long, and reads of other channels must not wait behind it.
        self._openers = ThreadPoolExecutor(OPENERS_MAX, thread_name_prefix="channel-opener")
        self._long_replays = threading.BoundedSemaphore(_LONG_REPLAYS_MAX)
        self._syncs = SharedSyncs()

    def finish_deletions(self, configured: Container[str]) -> None:
        """Removes the files of channels whose deletion a crash has interrupted, below the server's own directory.

        Opening a `configured` channel finishes its deletion.
        """
        for path in self._base.iterdir() if self._base.is_dir() else ():
            # A repair keeps files as they were, damaged ones too.
            if path.name in configured or KEPT_INFIX in path.name:
                continue
            try:
                file = ChannelFile.read(path)
                if file is not None and file.is_deleted:
                    _remove_deleted(open_directories(path.name, [path], path))
                    _log.info("the deletion of a channel was completed", channel=path.name)
            except (OSError, DirectoryError) as error:
                _log.warning("a directory below the channels cannot be used", path=str(path), error=str(error))

    def closed(self, name: str, config: DiskChannelConfig) -> ClosedStore:
        return ClosedStore(lambda: self._open_directories(name, config, forgets_moved=True))

    def _open_directories(
        self, name: str, config: DiskChannelConfig, *, forgets_moved: bool = False
    ) -> ChannelDirectories:
        data_dirs = [directory / name for directory in config.data_dirs or [self._base]]
        checkpoint_dir = config.checkpoint_dir / name if config.checkpoint_dir else data_dirs[0]
        return open_directories(name, data_dirs, checkpoint_dir, self._syncs, forgets_moved=forgets_moved)

    async def open(
        self, name: str, config: DiskChannelConfig, progress: ReplayProgress, on_change: Callable[[str], None]
    ) -> LogStore:
        """Recovers a channel, or creates its files, and starts its log.

        Args:
            name: The channel's name.
            config: Its configuration.
            progress: Updated during recovery.
            on_change: Called with a sentence for the server's log if the log later fails, stalls or is found damaged.

        Raises:
            DirectoryError, KeyFileError, KeyMissingError, LogCorruptError, UnknownVersionError, OSError: It cannot be
                opened; nothing was changed.
            DiskFullError, ChannelLogFailedError: A new log could not be written.
        """
        started = time.monotonic()
        progress.long_replays = self._long_replays
        loop = asyncio.get_running_loop()
        opened = await loop.run_in_executor(self._openers, self._recover, name, config, progress)
        store = await start_store(name, config, opened, self._histograms, on_change)
        _log.info(
            "channel opened",
            channel=name,
            events=opened.recovered.queue.event_count,
            from_checkpoint=opened.recovered.checkpoint is not None,
            replayed_records=opened.recovered.replayed_records,
            replayed_bytes=opened.recovered.replayed_bytes,
            seconds=round(time.monotonic() - started, 3),
        )
        return store

    def _recover(self, name: str, config: DiskChannelConfig, progress: ReplayProgress) -> OpenLog:
        """Runs on a thread, since it blocks on the disk."""
        with ExitStack() as undoing:
            directories = self._open_directories(name, config)
            undoing.callback(directories.close)
            if config.type == "spillable":
                directories.note_memory()
            log_id = directories.identity.log_id
            codec = make_codec(config)
            log = WriteAheadLog(SegmentFiles(self._disk, directories.data_dirs, log_id), codec)
            undoing.callback(log.close)
            checkpoints = CheckpointFiles(
                self._disk,
                directories.checkpoint_dir,
                log_id,
                keeps_previous=config.backup_checkpoint,
                codec=codec,
            )
            columns = LogColumns(log, self._recent)
            if read_versions(directories.data_dirs, directories.checkpoint_dir).is_earlier:
                # Before anything is written: until then an earlier version can open the channel.
                _log.warning(
                    "the files of a channel will be converted, and earlier versions cannot open them then", channel=name
                )
            recovered = recover(log, checkpoints, columns, progress)
            columns.first_segment_id = log.first_segment_id
            devices = frozenset(map(self._disk.device, directories.data_dirs))
            disk_space = DiskSpace(self._account_of, directories.data_dirs, time.monotonic, directories.checkpoint_dir)
            log.start(
                threads=self._writers.setdefault(devices, WriterThreads()),
                histograms=self._histograms,
                allocating=disk_space.allocating,
            )
            # Once more, without what the log has allocated.
            disk_space.measure()
            undoing.pop_all()
        return OpenLog(directories, log, checkpoints, columns, disk_space, recovered)

    def _account_of(self, directory: Path) -> DiskAccount:
        key = self._disk.device(directory), self._disk.total_bytes(directory)
        # Several threads open channels; the first account stays.
        return self._accounts.setdefault(key, DiskAccount(self._disk, time.monotonic))
