"""A channel with a log, from its opening to its end, whatever stores the log."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from millrace_server.channels.admission import Capacity
from millrace_server.channels.channel_core import ChannelStorage
from millrace_server.channels.channel_file import ChannelIdentity
from millrace_server.channels.checkpointing import Checkpointing
from millrace_server.channels.config import LogChannelConfig
from millrace_server.channels.contents import Contents
from millrace_server.channels.disk_space import DiskSpace
from millrace_server.channels.journal import Journal
from millrace_server.channels.journal_entries import LogContext
from millrace_server.channels.keys import load_keys
from millrace_server.channels.log_columns import LogColumns
from millrace_server.channels.queue_times import QueueTimes
from millrace_server.channels.recovery import Recovered
from millrace_server.channels.spillable import SpillableCommitter, TieredContext
from millrace_server.errors import DiskFullError, MillraceError
from millrace_server.histograms import Histograms
from millrace_server.wal.interfaces import Checkpoints, Log
from millrace_server.wal.payload_codec import PayloadCodec


class LogHolder(Protocol):
    """What stores a channel's log and checkpoints; its methods block, and are called on threads."""

    @property
    def identity(self) -> ChannelIdentity:
        """Which channel it stores."""

    def close(self) -> None:
        """Closes it, once the log is closed."""

    def mark_deleted(self) -> None:
        """Marks the channel as deleted, so that it is gone even if the server ends before it is removed."""

    def remove(self) -> None:
        """Removes all of it; after an OSError, opening it again removes the rest."""


@dataclass(frozen=True, slots=True)
class OpenLog:
    """A recovered log, started, and what belongs to it."""

    holder: LogHolder
    log: Log
    checkpoints: Checkpoints
    columns: LogColumns
    disk_space: DiskSpace
    recovered: Recovered

    def close(self) -> None:
        """Closes the log and what stores it; blocks."""
        self.columns.leave_channel()
        self.log.close()
        self.holder.close()


class LogStore:
    """An open channel with a log."""

    def __init__(
        self,
        storage: ChannelStorage,
        opened: OpenLog,
        committer: Journal | SpillableCommitter,
        journal: Journal,
        checkpointing: Checkpointing,
    ) -> None:
        self.storage = storage
        self._opened = opened
        self._committer = committer
        self._journal = journal
        self._checkpointing = checkpointing

    @property
    def log_bytes(self) -> int:
        return self._opened.log.byte_count()

    @property
    def segment_count(self) -> int:
        return self._opened.log.segment_count

    @property
    def disk_space(self) -> DiskSpace:
        return self._opened.disk_space

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
        return self._opened.columns.fault

    async def close(self, timeout_seconds: float | None = None, *, writes_checkpoint: bool = True) -> None:
        """Writes a last checkpoint, so that the next opening reads hardly anything, and closes the log.

        Before that, events in memory are written to the log, within the timeout.
        """
        await self._checkpointing.stop()
        try:
            await self._committer.drain(timeout_seconds)
            if writes_checkpoint and self._journal.fault is None:
                await self._checkpointing.make()
        finally:
            self._journal.close()
            await asyncio.to_thread(self._opened.close)

    async def mark_deleted(self) -> None:
        """Marks the channel as deleted, so that it is gone even if the server ends before its log is removed."""
        await asyncio.to_thread(self._opened.holder.mark_deleted)

    async def remove(self) -> None:
        """Removes the log of a channel that was marked; after an OSError, opening it again removes the rest."""
        await self._checkpointing.stop()
        self._journal.close()
        await asyncio.to_thread(self._remove)

    def _remove(self) -> None:
        # Also where something is left: creating a channel of this name again finishes the removal.
        self._opened.columns.leave_channel()
        try:
            self._opened.log.close()
            self._opened.holder.remove()
        finally:
            self._opened.holder.close()


async def start_store(
    name: str,
    config: LogChannelConfig,
    opened: OpenLog,
    histograms: Histograms,
    on_change: Callable[[str], None],
) -> LogStore:
    """Puts what was recovered into service; closes it where that fails.

    Raises:
        DiskFullError, ChannelLogFailedError: A new log could not be written.
    """
    recovered = opened.recovered
    committer, journal = _committer(name, config, opened, histograms)
    journal.on_change = opened.columns.on_damage = on_change
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
        await asyncio.to_thread(opened.close)
        raise
    identity = opened.holder.identity
    storage = ChannelStorage(
        channel_id=identity.channel_id.hex(),
        contents=journal.context.contents,
        committer=committer,
        epochs_from=identity.made_at_microseconds,
        ended=recovered.ended,
        claim=recovered.claim,
    )
    checkpointing = Checkpointing(name, journal, opened.checkpoints, opened.log, recovered)
    checkpointing.start()
    return LogStore(storage, opened, committer, journal, checkpointing)


def _committer(
    name: str, config: LogChannelConfig, opened: OpenLog, histograms: Histograms
) -> tuple[Journal | SpillableCommitter, Journal]:
    """Returns the channel's committer, and the journal that it writes with."""
    recovered = opened.recovered
    capacity = Capacity(config.capacity, config.body_bytes_max)
    queue_times = QueueTimes(histograms.queue_times.of(config.type))
    contents = Contents(name, capacity, recovered.next_sequence, opened.columns, queue_times)
    contents.restore(recovered.queue, recovered.ledger, recovered.last_commit_time)
    commit_times = histograms.commits.of(config.type)
    log = opened.log, opened.disk_space
    log_side = contents, opened.columns, recovered.ended, recovered.claim
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
