"""A replay that decodes plain commits at once restores what it does when it applies each by itself."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from millrace_server.channels import commit_runs
from millrace_server.channels.batches import ColumnsSource, StoredColumns
from millrace_server.channels.commit_runs import CommitRun, pairs_end
from millrace_server.channels.queue import RUN_EVENTS_MAX
from millrace_server.channels.recovery import Recovered, ReplayProgress, recover
from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.format import Flags, Kind
from millrace_server.wal.interfaces import Checkpoints, Log
from millrace_server.wal.log import LogRecord
from millrace_server.wal.records import Location, LogPosition
from millrace_server.wal.segments import LogCorruptError

_PUT_BYTES = 40
_EVENTS = 3
_SMALL, _LARGE = 100, 5_000
"""Bytes of a request's columns: of one that may join a run of the queue, and of one that may not."""


@dataclass
class _Records:
    """The records of a log, in memory."""

    records: list[LogRecord]

    first_segment_id = 1

    def replay(self, _start: LogPosition | None, **_options: object) -> Iterator[LogRecord]:
        yield from self.records

    def byte_count_behind(self, _start: LogPosition | None) -> int:
        return 1

    def valid_checkpoints(self) -> Iterator[Any]:
        return iter(())


class _Writer:
    """Lays records one behind the other."""

    def __init__(self) -> None:
        self.records: list[LogRecord] = []
        self.next_sequence = 1
        self._position = 64

    def add(self, kind: Kind, payload: bytes) -> None:
        location = Location(1, self._position, len(payload))
        self.records.append(LogRecord(kind, Flags(0), location, lambda: payload))
        self._position += 32 + len(payload)

    def put(self) -> None:
        self.add(Kind.PUT, bytes(_PUT_BYTES))

    def message(self, kind: Kind, message: Message) -> None:
        self.add(kind, message.SerializeToString())

    def commit(self, puts: int = 1, raw_bytes: int = _SMALL, **fields: Any) -> None:
        """Adds a commit of so many PUT records, by default a plain one."""
        for _ in range(puts):
            self.put()
        first = fields.pop("first_sequence", self.next_sequence)
        message = pb.Commit(
            first_sequence=first,
            put_counts=[_EVENTS] * puts,
            put_body_bytes=[9] * puts,
            put_raw_bytes=[raw_bytes] * puts,
            commit_time=1_000 + first,
        )
        message.MergeFrom(pb.Commit(**fields))
        self.message(Kind.COMMIT, message)
        self.next_sequence = first + _EVENTS * puts


def _stamp(first: int, producer_id: str = "p", last: int | None = None) -> pb.Stamp:
    return pb.Stamp(producer_id=producer_id, first=first, last=last or first + _EVENTS - 1, owner="o")


def _one_by_one(records: list[LogRecord], monkeypatch: pytest.MonkeyPatch) -> Recovered:
    with monkeypatch.context() as patched:
        patched.setattr(commit_runs, "_COMMITS_MIN", len(records))
        return _recovered(records)


def _recovered(records: list[LogRecord]) -> Recovered:
    log = _Records(records)
    return recover(cast("Log", log), cast("Checkpoints", log), cast("ColumnsSource", object()), ReplayProgress())


def _columns(stored: StoredColumns) -> tuple[Any, ...]:
    return stored.location, stored.raw_bytes, stored.record_count, stored.is_batch, list(stored.offsets or ())


def _shown(recovered: Recovered) -> dict[str, Any]:
    """Everything that was recovered, to be compared."""
    batches = [
        (batch.first_sequence, batch.count, batch.window.body_bytes, batch.commit_time, *_columns(batch.window.stored))
        for batch in recovered.queue
    ]
    producers = [
        (producer_id, list(intervals), intervals.seen_at, intervals.owner)
        for producer_id, intervals in recovered.ledger.snapshot().items()
    ]
    rest = recovered.next_sequence, recovered.last_commit_time, recovered.replayed_records, recovered.replayed_bytes
    return {
        "batches": batches,
        "event_count": recovered.queue.event_count,
        "producers": producers,
        "ended": list(recovered.ended.items()),
        "rest": rest,
    }


def _plain(count: int, raw_bytes: int = _SMALL, *, is_stamped: bool = False) -> _Writer:
    writer = _Writer()
    for number in range(count):
        stamp = _stamp(number * _EVENTS, f"p{number % 3}") if is_stamped else None
        writer.commit(raw_bytes=raw_bytes, stamp=stamp)
    return writer


