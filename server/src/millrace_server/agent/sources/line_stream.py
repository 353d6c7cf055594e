"""Batches of lines from an input that cannot be read again."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NoReturn

import structlog

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable
from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.lines.lines import Lines
from millrace_server.agent.lines.splitter import LinesError, LineSplitter
from millrace_server.agent.supervision import ComponentError, ComponentFailedError
from millrace_server.agent.worker_thread import WorkerThread
from millrace_server.channels.stamps import Stamp

_BATCH_BYTES = 4 << 20
"""A batch is stored once its bodies have this size, however few events it contains."""


Read = Callable[[], Awaitable[bytes]]
"""Returns the next bytes as soon as there are any; nothing at the end. Cancelling it loses nothing."""


class LineStream:
    """Splits input into lines, and delivers a batch when it is full or has waited for `linger_seconds`.

    Nothing is read while a batch is being delivered, so the writer of the input has to wait while channels are full.
    Input is kept until it is stored, also if the source fails in between.

    Multi-line events are joined on a thread: a regular expression may take long on a line, which the author of the line
    may exploit.
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
    def _pending_count(self) -> int:
        return len(self._bodies) + (self._sealed[0].count if self._sealed else 0)

    async def deliver_all(self, writer: ChannelWriter, read: Read) -> None:
        """Reads to the end of the input and returns once everything is stored. Later input begins with a new line.

        Raises:
            ComponentFailedError: A line is not valid in its charset and `decode_errors` is "fail".
        """
        await self._collect_joined(writer)
        while data := await self._next(writer, read):
            await self._split(writer, partial(LineSplitter.feed, data=data))
            if self._lines.multiline is not None:
                self._event_ends_at = self._now() + self._lines.multiline.timeout_seconds
        await self._split(writer, LineSplitter.finish)
        self._splitter = LineSplitter(self._lines)
        await self._store(writer)

    async def drain(self, writer: ChannelWriter, read: Read, timeout_seconds: float) -> None:
        """Reads to the end like `deliver_all`, but only until the timeout; logs how many events are lost."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.deliver_all(writer, read)
        except (TimeoutError, ComponentError) as error:
            self._log.warning(
                "the source stops before everything that it has read could be stored",
                events_lost=self._pending_count,
                reason=str(error) or "the channel had no space in time",
            )

    async def _next(self, writer: ChannelWriter, read: Read) -> bytes:
        """Returns the next bytes; in the meantime, delivers events that are due."""
        while True:
            try:
                async with asyncio.timeout_at(self._due_at()):
                    return await read()
            except TimeoutError:
                if self._splitter.has_pending_event and self._event_ends_at <= self._now():
                    await self._split(writer, LineSplitter.finish_event)
                if self._pending_count and self._seal_at <= self._now():
                    await self._store(writer)

    def _due_at(self) -> float | None:
        dues = []
        if self._splitter.has_pending_event:
            dues.append(self._event_ends_at)
        if self._pending_count:
            dues.append(self._seal_at)
        return min(dues, default=None)

    async def _split(self, writer: ChannelWriter, call: Callable[[LineSplitter], Lines]) -> None:
        if self._lines.multiline is not None:
            self._joining = self._thread.submit(partial(call, self._splitter))
            await self._collect_joined(writer)
            return
        try:
            lines = call(self._splitter)
        except LinesError as error:
            await self._fail(writer, error)
        await self._add(writer, lines)

    async def _collect_joined(self, writer: ChannelWriter) -> None:
        """Adds the lines that the thread has joined, including those of a cancelled run."""
        if self._joining is None:
            return
        try:
            lines = await asyncio.shield(self._joining)
        except LinesError as error:
            await self._fail(writer, error)
        self._joining = None
        await self._add(writer, lines)

    async def _fail(self, writer: ChannelWriter, error: LinesError) -> NoReturn:
        # The lines before it are valid.
        await self._store(writer)
        raise ComponentFailedError(str(error)) from None

    async def _add(self, writer: ChannelWriter, lines: Lines) -> None:
        if lines.count and not self._pending_count:
            self._seal_at = self._now() + self._linger_seconds
        self._bodies += lines.bodies
        self._body_bytes += sum(map(len, lines.bodies))
        while len(self._bodies) >= writer.events_max or self._body_bytes >= _BATCH_BYTES:
            await self._deliver_batch(writer)

    async def _store(self, writer: ChannelWriter) -> None:
        while self._pending_count:
            await self._deliver_batch(writer)

    async def _deliver_batch(self, writer: ChannelWriter) -> None:
        if self._sealed is None:
            bodies = self._bodies[: writer.events_max]
            del self._bodies[: len(bodies)]
            self._body_bytes -= sum(map(len, bodies))
            self._sealed = EventTable(bodies), writer.next_stamp(len(bodies))
        # If this fails or is cancelled, the same batch is delivered again with the same stamp, and stored once.
        await writer.deliver(*self._sealed)
        self._sealed = None

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
