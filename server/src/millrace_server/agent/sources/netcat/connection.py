"""The connection of a sender, whose lines are stored and acknowledged in order."""

import asyncio
from itertools import compress
from typing import NamedTuple

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable
from millrace_server.agent.lines.lines import Lines
from millrace_server.agent.lines.splitter import LineSplitter
from millrace_server.agent.sources.netcat.config import NetcatSourceConfig
from millrace_server.agent.supervision import ComponentError

READ_BYTES = 256 * 1024
"""The maximum number of bytes that are read and stored as one batch. While they are being stored, up to twice as much
is buffered."""

_OK = b"OK\n"


class _ConnectionEnd(Exception):  # noqa: N818 - not an error of the source
    """Raised when the connection has to be closed; the message is a sentence for the sender."""


class Sender(NamedTuple):
    """The two directions of a connection, and the address of the other side."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    address: str


class NetcatConnection:
    """Reads lines, stores them, and responds; nothing is read while lines are being stored."""

    def __init__(self, config: NetcatSourceConfig, sender: Sender, channel_writer: ChannelWriter) -> None:
        self._config = config
        self._sender = sender
        self._channel_writer = channel_writer
        self._splitter = LineSplitter(config.lines)
        self._clock = asyncio.get_running_loop().time
        self._progress_at = self._clock()
        self._reading: asyncio.Timeout | None = None
        self._is_ending = False

    def end(self) -> None:
        """Stops reading; lines that have been read are still stored and acknowledged."""
        self._is_ending = True
        if self._reading is not None and not self._reading.expired():
            self._reading.reschedule(self._clock())

    async def serve(self) -> None:
        """Serves until the sender or the source ends the connection.

        Raises OSError if the connection breaks. An incomplete line is then discarded, since its end may be missing.
        """
        try:
            while data := await self._read():
                was_between = not self._splitter.has_unfinished_line
                lines = self._splitter.feed(data)
                await self._store(lines)
                if lines.count or was_between:
                    self._progress_at = self._clock()
            # The sender has sent everything, but may still read; its last line needs no line end.
            await self._store(self._splitter.finish())
        except _ConnectionEnd as end:
            await self._respond(b"FAILED: %s\n" % str(end).encode("ascii", "backslashreplace"))

    async def _read(self) -> bytes:
        is_inside = self._splitter.has_unfinished_line
        seconds_max = self._config.line_seconds_max if is_inside else self._config.idle_seconds_max
        try:
            async with asyncio.timeout_at(0 if self._is_ending else self._progress_at + seconds_max) as self._reading:
                return await self._sender.reader.read(READ_BYTES)
        except TimeoutError:
            if self._is_ending:
                raise _ConnectionEnd("the source is stopping, so the connection is closed") from None
            what = "the line was not complete" if is_inside else "no line arrived"
            raise _ConnectionEnd(f"{what} within {seconds_max:g} s, so the connection is closed") from None
        finally:
            self._reading = None

    async def _store(self, lines: Lines) -> None:
        bytes_max = self._config.line_bytes_max
        is_short = [size <= bytes_max for size in lines.sizes]
        bodies = list(compress(lines.bodies, is_short))
        if bodies:
            await self._deliver(bodies)
        refusal = b"FAILED: the line has more than %d bytes, its line end included\n" % bytes_max
        stored = _OK if self._config.ack_every_event else b""
        await self._respond(b"".join(stored if fits else refusal for fits in is_short))
        if self._splitter.failure is not None:
            raise _ConnectionEnd(f"{self._splitter.failure}, so the connection is closed")

    async def _deliver(self, bodies: list[bytes]) -> None:
        header = self._config.client_ip_header
        table = EventTable(bodies, {header: self._sender.address} if header is not None else None)
        try:
            await self._channel_writer.deliver(table, self._channel_writer.next_stamp(table.count))
        except ComponentError as error:
            raise _ConnectionEnd(f"the lines since the last response were not stored: {error}") from None

    async def _respond(self, response: bytes) -> None:
        if not response:
            return
        if self._sender.writer.transport.is_closing():
            raise ConnectionResetError("the sender has disconnected")
        self._sender.writer.write(response)
        async with asyncio.timeout(self._config.line_seconds_max):
            await self._sender.writer.drain()
