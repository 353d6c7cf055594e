"""Channels with a log in this process, on a simulated disk, and the state that a crash must not change.

The log's writer and all waits for the disk run in turns of the event loop: a history is deterministic, and its seed
reproduces it.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import structlog

from millrace_server.channels import checkpointing, file_store
from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_file import ChannelIdentity
from millrace_server.channels.commit import Receipt
from millrace_server.channels.config import DiskChannelConfig, FileChannelConfig, SpillableChannelConfig
from millrace_server.channels.directories import ChannelDirectories
from millrace_server.channels.file_store import FileStores
from millrace_server.channels.log_store import LogStore
from millrace_server.channels.recovery import ReplayProgress
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.wal import log
from millrace_server.wal.group_writer import GroupWriter
from millrace_server.wal.records import Submission
from millrace_server.wal.versions import FileVersions
from millrace_server.wal.writer import LogWriter
from millrace_server.wal.writer_threads import WriterThreads
from tests.channel_events import RESPONSE_BYTES_MAX, numbered, times_of
from tests.log_histories import make_small
from tests.simulated_disk import SimulatedDisk
from tests.virtual_clock import at_once

DATA = Path("data")
TWO_DIRECTORIES = (Path("left"), Path("right"))

EPOCHS_FROM = 1_000
SEGMENT_BYTES = 2_000

_FOREVER_SECONDS = 3600.0
_IDENTITY = ChannelIdentity("orders", bytes(range(16)), bytes(range(16)), EPOCHS_FROM)


_ConfigT = TypeVar("_ConfigT", bound=DiskChannelConfig)


def small_limits(*, body_bytes_max: int = 1 << 30, **limits: Any) -> FileChannelConfig:
    """A configuration with small segments, no reserved space, and checkpoints only on request or with a new segment.

    Bodies may use the whole byte capacity.
    """
    return _small(FileChannelConfig, type="file", byte_capacity=body_bytes_max, **limits)


def small_spillable_limits(*, body_bytes_max: int = 1 << 30, **limits: Any) -> SpillableChannelConfig:
    """The same for a spillable channel with space for few events in memory."""
    chosen = {"memory_capacity": 3, "memory_byte_capacity": 1 << 30, **limits}
    return _small(SpillableChannelConfig, type="spillable", byte_capacity=body_bytes_max, **chosen)


def _small(kind: type[_ConfigT], **limits: Any) -> _ConfigT:
    chosen: dict[str, Any] = {
        "min_free_bytes": 0,
        "checkpoint_interval_seconds": _FOREVER_SECONDS,
        "lease_seconds": _FOREVER_SECONDS,
        "keep_alive_seconds": 0.0,
        "byte_capacity_buffer_percentage": 0,
        **limits,
    }
    # Smaller than users can configure, so that few events make many segments.
    segment_bytes_max = chosen.pop("segment_bytes_max", SEGMENT_BYTES)
    return kind(**chosen).model_copy(update={"segment_bytes_max": segment_bytes_max})


class InTurns(GroupWriter):
    """Writes a group in each turn of the event loop, without a thread."""

    _is_scheduled = False

    def submit(self, submission: Submission) -> None:
        if self._is_closing:
            super().submit(submission)
            return
        self._pending.append(submission)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._write_next)

    def _write_next(self) -> None:
        self._is_scheduled = False
        if self._pending:
            group = self._next_group()
            assert group
            self._on_done(group, self._write_or_refuse(group))
            self._schedule()

    def close(self) -> None:
        self._is_closing = True
        self._run()


class TurnWriter(InTurns, LogWriter):
    """Writes to segments in turns."""

    def start(self, _threads: WriterThreads, *, ends_with_sync_point: bool) -> None:
        """Does nothing, since there is no thread."""


def make_simple(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes logs small, and runs everything on the event loop's thread."""
    make_small(monkeypatch)
    # Logs that are emptied begin anew, often.
    monkeypatch.setattr(checkpointing, "KEPT_BYTES", 600)
    monkeypatch.setattr(checkpointing, "FULL_DISK_KEPT_BYTES", 300)
    monkeypatch.setattr(log, "LogWriter", TurnWriter)
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    # It reads the machine's own disk.
    monkeypatch.setattr(file_store, "read_versions", lambda *_: FileVersions(0, 0))
    # The log entries of thousands of openings would fill the report of a failed test.
    # Whatever another test has configured.
    quiet = structlog.wrap_logger(structlog.ReturnLogger(), processors=[], wrapper_class=structlog.BoundLogger)
    for module in (file_store, checkpointing):
        monkeypatch.setattr(module, "_log", quiet)


