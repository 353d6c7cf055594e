"""Writes a channel as a new log, and compares two of them."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise

from millrace.columns import HEADER_KEYS_MAX, ColumnsCutter
from millrace.v1 import event_pb2
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.records import State, state_record
from millrace_server.channels.recovery import Recovered
from millrace_server.log_tools.layout import DamagedError, NoSpaceError, ToolError
from millrace_server.log_tools.verify import differences
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import Kind
from millrace_server.wal.interfaces import Log
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.records import LogFullError, Record, Submission

_GROUP_BYTES = 4 << 20
_SEGMENT_BYTES = 256 << 20


Part = tuple[int, event_pb2.EventColumns, Sequence[int]]
"""The sequence of the first of some events, the events, and the commit time of each."""


async def write_log(log: Log, state: State, parts: Iterable[Part]) -> None:
    """Writes a channel to a log that was started and is empty.

    The sequences between the parts, and after them, are skipped, which the reserve of each STATE permits. Each COMMIT
    states the gaps next to it, so that they are known even if other records are lost.

    Raises:
        NoSpaceError: The log has no space for the events.
        ToolError: They could not be written for another reason.
    """
    records: list[Record] = [state_record(state)]
    begins_segment, size, segment_bytes = True, 0, 0
    end_sequence = 1
    for part, following in pairwise(chain(parts, [None])):
        assert part is not None, "only the last element is None"
        sequence, columns, times = part
        payload = columns.SerializeToString()
        commit = _commit(sequence, columns, len(payload), times)
        next_sequence = following[0] if following else state.reserved_sequence
        commit.empty_from, commit.empty_to = end_sequence, next_sequence
        end_sequence = sequence + columns.count
        records += [(Kind.PUT, [payload]), (Kind.COMMIT, [commit.SerializeToString()])]
        size += len(payload)
        if size < _GROUP_BYTES:
            continue
        await _submit(log, records, begins_segment=begins_segment)
        segment_bytes += size
        records, size, begins_segment = [], 0, segment_bytes > _SEGMENT_BYTES
        if begins_segment:
            segment_bytes = 0
            records = [state_record(replace(state, next_sequence=next_sequence))]
    if records:
        await _submit(log, records, begins_segment=begins_segment)


async def write_new_files(log: WriteAheadLog, state: State, parts: Iterable[Part]) -> None:
    """Does the same for a log in files, which it opens and closes; raises DamagedError if it is not empty."""
    try:
        if any(True for _ in log.replay()):
            raise DamagedError("the new log is not empty")
        log.start()
        await write_log(log, state, parts)
    finally:
        await asyncio.to_thread(log.close)


def contents_of(recovered: Recovered) -> tuple[State, Iterator[Part]]:
    """Returns a recovered channel for `write_log`: sequences, commit times, stamps and the claim are kept."""
    queue = recovered.queue
    state = state_of(recovered, queue.first_sequence, max((batch.end_sequence for batch in queue), default=0))
    return state, (part for batch in queue for part in _parts(batch))


def state_of(recovered: Recovered, first_sequence: int | None, end_sequence: int) -> State:
    """Returns the state of a channel whose events have sequences in this range; None and 0 if there are no events."""
    return State(
        recovered.next_sequence if first_sequence is None else first_sequence,
        recovered.ledger.snapshot(),
        list(recovered.ended.items()),
        recovered.claim,
        recovered.last_commit_time,
        recovered.next_sequence,
        end_sequence,
    )


def _parts(batch: StoredBatch) -> Iterator[Part]:
    """Yields a batch as one part, or each event as one if the batch has too many header keys for a record."""
    columns = event_pb2.EventColumns.FromString(bytes(batch.window.columns()))
    times = [batch.first_time + offset for offset in batch.commit_offsets()] or [batch.first_time] * batch.count
    if len(columns.headers) <= HEADER_KEYS_MAX:
        yield batch.first_sequence, columns, times
        return
    cutter = ColumnsCutter(columns)
    for index, time in enumerate(times):
        yield batch.first_sequence + index, cutter.cut(index, index + 1), [time]


def _commit(sequence: int, columns: event_pb2.EventColumns, raw_bytes: int, times: Sequence[int]) -> pb.Commit:
    return pb.Commit(
        first_sequence=sequence,
        commit_time=times[0],
        commit_offsets=[time - times[0] for time in times] if times[-1] > times[0] else [],
        put_counts=[columns.count],
        put_body_bytes=[len(columns.bodies)],
        put_raw_bytes=[raw_bytes],
    )


async def _submit(log: Log, records: Sequence[Record], *, begins_segment: bool) -> None:
    stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(_submission: Submission, error: Exception | None) -> None:
        if error is None:
            stored.set_result(None)
        else:
            kind = NoSpaceError if isinstance(error, LogFullError) else ToolError
            stored.set_exception(kind(f"cannot write the new log: {error}"))

    log.submit(records, needs_sync=True, begins_segment=begins_segment, done=done)
    await stored


def check_same(before: Recovered, after: Recovered, where: str) -> None:
    """Raises DamagedError if two recoveries differ, apart from the locations of events."""
    found = differences(before, after, compares_segments=False)
    if found:
        raise DamagedError(f"{where}: returns other bytes than were written: {', '.join(found)}")
