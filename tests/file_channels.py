"""File channels on a simulated disk, whose syncs wait for the test, and which are killed and opened again.

The log's thread runs here, which needs a loop with a real clock.
"""

import asyncio
import base64
import threading
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from millrace_server.channels.admission import Capacity
from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_core import ChannelStorage
from millrace_server.channels.checkpointing import Checkpointing
from millrace_server.channels.commit import Receipt
from millrace_server.channels.committer import ClaimRecord
from millrace_server.channels.config import FileChannelConfig
from millrace_server.channels.contents import Contents
from millrace_server.channels.disk_space import DiskAccount, DiskSpace
from millrace_server.channels.journal import Journal
from millrace_server.channels.journal_entries import LogContext
from millrace_server.channels.log_columns import LogColumns, RecentMemory
from millrace_server.channels.recovery import Recovered, ReplayProgress, recover
from millrace_server.channels.transaction import Outcome
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.errors import ChannelLogFailedError, DiskFullError
from millrace_server.histograms import LATENCY_SECONDS, Histogram
from millrace_server.wal.checkpoints import CheckpointFiles
from millrace_server.wal.disk import Disk
from millrace_server.wal.format import Kind
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.segments import SegmentFiles
from tests.channel_events import RESPONSE_BYTES_MAX, append, numbered
from tests.simulated_disk import SimulatedDisk

DATA = Path("data")
CHANNEL_ID = bytes(range(16))
_WAIT_SECONDS = 60.0


def file_limits(**limits: Any) -> FileChannelConfig:
    """A configuration without reserved space, waits and periodic checkpoints.

    Segments may be smaller than users can configure.
    """
    config = FileChannelConfig(
        type="file", min_free_bytes=0, byte_capacity_buffer_percentage=0, checkpoint_interval_seconds=3_600.0
    )
    return config.model_copy(update={"keep_alive_seconds": 0.0, **limits})


class Gate:
    """Blocks calls of one kind from the threads of logs to the disk while the gate is closed."""

    def __init__(self, disk: SimulatedDisk, kind: str = "sync") -> None:
        self._kind = kind
        self._held = threading.Semaphore(0)
        self._may_go = threading.Event()
        self._may_go.set()
        disk.before_call = self._hold

    def _hold(self, kind: str, _name: str) -> None:
        is_of_log = threading.current_thread().name.startswith(("log-writer", "channel-opener"))
        may_go = self._may_go
        if kind == self._kind and is_of_log and not may_go.is_set():
            self._held.release()
            assert may_go.wait(_WAIT_SECONDS)

    def close(self) -> None:
        """Blocks calls from now on; those that were held before go on, even if they have not noticed yet."""
        self._may_go = threading.Event()

    def open(self) -> None:
        """Unblocks all calls."""
        self._may_go.set()

    async def reached(self) -> None:
        """Waits until one more call is held."""
        assert await asyncio.to_thread(self._held.acquire, timeout=_WAIT_SECONDS)


async def turn() -> None:
    """Runs the event loop until no callback is ready."""
    for _ in range(20):
        await asyncio.sleep(0)


