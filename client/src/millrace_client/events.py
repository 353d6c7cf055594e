"""Events: as producers give them, as channels give them back, and what stands beside them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

from millrace.columns import ColumnsCutter, ColumnsError, columns_from_events
from millrace.v1 import event_pb2
from millrace_client.errors import BadArgumentError

_NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Event:
    """One event."""

    body: bytes
    """The payload. Any bytes; empty is allowed."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header name to value; at most 256."""
    sequence: int | None = None
    """The number that the channel gave it; None where it is not stored yet. Not sent."""


Events: TypeAlias = Iterable[Event | bytes | str]
"""What can be stored: events, or bodies alone. Text becomes UTF-8."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Names, in the producer's own numbering, what a call stores, so that a repeat stores nothing twice.

    A stamp that spans as many numbers as there are events numbers each event, and those that the channel has accepted
    before are dropped one by one. Any other stamp covers the whole, all or nothing.
    """

    producer_id: str
    """Who numbers: 1 to 128 printable ASCII characters."""
    first_sequence: int
    """First number, included; may be 0."""
    last_sequence: int
    """Last number, included."""
    oldest_open_sequence: int | None = None
    """The producer never sends a number below this one any more, so that the channel need not remember which of those
    it has had; at most `first_sequence`. None: nothing is said."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was stored."""

    first_sequence: int
    """Sequence of the first stored event; 0 where none was stored."""
    last_sequence: int
    """Sequence of the last stored event; 0 where none was stored."""
    deduplicated: bool
    """True where the stamp showed that some of the events were stored before; those were dropped."""


class Batch:
    """Events with contiguous sequences, oldest first.

    They stay in the columns that they came in: iterating makes `Event` objects one by one, each time anew.
    """

    __slots__ = ("columns", "first_sequence", "skipped_events")

    def __init__(self, first_sequence: int, columns: event_pb2.EventColumns, *, skipped_events: int = 0) -> None:
        self.first_sequence = first_sequence
        """Sequence of the first event."""
        self.columns = columns
        """The events as they travelled; see `millrace.columns`."""
        self.skipped_events = skipped_events
        """Events left out just before this batch, because a follower was slower than the channel; only in peeks."""

    @property
    def count(self) -> int:
        """Events in the batch."""
        return self.columns.count

    @property
    def last_sequence(self) -> int:
        """Sequence of the last event."""
        return self.first_sequence + self.columns.count - 1

    def __len__(self) -> int:
        return self.columns.count

    def __iter__(self) -> Iterator[Event]:
        rows = ColumnsCutter(self.columns).rows(0, self.columns.count)
        for sequence, (headers, body) in enumerate(rows, self.first_sequence):
            yield Event(body, headers, sequence)

    def bodies(self) -> list[bytes]:
        """All bodies, without making events: several times as fast as iterating."""
        bodies = self.columns.bodies
        ends = accumulate(self.columns.body_sizes, initial=0)
        return [bodies[start:end] for start, end in pairwise(ends)]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(first_sequence={self.first_sequence}, count={self.count})"


def columns_of(events: Events) -> list[event_pb2.EventColumns]:
    """All events, in one batch but for those that one batch cannot hold; none for no events.

    Raises:
        BadArgumentError: An event has more than 256 headers, or a text is not UTF-8.
        TypeError: Something is no event.
    """
    try:
        return columns_from_events(_rows(events))
    except (ColumnsError, UnicodeEncodeError) as error:
        raise BadArgumentError(f"events: {error}") from None


def _rows(events: Events) -> Iterator[tuple[Mapping[str, str], bytes]]:
    if isinstance(events, (str, bytes, bytearray)):
        # Its letters, or its bytes as numbers, would be taken for events.
        raise TypeError(f"events: is one {type(events).__name__}; give a list of events")
    for event in events:
        if isinstance(event, bytes):
            yield _NO_HEADERS, event
        elif isinstance(event, Event):
            yield _checked(event)
        elif isinstance(event, str):
            yield _NO_HEADERS, event.encode()
        else:
            raise TypeError(f"events: holds a {type(event).__name__}; give Event, bytes or str")


def _checked(event: Event) -> tuple[Mapping[str, str], bytes]:
    # Whoever does without a type checker is to hear which event is wrong, not where the encoding stumbled over it.
    body: object = event.body
    headers: Mapping[Any, object] = event.headers
    if not isinstance(body, bytes):
        raise TypeError(f"body: is a {type(body).__name__}; give bytes")
    for key, value in headers.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError(f"headers: holds {key!r}: {value!r}; keys and values must be str")
    return event.headers, body
