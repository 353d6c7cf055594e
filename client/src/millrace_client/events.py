"""Events, their batches, stamps and receipts."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from itertools import accumulate, count, pairwise, repeat
from typing import Any, TypeAlias

from millrace.columns import ColumnsCutter, ColumnsError, CommitTimes, columns_from_events
from millrace.v1 import event_pb2
from millrace_client.errors import BadArgumentError

_NO_HEADERS: Mapping[str, str] = {}
_UNKNOWN_TIMES = CommitTimes()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Event:
    """One event."""

    body: bytes
    """The payload. Any bytes; empty is allowed."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header name to value; at most 256."""
    sequence: int | None = None
    """Its sequence in the channel; None if it is not stored yet. Not sent."""
    commit_time: datetime | None = field(default=None, compare=False)
    """When it was committed, UTC, by the server's clock; None if that is not known. Not sent."""


_set_body, _set_headers, _set_sequence, _set_commit_time = (vars(Event)[one.name].__set__ for one in fields(Event))


def _stored_event(body: bytes, headers: Mapping[str, str], sequence: int, commit_time: datetime | None) -> Event:
    """Creates an event in half the time of `Event(...)`, which sets frozen attributes one by one by their names."""
    event = object.__new__(Event)
    _set_body(event, body)
    _set_headers(event, headers)
    _set_sequence(event, sequence)
    _set_commit_time(event, commit_time)
    return event


Events: TypeAlias = Iterable[Event | bytes | str]
"""Events, or bodies alone. Text becomes UTF-8."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """The producer's own numbers of the events of a call, so that a repeat stores nothing twice.

    A stamp with as many numbers as events numbers each event, and the channel drops single events that it has accepted
    before. Any other stamp covers all events together.
    """

    producer_id: str
    """The producer's id: 1 to 128 printable ASCII characters."""
    first_sequence: int
    """The first number; may be 0."""
    last_sequence: int
    oldest_open_sequence: int | None = None
    """The producer will send no number below this one again, so that the channel need not remember them; at most
    `first_sequence`. None: unknown."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of an append or a commit."""

    first_sequence: int
    """The sequence of the first stored event; 0 if none was stored."""
    last_sequence: int
    """The sequence of the last stored event; 0 if none was stored."""
    deduplicated: bool
    """Whether some of the events were stored before, by the stamp; those were dropped."""
    commit_time: datetime | None = None
    """When it was committed, UTC, by the server's clock; None if all of the events were stored before."""


@dataclass(frozen=True, slots=True)
class FoundSequence:
    """The result of `find_sequence`."""

    sequence: int
    """The sequence of the event; the channel's next sequence if there is none."""
    commit_time: datetime | None
    """When the event was committed, UTC; None if there is none."""


class Batch:
    """Events with contiguous sequences, oldest first.

    They stay in the columns in which they arrived: each iteration creates `Event` objects one by one.
    """

    __slots__ = ("columns", "first_sequence", "skipped_events", "times")

    def __init__(
        self,
        first_sequence: int,
        columns: event_pb2.EventColumns,
        *,
        skipped_events: int = 0,
        times: CommitTimes = _UNKNOWN_TIMES,
    ) -> None:
        self.first_sequence = first_sequence
        """Sequence of the first event."""
        self.columns = columns
        """The events in columns; see `millrace.columns`."""
        self.skipped_events = skipped_events
        """Events left out just before this batch, because a follower was slower than the channel; only in peeks."""
        self.times = times
        """The times of the commits in microseconds."""

    @property
    def count(self) -> int:
        return self.columns.count

    @property
    def last_sequence(self) -> int:
        """Sequence of the last event."""
        return self.first_sequence + self.columns.count - 1

    @property
    def commit_time(self) -> datetime | None:
        """When the first event was committed, UTC, by the server's clock; None if that is not known.

        Known for all events but those that a release without commit times stored. Never earlier than the time of an
        event before it in the channel.
        """
        return _EPOCH + timedelta(microseconds=self.times.first) if self.times.first else None

    def commit_times(self) -> Iterator[datetime | None]:
        """Returns the time of each event, exact to the microsecond: the server may join events of several commits."""
        first, offsets = self.commit_time, self.times.offsets
        if first is None or not offsets:
            return repeat(first, self.columns.count)
        return (first + timedelta(0, 0, offset) for offset in offsets)

    def __len__(self) -> int:
        return self.columns.count

    def __iter__(self) -> Iterator[Event]:
        cutter = ColumnsCutter(self.columns)
        bodies, headers = cutter.bodies(0, cutter.count), cutter.headers(0, cutter.count)
        return map(_stored_event, bodies, headers, count(self.first_sequence), self.commit_times())

    def bodies(self) -> list[bytes]:
        """Returns all bodies; several times faster than iteration."""
        bodies = self.columns.bodies
        ends = accumulate(self.columns.body_sizes, initial=0)
        return [bodies[start:end] for start, end in pairwise(ends)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(first_sequence={self.first_sequence}, count={self.count})"


def columns_of(events: Events) -> list[event_pb2.EventColumns]:
    """Returns events in columns: one batch, or several if one cannot hold them; empty without events.

    Raises:
        BadArgumentError: An event has more than 256 headers, or a string is not UTF-8.
        TypeError: An element is not an event.
    """
    try:
        return columns_from_events(_rows(events))
    except (ColumnsError, UnicodeEncodeError) as error:
        raise BadArgumentError(f"events: {error}") from None


def _rows(events: Events) -> Iterator[tuple[Mapping[str, str], bytes]]:
    check_several(events)
    for event in events:
        if isinstance(event, bytes):
            yield _NO_HEADERS, event
        elif isinstance(event, Event):
            yield _checked(event)
        elif isinstance(event, str):
            yield _NO_HEADERS, event.encode()
        else:
            raise TypeError(f"events: holds a {type(event).__name__}; give Event, bytes or str")


def check_several(events: object) -> None:
    """Raises TypeError if this is no iterable of events."""
    # The characters of text, bytes as numbers, and the keys of a mapping would be used as events.
    if isinstance(events, (str, bytes, bytearray, Mapping)) or not isinstance(events, Iterable):
        raise TypeError(f"events: is a {type(events).__name__}; give a list of events")


def check_headers(headers: object) -> None:
    """Raises TypeError if headers are no mapping."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers: is a {type(headers).__name__}; give a dict of header names to values")


def _checked(event: Event) -> tuple[Mapping[str, str], bytes]:
    # Without a type checker, the error should name the malformed event rather than the place where encoding fails.
    body: object = event.body
    headers: Mapping[Any, object] = event.headers
    if not isinstance(body, bytes):
        raise TypeError(f"body: is a {type(body).__name__}; give bytes")
    try:
        pairs = headers.items()
    except AttributeError:
        check_headers(headers)
        raise
    for key, value in pairs:
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError(f"headers: holds {key!r}: {value!r}; keys and values must be str")
    return event.headers, body
