"""A channel writer that records its events, for tests of sources."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable
from millrace_server.agent.sources.source import Source
from millrace_server.channels.stamps import Stamp

WAIT_SECONDS_MAX = 60.0

Row = tuple[dict[str, str], bytes]


class RecordingWriter:
    """Stores each number of a producer once, as channels do.

    Attributes:
        rows: All events that were stored.
        batch_sizes: The number of events in each batch.
        refusals: The exceptions of the next offers and deliveries; None if they are stored.
        dropped_count: The number of events that the source has reported as lost.
        may_store: While it is not set, nothing is stored and deliveries wait.
    """

    def __init__(self, events_max: int = 1_000) -> None:
        self.events_max = events_max
        self.rows: list[Row] = []
        self.batch_sizes: list[int] = []
        self.refusals: list[Exception | None] = []
        self.dropped_count = 0
        self.may_store = asyncio.Event()
        self.may_store.set()
        self.ready = asyncio.Event()
        self.waiting = asyncio.Event()
        self._stored: set[tuple[str, int]] = set()
        self._news = asyncio.Condition()
        self._next_number = 1

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.rows]

    def report_running(self) -> None:
        self.ready.set()

    def count_dropped(self, count: int) -> None:
        self.dropped_count += count

    def next_stamp(self, count: int) -> Stamp:
        first = self._next_number
        self._next_number += count
        return Stamp("run", first, first + count - 1)

    def stored_ranges(self, producer_id: str) -> list[list[tuple[int, int]]]:
        return [sorted((number, number) for one, number in self._stored if one == producer_id)]

    async def deliver(self, table: EventTable, stamp: Stamp) -> None:
        self.waiting.set()
        await self.may_store.wait()
        if self.refusals and (refusal := self.refusals.pop(0)) is not None:
            raise refusal
        rows = list(table.rows())
        assert stamp.span == len(rows)
        numbered = zip(range(stamp.first, stamp.last + 1), rows, strict=True)
        new = [(number, row) for number, row in numbered if (stamp.producer_id, number) not in self._stored]
        self._stored |= {(stamp.producer_id, number) for number, _ in new}
        async with self._news:
            self.rows += [row for _, row in new]
            self.batch_sizes.append(len(rows))
            self._news.notify_all()

    try_deliver = deliver

    async def wait_for(self, count: int) -> list[Row]:
        """Waits until this many events are stored; returns all events."""
        async with asyncio.timeout(WAIT_SECONDS_MAX), self._news:
            await self._news.wait_for(lambda: len(self.rows) >= count)
        return self.rows


@asynccontextmanager
async def running(source: Source, channel_writer: RecordingWriter) -> "AsyncIterator[asyncio.Task[None]]":
    """A running source; at the end of the block it is cancelled, as by the agent, and must end without an error."""
    channel_writer.ready.clear()
    work = asyncio.create_task(source.run(cast("ChannelWriter", channel_writer)))
    is_ready = asyncio.create_task(channel_writer.ready.wait())
    await asyncio.wait({work, is_ready}, timeout=WAIT_SECONDS_MAX, return_when=asyncio.FIRST_COMPLETED)
    is_ready.cancel()
    try:
        yield work
    finally:
        work.cancel()
        await asyncio.wait({work}, timeout=WAIT_SECONDS_MAX)
        assert work.done(), "the source does not end"