class Here(ThreadPoolExecutor):
    """Runs every call at once, on the caller's thread."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> "Future[Any]":
        done: Future[Any] = Future()
        try:
            done.set_result(function(*arguments, **options))
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            done.set_exception(error)
        return done


class _SimulatedDirectories(ChannelDirectories):
    """Directories that no other server can use."""

    def __init__(self, data_dirs: Sequence[Path], checkpoint_dir: Path) -> None:
        self.identity = _IDENTITY
        self.data_dirs = tuple(data_dirs)
        self.checkpoint_dir = checkpoint_dir

    def close(self) -> None:
        """Does nothing, since nothing is locked."""

    def note_memory(self) -> None:
        """Does nothing, since there are no files of the channel to note it in."""


class _SimulatedStores(FileStores):
    """Opens channels without an identity file in their directories."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__(Path(), disk)
        self._openers = Here()

    def _open_directories(
        self,
        _name: str,
        config: DiskChannelConfig,
        *,
        forgets_moved: bool = False,
    ) -> ChannelDirectories:
        data_dirs = config.data_dirs or [DATA]
        return _SimulatedDirectories(data_dirs, config.checkpoint_dir or data_dirs[0])


@dataclass(frozen=True, slots=True, repr=False)
class Held:
    """The part of a channel's state that a crash must not change."""

    events: Sequence[tuple[int, bytes]]
    """Sequences and bodies of all committed events, taken or not, in their order."""
    next_sequence: int
    stamps: dict[str, frozenset[int]]
    """The accepted ranges of each producer."""
    ended: dict[str, tuple[str, Receipt | None]]
    """The outcomes of transactions."""
    claim: tuple[str, int] | None
    """Reader and epoch of the active claim."""
    epoch: int
    """The epoch of the newest claim."""
    times: Sequence[int] = ()
    """The commit time of each event."""

    def __repr__(self) -> str:
        events = [f"{sequence}:{body[:8]!r}({len(body)})" for sequence, body in self.events]
        stamps = {producer_id: sorted(numbers) for producer_id, numbers in self.stamps.items()}
        return f"{events} next={self.next_sequence} {stamps} {self.ended} claim={self.claim} epoch={self.epoch}"

    @classmethod
    def nothing(cls) -> "Held":
        """The state of a new channel."""
        return cls((), 1, {}, {}, None, EPOCHS_FROM)

    @classmethod
    def by(cls, channel: Channel) -> "Held":
        """The state of a channel."""
        batches = sorted(channel._contents.held_batches(), key=lambda batch: batch.first_sequence)
        claim = channel.claims.claim
        return cls(
            tuple(numbered(batches)),
            channel._contents.next_sequence,
            {
                producer_id: frozenset(number for first, last in intervals for number in range(first, last + 1))
                for producer_id, intervals in channel._contents.ledger.producers()
            },
            {txn_id: (outcome.state.value, outcome.receipt) for txn_id, outcome in channel.transactions._ended.items()},
            (claim.reader_id, claim.epoch) if claim else None,
            channel.claims._epoch,
            tuple(times_of(batches).values()),
        )


@dataclass(slots=True)
class SimulatedChannel:
    """An open channel on a simulated disk, created by `open_simulated_channel`."""

    disk: SimulatedDisk
    config: DiskChannelConfig
    store: LogStore
    channel: Channel
    directory: TxnDirectory
    changes: list[str] = field(default_factory=list)
    """The reported changes of its health."""

    async def checkpoint(self) -> None:
        """Writes a checkpoint if anything has changed."""
        await self.store._checkpointing.make()

    def mark(self) -> None:
        """Makes the log mark its end, as it does after a while without a commit."""
        opened = self.store._opened.log
        assert isinstance(opened, log.WriteAheadLog)
        writer = opened._writer
        assert writer is not None
        if writer._failure is None and writer._sync_point_position < writer._synced_position:
            writer._write_sync_point()

    async def close(self) -> None:
        """Closes the channel as a server that stops does."""
        await self.store.close()

    def abandon(self) -> None:
        """Stops all background work, as if the process had been killed."""
        checkpointing = self.store._checkpointing
        checkpointing._is_stopped = True
        checkpointing._cancel_timer()
        if checkpointing._task is not None:
            checkpointing._task.cancel()
        self.store._journal.close()
        self.channel.claims.forget()
        for txn in self.channel.transactions._open.values():
            txn.lease.cancel()


async def open_simulated_channel(
    disk: SimulatedDisk, config: DiskChannelConfig | None = None, directory: TxnDirectory | None = None
) -> SimulatedChannel:
    """Opens or creates the channel on a disk. Raises the errors of `FileStores.open`."""
    config = config or small_limits()
    directory = directory or TxnDirectory(10_000)
    changes: list[str] = []
    store = await _SimulatedStores(disk).open("orders", config, ReplayProgress(), changes.append)
    channel = Channel("orders", config, store.storage, directory, RESPONSE_BYTES_MAX)
    return SimulatedChannel(disk, config, store, channel, directory, changes)


async def held_on(disk: SimulatedDisk, config: DiskChannelConfig | None = None) -> Held:
    """Opens the channel on a disk, kills it, and returns its state."""
    opened = await open_simulated_channel(disk, config)
    held = Held.by(opened.channel)
    opened.abandon()
    return held