@dataclass
class FileChannel:
    """A channel in a log, with all its parts; created by `FileChannel.opened`."""

    disk: Disk
    config: FileChannelConfig
    log: WriteAheadLog
    checkpoints: CheckpointFiles
    columns: LogColumns
    recovered: Recovered
    journal: Journal
    channel: Channel
    checkpointing: Checkpointing
    faults: list[str] = field(default_factory=list)

    @classmethod
    async def opened(cls, disk: Disk, *, directory: TxnDirectory | None = None, **limits: Any) -> Self:
        """Recovers a channel, or creates it."""
        config = file_limits(**limits)
        log = WriteAheadLog(SegmentFiles(disk, [DATA], CHANNEL_ID))
        checkpoints = CheckpointFiles(disk, DATA, CHANNEL_ID, keeps_previous=config.backup_checkpoint)
        columns = LogColumns(log, RecentMemory())
        recovered = recover(log, checkpoints, columns, ReplayProgress())
        columns.first_segment_id = log.first_segment_id
        log.start()
        contents = Contents(
            "orders", Capacity(config.capacity, config.body_bytes_max), recovered.next_sequence, columns
        )
        contents.restore(recovered.queue, recovered.ledger, recovered.last_commit_time)
        context = LogContext(contents, columns, recovered.ended, recovered.claim)
        clock = asyncio.get_running_loop().time
        disk_space = DiskSpace(lambda _: DiskAccount(disk, clock), [DATA], clock)
        journal = Journal(context, log, disk_space, config, Histogram(LATENCY_SECONDS))
        storage = ChannelStorage(
            channel_id=CHANNEL_ID.hex(),
            contents=contents,
            committer=journal,
            epochs_from=0,
            ended=recovered.ended,
            claim=recovered.claim,
        )
        await journal.snapshot()
        channel = Channel("orders", config, storage, directory or TxnDirectory(10_000), RESPONSE_BYTES_MAX)
        checkpointing = Checkpointing("orders", journal, checkpoints, log, recovered)
        opened = cls(disk, config, log, checkpoints, columns, recovered, journal, channel, checkpointing)
        journal.on_change = columns.on_damage = opened.faults.append
        return opened

    async def close(self) -> None:
        """Stops the log's thread and all background work."""
        await self.checkpointing.stop()
        self.journal.close()
        self.channel.claims.forget()
        for txn in self.channel.transactions._open.values():
            txn.lease.cancel()
        await asyncio.to_thread(self.log.close)

    def durable_state(self) -> "DurableState":
        """The state that must survive, provided that no call is in progress."""
        contents = self.channel._contents
        held = sorted(contents.held_batches(), key=lambda batch: batch.first_sequence)
        state = self.journal.state()
        return DurableState(
            events=numbered(held),
            event_count=contents.capacity.event_count,
            body_bytes=contents.capacity.body_bytes,
            next_sequence=state.next_sequence,
            stamps={producer_id: list(intervals) for producer_id, intervals in state.producers.items()},
            ended=dict(state.ended),
            claim=state.claim,
        )

    def kinds(self) -> list[Kind]:
        """The kinds of the records in the log, without end marks."""
        return [record.kind for record in self.records()]

    def records(self) -> list["SeenRecord"]:
        """The log's records, read from the disk."""
        return records_on(self.disk)


@dataclass(frozen=True)
class DurableState:
    """The state of a channel."""

    events: list[tuple[int, bytes]]
    """Queued or taken."""
    event_count: int
    body_bytes: int
    next_sequence: int
    stamps: dict[str, list[tuple[int, int]]]
    """The accepted ranges of each producer."""
    ended: dict[str, Outcome]
    claim: ClaimRecord | None


@dataclass(frozen=True)
class SeenRecord:
    """A record on the disk."""

    segment_id: int
    kind: Kind
    payload: bytes


def records_on(disk: Disk) -> list[SeenRecord]:
    """The records of the log on a disk, without end marks. Changes nothing."""
    log = WriteAheadLog(SegmentFiles(disk, [DATA], CHANNEL_ID))
    try:
        return [
            SeenRecord(record.location.segment_id, record.kind, bytes(record.payload))
            for record in log.replay(read_only=True)
            if record.kind is not Kind.SYNC_POINT
        ]
    finally:
        log.close()


@contextmanager
def opened_log(disk: Disk) -> Iterator[WriteAheadLog]:
    """The log on a disk, started, until the end of the block."""
    log = WriteAheadLog(SegmentFiles(disk, [DATA], CHANNEL_ID))
    for _ in log.replay():
        pass
    log.start()
    try:
        yield log
    finally:
        log.close()


def recovered_from(disk: Disk, progress: ReplayProgress | None = None, *, read_only: bool = False) -> Recovered:
    """The result of replaying the log on a disk."""
    log = WriteAheadLog(SegmentFiles(disk, [DATA], CHANNEL_ID))
    checkpoints = CheckpointFiles(disk, DATA, CHANNEL_ID, keeps_previous=True)
    return recover(log, checkpoints, LogColumns(log, RecentMemory()), progress or ReplayProgress(), read_only=read_only)


@asynccontextmanager
async def file_channel(disk: Disk, **limits: Any) -> AsyncIterator[FileChannel]:
    """A channel on a disk, until the end of the block. Background work must not fail."""
    troubles: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, trouble: troubles.append(trouble))
    opened = await FileChannel.opened(disk, **limits)
    try:
        yield opened
    finally:
        await opened.close()
    assert troubles == []


async def durable_state_on(disk: SimulatedDisk, **limits: Any) -> DurableState:
    """The state of the channel on a disk."""
    async with file_channel(disk, **limits) as opened:
        return opened.durable_state()


