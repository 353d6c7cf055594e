"""Reads events in a channel without taking them: from a position on, or as they are committed."""

import asyncio
import base64
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, Field

from millrace.json_bodies import body_document
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import TimeSlices
from millrace_server.console.documents import time_of
from millrace_server.errors import BadArgumentError

SCANNED_EVENTS_MAX = 20_000
"""Maximum number of events that one request scans, even if few of them match."""

SCANNED_BYTES_MAX = 16 << 20
"""Maximum size of the bodies that one request scans."""

SHOWN_BYTES_MAX = 4 << 20
"""Maximum size of the bodies in one response."""

FOLLOWED_EVENTS_MAX = 100
"""Maximum number of events in one message to a follower; the others are counted."""

_FOLLOWED_SCANNED_MAX = 1_000
_MESSAGE_SECONDS = 0.5
_HEARTBEAT_SECONDS = 10.0
_MICROS = 1_000_000

SequenceNumber = Annotated[int, Field(ge=0, lt=1 << 63)]


class SearchQuery(BaseModel, extra="forbid"):
    """Which events match, and how much of them is shown."""

    search: Annotated[str, Field(max_length=200)] = ""
    body_bytes_max: Annotated[int, Field(ge=0, le=1 << 20)] = 2_048


class FollowQuery(SearchQuery):
    """The same for events as they are committed, which may be many."""

    body_bytes_max: Annotated[int, Field(ge=0, le=16 << 10)] = 2_048


class EventsQuery(SearchQuery):
    """Where the search for events begins, and how many are shown."""

    from_sequence: SequenceNumber | None = None
    from_time: Annotated[float, Field(gt=0, lt=1e11)] | None = None
    max_events: Annotated[int, Field(ge=1, le=500)] = 50


class LinesQuery(EventsQuery):
    """The same for events as lines. Bodies are never cut, so that each line can be put again."""

    body_bytes_max: Annotated[int, Field(ge=SCANNED_BYTES_MAX, le=SCANNED_BYTES_MAX)] = SCANNED_BYTES_MAX


class ShownEvent(NamedTuple):
    """An event in a channel."""

    sequence: int
    commit_time: int
    """In microseconds since 1970; 0 if it is not known."""
    headers: Mapping[str, str]
    body: bytes

    def contains(self, needle: str) -> bool:
        """Whether a text in lower case is in a header or in the body, regardless of the case of ASCII letters."""
        if any(needle in text.lower() for header in self.headers.items() for text in header):
            return True
        return needle.encode() in self.body.lower()

    def document(self, body_bytes_max: int) -> dict[str, Any]:
        return {
            "sequence": self.sequence,
            "commit_time": time_of(self.commit_time),
            "headers": list(self.headers.items()),
            "body_base64": base64.b64encode(self.body[:body_bytes_max]).decode(),
            "body_bytes": len(self.body),
            "is_cut": len(self.body) > body_bytes_max,
        }

    def line(self) -> dict[str, Any]:
        """Returns the event as `millrace take --json` writes it and `millrace put --json-lines` reads it."""
        time = datetime.fromtimestamp(self.commit_time / _MICROS, UTC).isoformat(timespec="microseconds")
        commit_time = time if self.commit_time else None
        shown = {"sequence": self.sequence, "commit_time": commit_time, "headers": dict(self.headers)}
        return shown | body_document(self.body)


Describe = Callable[[ShownEvent], dict[str, Any] | None]
"""Returns the document of an event; None if it does not match."""


def describe_matching(query: SearchQuery) -> Describe:
    """Returns a function that describes the events that match a query."""
    needle = query.search.lower()
    return lambda event: event.document(query.body_bytes_max) if not needle or event.contains(needle) else None


def line_of_matching(query: LinesQuery) -> Describe:
    """Returns a function that describes the events that match a query as lines."""
    needle = query.search.lower()
    return lambda event: event.line() if not needle or event.contains(needle) else None