@pytest.mark.parametrize("raw_bytes", [_SMALL, _LARGE])
@pytest.mark.parametrize("is_stamped", [False, True])
def test_recover_of_plain_commits_is_the_same_at_once_and_one_by_one(
    raw_bytes: int, *, is_stamped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queue, producers, times and sequences are the same, over the borders of portions and of the queue's runs."""
    count = RUN_EVENTS_MAX
    records = _plain(count, raw_bytes, is_stamped=is_stamped).records
    found = CommitRun.of(records, 1)
    assert found is not None
    assert found.end_sequence == count * _EVENTS + 1
    recovered = _recovered(records)
    assert recovered.queue.event_count == count * _EVENTS
    assert len(recovered.ledger) == (3 if is_stamped else 0)
    assert _shown(recovered) == _shown(_one_by_one(records, monkeypatch))


_TAKE = pb.Take(first_sequences=[1], counts=[_EVENTS], body_bytes=[9])


def _with_a_take(writer: _Writer) -> None:
    writer.put()
    writer.message(Kind.TAKE, _TAKE)
    message = pb.Commit(first_sequence=writer.next_sequence, put_counts=[_EVENTS], put_body_bytes=[9], take_records=1)
    message.put_raw_bytes.append(_SMALL)
    writer.message(Kind.COMMIT, message)
    writer.next_sequence += _EVENTS


def _with_as_many_puts_as_commits(writer: _Writer) -> None:
    writer.commit(puts=2)
    writer.commit(puts=0)


def _with_puts_of_no_commit(writer: _Writer) -> None:
    writer.put()
    writer.add(Kind.SYNC_POINT, b"")
    writer.put()
    writer.commit()


_OTHERS: dict[str, Callable[[_Writer], object]] = {
    "transaction": lambda writer: writer.commit(txn_ids=["t"]),
    "two_puts": lambda writer: writer.commit(puts=2),
    "no_put": lambda writer: writer.commit(puts=0, stamp=_stamp(500)),
    "two_puts_and_no_put": _with_as_many_puts_as_commits,
    "offsets": lambda writer: writer.commit(commit_offsets=[0, 1, 2]),
    "one_stamp": lambda writer: writer.commit(stamp=_stamp(500)),
    "two_stamps": lambda writer: writer.commit(stamp=_stamp(500), more_stamps=[_stamp(600, "q")]),
    "forgotten": lambda writer: writer.commit(forgotten_producer_id="p0", stamp=_stamp(500, "p1")),
    "take": _with_a_take,
    "lost_puts": _with_puts_of_no_commit,
    "rollback": lambda writer: writer.message(Kind.ROLLBACK, pb.Rollback(txn_id="r")),
    "state": lambda writer: writer.message(Kind.STATE, pb.State(next_sequence=writer.next_sequence)),
}


@pytest.mark.parametrize("other", _OTHERS)
@pytest.mark.parametrize("is_stamped", [False, True])
def test_recover_of_other_commits_among_plain_ones_is_the_same_at_once_and_one_by_one(
    other: str, *, is_stamped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing that a commit does besides is overlooked, wherever it lies."""
    writer = _plain(10, is_stamped=is_stamped)
    _OTHERS[other](writer)
    for number in range(10, 20):
        writer.commit(stamp=_stamp(number * _EVENTS, "p1") if is_stamped else None)
    recovered = _recovered(writer.records)
    assert recovered.next_sequence == writer.next_sequence
    assert _shown(recovered) == _shown(_one_by_one(writer.records, monkeypatch))


def test_recover_of_commits_without_times_is_the_same_at_once_and_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an earlier version have none."""
    writer = _plain(10)
    for _ in range(10):
        writer.put()
        message = pb.Commit(first_sequence=writer.next_sequence, put_counts=[1], put_body_bytes=[3], put_raw_bytes=[9])
        writer.message(Kind.COMMIT, message)
        writer.next_sequence += 1
    recovered = _recovered(writer.records)
    assert [batch.commit_time for batch in recovered.queue][-1] == 0
    assert _shown(recovered) == _shown(_one_by_one(writer.records, monkeypatch))


def _broken(payload: bytes) -> _Writer:
    writer = _plain(10)
    writer.put()
    writer.add(Kind.COMMIT, payload)
    return writer


def _contradicting(**fields: Any) -> _Writer:
    writer = _plain(10)
    writer.commit(**fields)
    return writer


@pytest.mark.parametrize(
    "make",
    [
        partial(_contradicting, first_sequence=50),
        partial(_contradicting, take_records=1),
        partial(_contradicting, put_counts=[0], put_body_bytes=[0], put_raw_bytes=[0]),
        partial(_broken, b"\xff"),
    ],
    ids=["gap", "missing_take", "missing_put", "no_message"],
)
def test_recover_of_a_contradiction_among_plain_commits_names_its_record(make: Callable[[], _Writer]) -> None:
    """What is decoded at once is refused as precisely as what is not."""
    writer = make()
    place = writer.records[-1].location.position
    # With it there are as many puts as commits again.
    writer.put()
    writer.commit(puts=0)
    for _ in range(10):
        writer.commit()
    with pytest.raises(LogCorruptError, match=f"the record at byte {place} "):
        _recovered(writer.records)


def test_pairs_end_stops_at_what_is_no_pair() -> None:
    """A PUT without its COMMIT behind it, at the end too, belongs to no pair."""
    writer = _plain(2)
    writer.put()
    assert pairs_end(writer.records, 0) == 4
    assert pairs_end(writer.records, 1) == 1
    assert pairs_end(writer.records, 4) == 4


def test_run_of_few_commits_is_none() -> None:
    """They are applied one by one, as is what does not continue at the sequence."""
    records: Sequence[LogRecord] = _plain(4).records
    assert CommitRun.of(records[:6], 1) is None
    assert CommitRun.of(records, 2) is None
    assert CommitRun.of(records, 1) is not None
