"""Reads on a thread, one portion ahead of its use."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, NoReturn, TypeVar

import structlog

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable
from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.lines.lines import Lines
from millrace_server.agent.lines.splitter import LinesError, LineSplitter
from millrace_server.agent.supervision import ComponentError, ComponentFailedError
from millrace_server.agent.worker_thread import WorkerThread
from millrace_server.channels.stamps import Stamp

PortionT = TypeVar("PortionT")


class ReadAhead(Generic[PortionT]):
    """Has the next portion read while the one before it is used.

    Args:
        read: The next portion, None at the end.
        thread: Where it is called.
    """

    def __init__(self, read: Callable[[], PortionT | None], thread: WorkerThread) -> None:
        self._read = read
        self._thread = thread
        self._reading = self._begin()

    def _begin(self) -> "asyncio.Future[PortionT | None]":
        return self._thread.submit(self._read)

    async def next(self) -> PortionT | None:
        """The next portion, None at the end; raises what reading it has raised. May be cancelled and called again."""
        # Shielded, since a thread goes on whatever happens to those who wait for it.
        portion = await asyncio.shield(self._reading)
        if portion is not None:
            self._reading = self._begin()
        return portion

    async def close(self) -> None:
        """Waits until nothing is being read any more; what was read and not used is forgotten."""
        await asyncio.wait({self._reading})


_BATCH_BYTES = 4 << 20
"""A batch with so many bytes of bodies is stored, however few events it has."""


Read = Callable[[], Awaitable[bytes]]
"""The next bytes, as soon as there are any; none at the end. Nothing is lost where it is cancelled."""


class LineStream:
    """Cuts what is read into lines, and stores them in batches: full ones, and others after they waited a while.

    Nothing is read while a batch is being stored, so that whoever writes waits as long as channels are full. What was
    read stays here until it is stored, whatever fails in between.

    Lines are joined on a thread: a regular expression may take long on them, and whoever writes them may know how.

    Args:
        lines: What a line is.
        linger_seconds: A batch is stored this long after its first event, full or not.
        log: Told of what is lost.
    """

    def __init__(self, lines: LinesConfig, linger_seconds: float, log: structlog.stdlib.BoundLogger) -> None:
        self._lines = lines
        self._log = log
        self._splitter = LineSplitter(lines)
        self._thread = WorkerThread("lines")
        self._joining: asyncio.Future[Lines] | None = None
        self._linger_seconds = linger_seconds
        self._bodies: list[bytes] = []
        self._body_bytes = 0
        self._sealed: tuple[EventTable, Stamp] | None = None
        self._seal_at = 0.0
        self._event_ends_at = 0.0

    @property
    def _unstored_count(self) -> int:
        return len(self._bodies) + (self._sealed[0].count if self._sealed else 0)

    async def bring(self, writer: ChannelWriter, read: Read) -> None:
        """Reads to the end, and returns once all is stored. What is read after that begins with a new line.

        Args:
            writer: Stores events.
            read: Gives what is to be cut.

        Raises:
            ComponentFailedError: A line is not in its charset, and that is not allowed.
        """
        await self._take_joined(writer)
        while data := await self._next(writer, read):
            await self._split(writer, partial(LineSplitter.feed, data=data))
            if self._lines.multiline is not None:
                self._event_ends_at = self._now() + self._lines.multiline.timeout_seconds
        await self._split(writer, LineSplitter.finish)
        self._splitter = LineSplitter(self._lines)
        await self._store(writer)

    async def bring_rest(self, writer: ChannelWriter, read: Read, timeout_seconds: float) -> None:
        """Reads to the end and stores, as `bring` does, but no longer than that; the log is told of what is lost."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.bring(writer, read)
        except (TimeoutError, ComponentError) as error:
            self._log.warning(
                "the source ends before all that it has read could be stored",
                events_lost=self._unstored_count,
                reason=str(error) or "there was no room in time",
            )

    async def _next(self, writer: ChannelWriter, read: Read) -> bytes:
        """The next bytes; meanwhile stores what has waited long enough."""
        while True:
            try:
                async with asyncio.timeout_at(self._due_at()):
                    return await read()
            except TimeoutError:
                if self._splitter.has_pending_event and self._event_ends_at <= self._now():
                    await self._split(writer, LineSplitter.finish_event)
                if self._unstored_count and self._seal_at <= self._now():
                    await self._store(writer)

    def _due_at(self) -> float | None:
        dues = []
        if self._splitter.has_pending_event:
            dues.append(self._event_ends_at)
        if self._unstored_count:
            dues.append(self._seal_at)
        return min(dues, default=None)

    async def _split(self, writer: ChannelWriter, call: Callable[[LineSplitter], Lines]) -> None:
        if self._lines.multiline is not None:
            self._joining = self._thread.submit(partial(call, self._splitter))
            await self._take_joined(writer)
            return
        try:
            lines = call(self._splitter)
        except LinesError as error:
            await self._fail(writer, error)
        await self._add(writer, lines)

    async def _take_joined(self, writer: ChannelWriter) -> None:
        """Takes over what the thread has made, also for a run that was cancelled while it waited for that."""
        if self._joining is None:
            return
        try:
            lines = await asyncio.shield(self._joining)
        except LinesError as error:
            await self._fail(writer, error)
        self._joining = None
        await self._add(writer, lines)

    async def _fail(self, writer: ChannelWriter, error: LinesError) -> NoReturn:
        # What comes before that line is good.
        await self._store(writer)
        raise ComponentFailedError(str(error)) from None

    async def _add(self, writer: ChannelWriter, lines: Lines) -> None:
        if lines.count and not self._unstored_count:
            self._seal_at = self._now() + self._linger_seconds
        self._bodies += lines.bodies
        self._body_bytes += sum(map(len, lines.bodies))
        while len(self._bodies) >= writer.events_max or self._body_bytes >= _BATCH_BYTES:
            await self._store_batch(writer)

    async def _store(self, writer: ChannelWriter) -> None:
        while self._unstored_count:
            await self._store_batch(writer)

    async def _store_batch(self, writer: ChannelWriter) -> None:
        if self._sealed is None:
            bodies = self._bodies[: writer.events_max]
            del self._bodies[: len(bodies)]
            self._body_bytes -= sum(map(len, bodies))
            self._sealed = EventTable(bodies), writer.numbered(len(bodies))
        # Where this fails or is cancelled, the same is delivered once more: nothing is stored twice.
        await writer.deliver(*self._sealed)
        self._sealed = None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