async def browse(channel: Channel, query: EventsQuery, describe: Describe) -> dict[str, Any]:
    """Returns matching events from a position on, within the limits of one request."""
    scan = _Scan(query, describe)
    next_sequence = _start(channel, query)
    is_end = True
    async with aclosing(_queued(channel, next_sequence)) as events:
        async for event in events:
            if scan.is_over:
                is_end = False
                break
            scan.look_at(event)
            next_sequence = event.sequence + 1
    return {
        "events": scan.shown,
        "next_sequence": max(next_sequence, channel.next_sequence) if is_end else next_sequence,
        "scanned_count": scan.event_count,
        "is_end": is_end,
        "first_sequence": channel.first_sequence,
        "end_sequence": channel.next_sequence,
    }


class _Scan:
    """The progress of one request: what it has scanned and found."""

    def __init__(self, query: EventsQuery, describe: Describe) -> None:
        self._query = query
        self._describe = describe
        self.shown: list[dict[str, Any]] = []
        self.event_count = 0
        self._body_bytes = 0
        self._shown_bytes = 0

    @property
    def is_over(self) -> bool:
        return (
            len(self.shown) >= self._query.max_events
            or self.event_count >= SCANNED_EVENTS_MAX
            or self._body_bytes >= SCANNED_BYTES_MAX
            or self._shown_bytes >= SHOWN_BYTES_MAX
        )

    def look_at(self, event: ShownEvent) -> None:
        self.event_count += 1
        self._body_bytes += len(event.body)
        if (described := self._describe(event)) is not None:
            self.shown.append(described)
            self._shown_bytes += min(len(event.body), self._query.body_bytes_max)


def _start(channel: Channel, query: EventsQuery) -> int:
    if query.from_time is None:
        return query.from_sequence or channel.first_sequence
    if query.from_sequence is not None:
        raise BadArgumentError("from_time: is given together with from_sequence; set only one of them")
    return channel.first_since(int(query.from_time * _MICROS))[0]


async def _queued(channel: Channel, from_sequence: int) -> AsyncGenerator[ShownEvent]:
    slices = TimeSlices()
    async with aclosing(channel.queued(from_sequence)) as batches:
        async for batch in batches:
            for event in _events_of(batch):
                await slices.pause_if_over()
                yield event


def _events_of(batch: StoredBatch) -> Iterator[ShownEvent]:
    for index, (headers, body) in enumerate(batch.window.rows()):
        yield ShownEvent(batch.first_sequence + index, batch.time_at(index), headers, body)


async def follow(channel: Channel, describe: Describe) -> AsyncGenerator[dict[str, Any] | None]:
    """Yields events as they are committed, at most a few messages a second; None if there were none for a while."""
    subscriber = channel.subscribe()
    try:
        while True:
            try:
                async with asyncio.timeout(_HEARTBEAT_SECONDS):
                    news = await subscriber.next_batch()
            except TimeoutError:
                yield None
                continue
            if news is None:
                channel.refuse_if_closed()
                return
            batches, skipped_count = deque([news[1]]), news[0]
            while subscriber.has_news and (news := await subscriber.next_batch()) is not None:
                batches.append(news[1])
                skipped_count += news[0]
            yield _message(batches, skipped_count, describe)
            await asyncio.sleep(_MESSAGE_SECONDS)
    finally:
        channel.unsubscribe(subscriber)


def _message(batches: deque[StoredBatch], skipped_count: int, describe: Describe) -> dict[str, Any]:
    """Returns the newest matching events, as many as a page can show, and the number of others."""
    shown: deque[dict[str, Any]] = deque()
    left = _FOLLOWED_SCANNED_MAX
    while batches and left and len(shown) < FOLLOWED_EVENTS_MAX:
        batch = batches.pop()
        seen = batch.part(max(batch.count - left, 0), batch.count)
        skipped_count += batch.count - seen.count
        left -= seen.count
        matching = [described for event in _events_of(seen) if (described := describe(event)) is not None]
        fitting = matching[-(FOLLOWED_EVENTS_MAX - len(shown)) :]
        skipped_count += len(matching) - len(fitting)
        shown.extendleft(reversed(fitting))
    return {"events": list(shown), "skipped_count": skipped_count + sum(batch.count for batch in batches)}
