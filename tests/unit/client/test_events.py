"""Conversion of events to columns, and of batches to events."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace_client as millrace
from millrace.columns import CommitTimes, columns_from_events
from millrace.v1 import event_pb2
from millrace_client.events import columns_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HEADERS = st.dictionaries(st.sampled_from(["host", "größe", "", "id"]), st.text(max_size=5))
EVENTS = st.lists(st.builds(millrace.Event, st.binary(max_size=9), HEADERS), min_size=1, max_size=12)


@given(EVENTS, st.integers(1, 1 << 40))
def test_events_come_back_as_they_went(events: list[millrace.Event], first_sequence: int) -> None:
    """A batch returns what was appended, with numbers."""
    [columns] = columns_of(events)
    batch = millrace.Batch(first_sequence, columns)
    assert [(event.body, event.headers) for event in batch] == [(event.body, event.headers) for event in events]
    assert [event.sequence for event in batch] == list(range(first_sequence, first_sequence + len(events)))
    assert batch.bodies() == [event.body for event in events]
    assert (batch.count, len(batch)) == (len(events), len(events))
    assert batch.last_sequence == first_sequence + len(events) - 1


@given(st.lists(st.binary(max_size=9) | st.text(max_size=9), min_size=1))
def test_bare_bodies_have_no_headers(bodies: list[bytes | str]) -> None:
    """Bytes are bodies, and strings are encoded as UTF-8."""
    [columns] = columns_of(bodies)
    encoded = [body.encode() if isinstance(body, str) else body for body in bodies]
    assert [columns] == columns_from_events(({}, body) for body in encoded)


@given(st.lists(st.integers(0, (1 << 32) - 1), max_size=5), st.integers(1, 4_000_000_000_000_000))
def test_batch_tells_when_each_event_was_committed(later: list[int], first: int) -> None:
    """Times are exact to the microsecond; without offsets all events have the first one's."""
    [columns] = columns_of([b"a"] * (len(later) or 3))
    batch = millrace.Batch(1, columns, times=CommitTimes(first, later))
    expected = [EPOCH + timedelta(microseconds=first + offset) for offset in later or [0, 0, 0]]
    assert list(batch.commit_times()) == [event.commit_time for event in batch] == expected
    assert batch.commit_time == EPOCH + timedelta(microseconds=first)
    assert expected[0].utcoffset() == timedelta(0)


def test_batch_of_an_older_release_has_no_times() -> None:
    """Events that were stored without a time have None, never 1970."""
    [columns] = columns_of([b"a", b"b"])
    wire = event_pb2.EventBatch(first_sequence=1, columns=columns)
    batch = millrace.Batch(1, columns, times=CommitTimes.of(wire))
    assert batch.commit_time is None
    assert list(batch.commit_times()) == [event.commit_time for event in batch] == [None, None]


def test_events_differ_by_what_is_sent_not_by_when() -> None:
    """An event that comes back equals the one that was appended under its sequence."""
    [columns] = columns_of([millrace.Event(b"a", {"host": "x"})])
    [event] = millrace.Batch(7, columns, times=CommitTimes(1))
    assert event == millrace.Event(b"a", {"host": "x"}, 7)


def test_batch_may_be_iterated_again() -> None:
    """A batch may be iterated repeatedly."""
    [columns] = columns_of([b"a", b"b"])
    batch = millrace.Batch(1, columns)
    assert list(batch) == list(batch)


def test_events_of_nothing_are_no_batches() -> None:
    """Without events there are no columns."""
    assert columns_of([]) == []


@pytest.mark.parametrize("single", [b"abc", "abc", bytearray(b"abc"), None, 7, {"body": b"a"}, millrace.Event(b"a")])
def test_single_event_is_not_taken_for_many(single: Any) -> None:
    """Neither characters nor keys become events, and what is no list at all is named."""
    with pytest.raises(TypeError, match=f"events: is a {type(single).__name__}; give a list of events"):
        columns_of(single)


# As made by callers that use no type checker.
_TEXT: Any = "text"
_NUMBER: Any = 200


@pytest.mark.parametrize("stranger", [7, None, bytearray(b"a"), {"body": b"a"}, millrace.Event(_TEXT)])
def test_stranger_among_events_is_named(stranger: Any) -> None:
    """Other objects are refused by their type."""
    with pytest.raises(TypeError):
        columns_of([b"a", stranger])


def test_header_that_is_no_text_is_named() -> None:
    """Numbers are not converted to strings."""
    with pytest.raises(TypeError, match="status"):
        columns_of([millrace.Event(b"", {"status": _NUMBER})])


@pytest.mark.parametrize("headers", [[("a", "b")], "text", None])
def test_headers_that_are_no_mapping_are_named(headers: Any) -> None:
    """A list of pairs, as other clients take them, says what to give instead."""
    with pytest.raises(TypeError, match=f"headers: is a {type(headers).__name__}; give a dict"):
        columns_of([millrace.Event(b"x", headers)])


def test_event_with_too_many_headers_is_refused() -> None:
    """No batch can hold the event, so the error says what is allowed."""
    with pytest.raises(millrace.BadArgumentError, match="256"):
        columns_of([millrace.Event(b"", {str(key): "" for key in range(257)})])


def test_text_that_is_no_unicode_is_refused() -> None:
    """Half a surrogate pair has no encoding in UTF-8."""
    with pytest.raises(millrace.BadArgumentError):
        columns_of(["\ud800"])


def test_event_is_frozen() -> None:
    """An event cannot be changed."""
    with pytest.raises(AttributeError):
        millrace.Event(b"a").body = b"b"  # type: ignore[misc]  # what the type checker forbids