async def held_append(gate: Gate, channel: Channel, *bodies: bytes) -> "asyncio.Future[Receipt]":
    """Blocks the log's thread in the sync of an append; later commits form one group behind it."""
    gate.close()
    appending = asyncio.ensure_future(append(channel, *bodies))
    await gate.reached()
    return appending


async def called(*coroutines: Any) -> "list[asyncio.Future[Any]]":
    """Starts calls in order, and runs each up to its first wait."""
    calls = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    await turn()
    return calls


async def refusal(call: "asyncio.Future[Any]") -> str:
    """The reason with which a call is refused."""
    with pytest.raises((DiskFullError, ChannelLogFailedError)) as refused:
        await call
    return refused.value.reason


# The files of a killed channel that the release before commit times wrote: a checkpoint, then more commits.
_VERSION_1 = {
    "checkpoint": (
        "eNrz9fTxcfbwDmBigAJGJmYWVjZ2Dk4ubh5ePn5GqHATO4Tmh/LTgfjn1ZJuLlUOPSEeLsYCIUZGKUZGJSApzMWam1+WmiLEyCTFqKvEqKvFyC"
        "Bkx8XMzKIjxAy0R4qZWYNJiYV1AyePFjMjI6MRa9prpum8Vqy7GO9z5jmBZL1Y+IGyQSwS9zmlopiZGZkA568VEw=="
    ),
    "segment-000000000001.log": (
        "eNrz9fTxCXJ0dmVkgAJGJmYWVjZ2Dk4ubh5ePn6YOFweCUQWW+zWMTfatTH/jBYbVA26Og5GIQYpBvn8nvAtpQ23eYAiTFAMAmkIVYysUqz5ea"
        "m6BgJliv/t5XRluIHiLEDMjKZWgFGKkVGJkVWLkYd/sstcJdf2NTBjWaBK9mIaaxg3yyrVZqnUd5ixrGhqBZjgxtZOfP1jhkifKcxYNqgSEUYM"
        "Y40W8YlqMJ27IQEzlh1NrQAz3NjdE026X2QtFb7PAjGWA6o0G2ashpCGHJFAagNnUmb6KBpFo2gUDQlU+5Pt+OrPy1bxQktKTrTiT4BFilFDiW"
        "kDpxbTfc6Jdn4qL/OWv+SDFsFcUMXT2RBFMLsUe3FJYm5Bakr2psXSzrO1g0SgRnOjqRbQARfC7FqMfFbsXIwFAowSjNZK/5IqeKyCYYU8D1TP"
        "TzaUQj43vyw1xS3haoqH5icNTmh1xIumlosRqBhYf3Blvbb5dte65BvMIXzoCiHmCejCKwUDxnsKfw5M/HVpBQe0UuKH6mmCViVcbEX5OTmpKX"
        "bHsl9N61w2UxhaIwlgqktNTEktEmCUhAjYOTyZ4flZrivdFuZuQaiWuzAtjMxCjMDqlHVbqOglnqfnX7NA3S2EplBAz4BxiWBqaGmnqoAo1H5h"
        "qBotDpz2KzDGxcZOqch+G8sLDWURqKZ4DkQos0mx5SSWAGv+rCmrT0ndPHkcVpeKoikW0AMHG5sWIy9P0hbZd9GvtGDmikGVbsdirqFUC9MplU"
        "3cGjBzxdEUC+jDzT1lIikdwvV4M8xcCahSfk5Mc41yuCzCHTPW/YOZK4mmWMAAbu6dj/b3RfOm3OGHmisFVZqOZC6HFAfY3JKKvB2zlaaZJ041"
        "14WaLI2mnEsh2dQgKc00Jcki1TzRxCTVJDklKdnU0tww2TQ10SDZ0ETAEGw3hxYjPwBsbpY0"
    ),
}


def put_version_1(disk: SimulatedDisk) -> None:
    """Puts the log of an earlier release onto an empty disk."""
    for name, encoded in _VERSION_1.items():
        disk.set_content(DATA / name, zlib.decompress(base64.b64decode(encoded)))


def renames(disk: SimulatedDisk) -> int:
    """The number of checkpoints put in place so far."""
    return sum(call.kind == "rename" and call.name == "checkpoint" for call in disk.calls)
