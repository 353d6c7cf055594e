"""Operations of several calls, without client or server: the tests drive the sequences of calls."""

from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

import millrace_client as millrace
from millrace.columns import columns_from_events
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace_client import _call_sequences
from millrace_client._call_sequences import CallSequence, TxnCalls, encoded_parts
from millrace_client._calls import Call, TakeLimits
from millrace_client._decoding import Taken
from millrace_client._settings import Numbering

T = TypeVar("T")
RECEIPT = millrace.Receipt(1, 3, deduplicated=False)


def drive(sequence: CallSequence[T], *outcomes: Any) -> tuple[T, list[Call[Any]]]:
    """Responds to the calls of a sequence with these results and errors; returns its result and the calls."""
    calls: list[Call[Any]] = []
    remaining = iter(outcomes)
    try:
        calls.append(next(sequence))
        while True:
            outcome = next(remaining)
            calls.append(sequence.throw(outcome) if isinstance(outcome, BaseException) else sequence.send(outcome))
    except StopIteration as end:
        assert next(remaining, None) is None, "the sequence made fewer calls than it was expected to"
        result: T = end.value
        return result, calls


def columns(*bodies: bytes) -> event_pb2.EventColumns:
    """The columns of one batch."""
    [batch] = columns_from_events([({}, body) for body in bodies])
    return batch


def bodies_of(parts: list[bytes]) -> Iterator[bytes]:
    """The bodies in encoded columns."""
    for part in parts:
        yield from millrace.Batch(1, event_pb2.EventColumns.FromString(part)).bodies()


def test_encoded_parts_within_the_limit_are_one() -> None:
    """Columns within the limit are used unchanged."""
    batch = columns(b"a", b"b")
    assert encoded_parts([batch]) == [batch.SerializeToString()]


@pytest.mark.parametrize("event_count", [2, 3, 17, 100])
def test_encoded_parts_above_the_limit_are_cut(event_count: int) -> None:
    """Each part fits, and together they contain all events in order."""
    bodies = [bytes([index]) * 100 for index in range(event_count)]
    parts = encoded_parts([columns(*bodies)], bytes_max=250)
    assert max(map(len, parts)) <= 250
    assert list(bodies_of(parts)) == bodies


def test_encoded_parts_with_one_event_too_large_is_refused() -> None:
    """An event cannot be split."""
    with pytest.raises(millrace.EventTooLargeError, match="250"):
        encoded_parts([columns(b"a", bytes(300), b"b")], bytes_max=250)


def test_append_above_the_message_limit_is_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction begins, puts each part after the last one, and commits under the stamp."""
    monkeypatch.setattr(_call_sequences.encoded_parts, "__defaults__", (250,))
    stamp = millrace.Stamp("p", 5, 7)
    sequence = _call_sequences.append("orders", [columns(*[bytes(100)] * 3)], stamp, Numbering(), "t1")
    receipt, calls = drive(sequence, 30.0, 1, 3, RECEIPT)
    assert receipt == RECEIPT
    begin, first, second, commit = (call.request for call in calls)
    puts = [pb.PutRequest.FromString(request) for request in (first, second)]
    assert [put.put_offset for put in puts] == [0, 1]
    assert {begin.txn_id, *(put.txn_id for put in puts), *commit.txn_ids} == {"t1"}
    assert (commit.stamp.first_sequence, commit.stamp.last_sequence) == (5, 7)


def test_append_of_a_cancelled_caller_rolls_back() -> None:
    """Cancellation of an asyncio task is treated as an error, and propagates."""
    batches = [columns(b"a"), columns(b"b")]
    sequence = _call_sequences.append("orders", batches, None, Numbering(), "t1")
    with pytest.raises(KeyboardInterrupt):
        drive(sequence, 30.0, 1, KeyboardInterrupt(), None)


def test_flow_that_is_closed_makes_no_more_calls() -> None:
    """A sequence that was closed cannot roll back any more; the lease does it."""
    txn = TxnCalls("orders", "t1", None)
    sequence = txn.leave(None)
    next(sequence)
    sequence.close()


def test_put_whose_second_part_is_refused_forbids_the_commit() -> None:
    """A part of the put is stored, so neither repeating the put nor committing would be right."""
    txn = TxnCalls("orders", "t1", None)
    with pytest.raises(millrace.TxnCapacityError):
        drive(txn.put([b"", b""]), 1, millrace.TxnCapacityError("too many"))
    for sequence in (txn.put([b""]), txn.take(TakeLimits()), txn.commit(None)):
        with pytest.raises(millrace.TxnStateError, match="last put"):
            drive(sequence)


def test_take_that_was_cut_off_forbids_the_commit_until_it_is_repeated() -> None:
    """A cancelled take may have taken events; a repeat returns the same ones."""
    txn = TxnCalls("orders", "t1", None)
    with pytest.raises(KeyboardInterrupt):
        drive(txn.take(TakeLimits()), KeyboardInterrupt())
    with pytest.raises(millrace.TxnStateError, match="last take"):
        drive(txn.commit(None))
    drive(txn.take(TakeLimits()), Taken([], 3))
    receipt, _ = drive(txn.commit(None), RECEIPT)
    assert receipt == RECEIPT


def test_take_that_was_refused_changes_nothing() -> None:
    """A refused take has taken nothing."""
    txn = TxnCalls("orders", "t1", None)
    with pytest.raises(millrace.TxnCapacityError):
        drive(txn.take(TakeLimits()), millrace.TxnCapacityError("too many"))
    drive(txn.commit(None), RECEIPT)


def test_take_whose_response_was_too_large_forbids_the_commit() -> None:
    """The response may be lost in the client as well; the events are taken all the same."""
    txn = TxnCalls("orders", "t1", None)
    with pytest.raises(millrace.MessageTooLargeError):
        drive(txn.take(TakeLimits()), millrace.MessageTooLargeError("response"))
    with pytest.raises(millrace.TxnStateError, match="last take"):
        drive(txn.commit(None))
