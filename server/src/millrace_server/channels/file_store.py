"""The files of one channel, from its opening to its end."""

import asyncio
import threading
import time
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from millrace_server.channels.admission import Capacity, DiskSpace
from millrace_server.channels.channel_core import ChannelStorage
from millrace_server.channels.channel_file import ChannelFile, DirectoryError
from millrace_server.channels.checkpointing import Checkpointing
from millrace_server.channels.config import LogChannelConfig
from millrace_server.channels.contents import Contents
from millrace_server.channels.directories import ChannelDirectories, open_directories
from millrace_server.channels.journal import Journal
from millrace_server.channels.journal_entries import LogContext
from millrace_server.channels.keys import load_keys
from millrace_server.channels.log_columns import LogColumns, RecentMemory
from millrace_server.channels.queue_times import QueueTimes
from millrace_server.channels.recovery import Recovered, ReplayProgress, recover
from millrace_server.channels.spillable import SpillableCommitter, TieredContext
from millrace_server.errors import DiskFullError, MillraceError
from millrace_server.files import SharedSyncs
from millrace_server.histograms import Histograms
from millrace_server.wal.checkpoints import CheckpointFiles
from millrace_server.wal.disk import Disk
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.segments import SegmentFiles
from millrace_server.wal.writer_threads import WriterThreads

_log = structlog.stdlib.get_logger(__name__)

OPENERS_MAX = 16
"""Channels that are opened at the same time; they wait for the disk most of the time."""

# Replaying takes the processor, which the event loop needs as well.
_LONG_REPLAYS_MAX = 2


@dataclass(frozen=True, slots=True)
class _OpenFiles:
    directories: ChannelDirectories
    log: WriteAheadLog
    checkpoints: CheckpointFiles
    columns: LogColumns
    disk_space: DiskSpace

    def close(self) -> None:
        self.log.close()
        self.directories.close()


