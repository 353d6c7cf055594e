"""Batches: what is sent, answered and sent again as a whole."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from millrace.columns import ColumnsCutter
from millrace_client.errors import MillraceError
from millrace_client.events import Stamp
from millrace_client.producing.encoding import columns_of_request, request_of_columns, request_of_pages
from millrace_client.producing.lanes import Gathering, Lane
from millrace_client.producing.pages import Page
from millrace_client.producing.results import SendAttempt

if TYPE_CHECKING:
    from millrace_client.producing.servers import Outlet


class Part(NamedTuple):
    """Events of one page that lie side by side in a batch."""

    page: Page
    start: int
    stop: int


@dataclass(slots=True, eq=False)
class Batch:
    """Encoded once, with a stamp that never changes: so the server that stored it knows it again.

    It holds the lanes of its keys until it is settled, and those that follow it on the same lanes wait for it.
    """

    gathering: Gathering
    parts: Sequence[Part]
    stamp: Stamp
    request: bytes
    born: float
    """When its first event came."""
    timed_from: float
    """From when its delivery time counts."""
    held_bytes: int
    """What it takes of the buffer."""
    attempts: deque[SendAttempt]
    lanes: list[Lane] = field(default_factory=list)
    followers: deque["Batch"] = field(default_factory=deque)
    """Parts of a batch that was split: they take over its lanes one after the other."""
    attempt_count: int = 0
    doubted: "Outlet | None" = None
    """Where it may have been stored, for all that is known."""
    doubted_at: float = 0.0
    sent_at: float = 0.0
    last_error: MillraceError | None = None

    @property
    def count(self) -> int:
        """Events in it."""
        return self.stamp.last_sequence - self.stamp.first_sequence + 1

    def note_attempt(self, server: str, error: MillraceError | None) -> SendAttempt:
        """Remembers how an attempt ended."""
        attempt = SendAttempt(
            time=datetime.now(UTC),
            server=server,
            reason="" if error is None else error.reason,
            message="" if error is None else error.message,
        )
        self.attempts.append(attempt)
        self.attempt_count += 1
        self.last_error = error
        return attempt


def seal(  # noqa: PLR0913, PLR0917 - what the engine knows of a batch, each once
    gathering: Gathering, pages: Sequence[Page], lanes: list[Lane], stamp: Stamp, attempts_kept_max: int, now: float
) -> Batch:
    """Makes a batch of pages, and lets go of what they held."""
    born = min(page.born for page in pages)
    request = request_of_pages(gathering.channel, stamp, pages)
    for page in pages:
        page.drop_content()
    return Batch(
        gathering=gathering,
        parts=[Part(page, page.dropped_count, page.count) for page in pages],
        stamp=stamp,
        request=request,
        born=born,
        # What is ordered waits for what was before it; only from here on it is its own failures that take time.
        timed_from=now if gathering.is_ordered else born,
        held_bytes=sum(page.held_bytes for page in pages),
        attempts=deque(maxlen=attempts_kept_max),
        lanes=lanes,
    )


def split_in_halves(batch: Batch) -> list[Batch]:
    """Two batches of half the events each, which keep their numbers."""
    return _cut(batch, [0, batch.count // 2, batch.count])


def split_by_size(batch: Batch, bytes_max: int) -> list[Batch]:
    """Parts of about so many bytes, at least two; where one event has most of the bytes, it and what is around it."""
    sizes = columns_of_request(batch.request).body_sizes[:]
    if 2 * max(sizes) > sum(sizes):
        return split_around_largest(batch)
    part_count = min(max(math.ceil(len(batch.request) / bytes_max), 2), batch.count)
    return _cut(batch, [batch.count * index // part_count for index in range(part_count + 1)])


def split_around_largest(batch: Batch) -> list[Batch]:
    """The events before the largest one, that one alone, and those behind it."""
    sizes = columns_of_request(batch.request).body_sizes[:]
    index = sizes.index(max(sizes))
    return _cut(batch, sorted({0, index, index + 1, batch.count}))


def _cut(batch: Batch, borders: Sequence[int]) -> list[Batch]:
    """Batches that take the place of one. The first has its lanes and is followed by the others."""
    cutter = ColumnsCutter(columns_of_request(batch.request))
    first_number = batch.stamp.first_sequence
    pieces = []
    held_left = batch.held_bytes
    for start, stop in pairwise(borders):
        stamp = Stamp(batch.stamp.producer_id, first_number + start, first_number + stop - 1)
        held = held_left if stop == batch.count else batch.held_bytes * (stop - start) // batch.count
        held_left -= held
        pieces.append(
            Batch(
                gathering=batch.gathering,
                parts=_parts_between(batch.parts, start, stop),
                stamp=stamp,
                request=request_of_columns(batch.gathering.channel, stamp, cutter.cut(start, stop)),
                born=batch.born,
                timed_from=batch.timed_from,
                held_bytes=held,
                attempts=batch.attempts.copy(),
                attempt_count=batch.attempt_count,
                doubted=batch.doubted,
                doubted_at=batch.doubted_at,
                last_error=batch.last_error,
            )
        )
    pieces[0].lanes = batch.lanes
    pieces[0].followers = deque([*pieces[1:], *batch.followers])
    return pieces


def _parts_between(parts: Sequence[Part], start: int, stop: int) -> list[Part]:
    chosen = []
    offset = 0
    for part in parts:
        count = part.stop - part.start
        first, last = max(start - offset, 0), min(stop - offset, count)
        if first < last:
            chosen.append(Part(part.page, part.start + first, part.start + last))
        offset += count
    return chosen