class FileStore:
    """The open files of a channel; see `FileStores.open`."""

    def __init__(
        self,
        storage: ChannelStorage,
        files: _OpenFiles,
        committer: Journal | SpillableCommitter,
        journal: Journal,
        checkpointing: Checkpointing,
    ) -> None:
        self.storage = storage
        self._files = files
        self._committer = committer
        self._journal = journal
        self._checkpointing = checkpointing

    @property
    def log_bytes(self) -> int:
        return self._files.log.byte_count()

    @property
    def segment_count(self) -> int:
        return self._files.log.segment_count

    @property
    def disk_space(self) -> DiskSpace:
        return self._files.disk_space

    @property
    def checkpoint_time(self) -> float:
        """When the newest checkpoint was made, in seconds since 1970; 0 where none was since the start."""
        return self._checkpointing.made_at

    @property
    def replay_bytes(self) -> int:
        """Bytes of the log that a restart would read now."""
        return self._checkpointing.replay_bytes

    @property
    def fault(self) -> MillraceError | None:
        """Why stored events could not be read since the opening; None if all could be."""
        return self._files.columns.fault

    async def close(self, timeout_seconds: float | None = None) -> None:
        """Writes a last checkpoint, so that the next opening reads hardly anything, and closes the files.

        Before that, events in memory are written to the log, within the timeout.
        """
        await self._checkpointing.stop()
        try:
            await self._committer.drain(timeout_seconds)
            if self._journal.fault is None:
                await self._checkpointing.make()
        finally:
            self._journal.close()
            await asyncio.to_thread(self._files.close)

    async def mark_deleted(self) -> None:
        """Marks the channel as deleted, so that it is gone even if the server ends before its files are removed."""
        await asyncio.to_thread(self._files.directories.mark_deleted)

    async def remove(self) -> None:
        """Removes the files of a channel that was marked; after an OSError, opening it again removes the rest."""
        await self._checkpointing.stop()
        self._journal.close()
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        # Also where some files are left: creating a channel of this name again finishes the removal.
        with closing(self._files.directories) as directories:
            self._files.log.close()
            directories.remove()


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
        # By the file systems that a log is on, so that one that does not answer holds up the logs of no other.
        self._writers: dict[frozenset[int], WriterThreads] = {}
        # Their own threads: reading logs back takes long, and reads of other channels must not wait behind it.
        self._openers = ThreadPoolExecutor(OPENERS_MAX, thread_name_prefix="channel-opener")
        self._long_replays = threading.BoundedSemaphore(_LONG_REPLAYS_MAX)
        self._syncs = SharedSyncs()

    def finish_deletions(self, configured: Container[str]) -> None:
        """Removes the files of channels whose deletion a crash has interrupted, below the server's own directory.

        Opening a `configured` channel finishes its deletion.
        """
        for path in self._base.iterdir() if self._base.is_dir() else ():
            if path.name in configured:
                continue
            try:
                file = ChannelFile.read(path)
                if file is not None and file.is_deleted:
                    _remove_deleted(open_directories(path.name, [path], path))
                    _log.info("the deletion of a channel was finished", channel=path.name)
            except (OSError, DirectoryError) as error:
                _log.warning("a directory below the channels cannot be used", path=str(path), error=str(error))

    def closed(self, name: str, config: LogChannelConfig) -> ClosedStore:
        return ClosedStore(lambda: self._open_directories(name, config))

    def _open_directories(self, name: str, config: LogChannelConfig) -> ChannelDirectories:
        data_dirs = [directory / name for directory in config.data_dirs or [self._base]]
        checkpoint_dir = config.checkpoint_dir / name if config.checkpoint_dir else data_dirs[0]
        return open_directories(name, data_dirs, checkpoint_dir, self._syncs)

    async def open(
        self, name: str, config: LogChannelConfig, progress: ReplayProgress, on_change: Callable[[str], None]
    ) -> FileStore:
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
        files, recovered = await loop.run_in_executor(self._openers, self._recover, name, config, progress)
        committer, journal = self._committer(name, config, files, recovered)
        journal.on_change = files.columns.on_damage = on_change
        try:
            if committer is not journal:
                # It reserves sequences.
                recovered.is_checkpointed = False
            if not recovered.is_checkpointed:
                # A full disk may refuse what a spillable channel writes. It opens all the same: so it can be emptied.
                with suppress(DiskFullError):
                    await journal.snapshot()
        except BaseException:
            journal.close()
            await asyncio.to_thread(files.close)
            raise
        identity = files.directories.identity
        storage = ChannelStorage(
            channel_id=identity.channel_id.hex(),
            contents=journal.context.contents,
            committer=committer,
            epochs_from=identity.made_at_microseconds,
            ended=recovered.ended,
            claim=recovered.claim,
        )
        checkpointing = Checkpointing(name, journal, files.checkpoints, files.log, recovered)
        checkpointing.start()
        _log.info(
            "channel opened",
            channel=name,
            events=recovered.queue.event_count,
            from_checkpoint=recovered.checkpoint is not None,
            replayed_records=recovered.replayed_records,
            replayed_bytes=recovered.replayed_bytes,
            seconds=round(time.monotonic() - started, 3),
        )
        return FileStore(storage, files, committer, journal, checkpointing)

    def _recover(self, name: str, config: LogChannelConfig, progress: ReplayProgress) -> tuple[_OpenFiles, Recovered]:
        """Runs on a thread, since it blocks on the disk."""
        with ExitStack() as undoing:
            directories = self._open_directories(name, config)
            undoing.callback(directories.close)
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
            recovered = recover(log, checkpoints, columns, progress)
            columns.first_segment_id = log.first_segment_id
            devices = frozenset(map(self._disk.device, directories.data_dirs))
            log.start(threads=self._writers.setdefault(devices, WriterThreads()), histograms=self._histograms)
            disk_space = DiskSpace(self._disk, directories.data_dirs, time.monotonic, directories.checkpoint_dir)
            undoing.pop_all()
        return _OpenFiles(directories, log, checkpoints, columns, disk_space), recovered

    def _committer(
        self, name: str, config: LogChannelConfig, files: _OpenFiles, recovered: Recovered
    ) -> tuple[Journal | SpillableCommitter, Journal]:
        """Returns the channel's committer, and the journal that it writes with."""
        capacity = Capacity(config.capacity, config.body_bytes_max)
        queue_times = QueueTimes(self._histograms.queue_times.of(config.type))
        contents = Contents(name, capacity, recovered.next_sequence, files.columns, queue_times)
        contents.restore(recovered.queue, recovered.ledger, recovered.last_commit_time)
        commit_times = self._histograms.commits.of(config.type)
        log = files.log, files.disk_space
        log_side = contents, files.columns, recovered.ended, recovered.claim
        if (spillable := config.spillable) is None:
            journal = Journal(LogContext(*log_side), *log, config, commit_times)
            return journal, journal
        context = TieredContext(*log_side, spillable)
        journal = Journal(context, *log, config, commit_times)
        return SpillableCommitter(name, context, journal), journal


def make_codec(config: LogChannelConfig) -> PayloadCodec:
    """Returns the codec of a channel's configuration; raises KeyFileError where a key file cannot be used."""
    compresses = config.compression == "zstd"
    if config.encryption is None:
        return PayloadCodec(compresses)
    return PayloadCodec(compresses, config.encryption.active_key, load_keys(config.encryption.keys))
