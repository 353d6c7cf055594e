"""The source `stdin`, which reads lines from the daemon's standard input."""

import asyncio
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import structlog
from pydantic import Field

from millrace.setting_problems import Problem, shown_path
from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.setting_types import named_tables
from millrace_server.agent.sources.line_stream import LineStream
from millrace_server.agent.sources.source import Source, SourceConfig, SourceContext
from millrace_server.agent.supervision import ComponentFailedError

_READ_BYTES = 1 << 18
_DRAIN_SECONDS_MAX = 1.0
"""When the source stops: how long storing the remaining lines may take."""

_log = structlog.stdlib.get_logger(__name__)


class StdinSourceConfig(LinesConfig, SourceConfig):
    """A source of the lines of the daemon's standard input, until its end.

    A crash loses lines that were read but not yet stored, since the input cannot be read again.
    """

    type: Literal["stdin"]
    """Lines of the daemon's standard input."""

    linger_seconds: float = Field(0.2, ge=0, le=3600, allow_inf_nan=False)
    """A batch is stored this long after its first event, even if it is not full."""

    exit_at_end: bool = False
    """Whether the daemon stops, as on SIGTERM, once the whole input is stored."""

    def make(self, context: SourceContext) -> Source:
        return _StdinSource(context.name, self)


def stdin_problems(tables: Mapping[str, Any]) -> list[Problem]:
    """Returns a problem for each source of the standard input, except the first one."""
    sources = named_tables(tables, "sources")
    first, *others = [name for name, table in sources.items() if table.get("type") == "stdin"] or [""]
    return [
        Problem(
            ("sources", name, "type"),
            f'is "stdin"; {shown_path(("sources", first))} reads the daemon\'s standard input already, and only one '
            "source can",
        )
        for name in others
    ]


class _StdinSource:
    def __init__(self, name: str, config: StdinSourceConfig) -> None:
        self._config = config
        self._log = _log.bind(source=name)
        self._stream = LineStream(config, config.linger_seconds, self._log)
        self._reader: ThreadedReader | None = None
        """The reader of the previous run, which may have failed before all data was processed."""

    async def run(self, writer: ChannelWriter) -> None:
        if sys.__stdin__ is None:
            raise ComponentFailedError("the daemon was started without standard input")
        standard_input = self._reader = ThreadedReader(sys.__stdin__.fileno(), self._reader)
        writer.report_running()
        try:
            await self._stream.deliver_all(writer, standard_input.read)
        except asyncio.CancelledError:
            standard_input.end()
            # Data that was read cannot be put back.
            await self._stream.drain(writer, standard_input.read, _DRAIN_SECONDS_MAX)
            raise
        finally:
            standard_input.end()
        writer.report_stopped("end of standard input")
        if self._config.exit_at_end:
            self._log.info("stopping at the end of standard input")
            os.kill(os.getpid(), signal.SIGTERM)


class ThreadedReader:
    """Reads a file of any kind (pipe, terminal, regular file) on a thread.

    The file remains in blocking mode: non-blocking mode would affect every program that shares it, such as the shell of
    a terminal. At most one chunk is read ahead.

    Args:
        fd: The file descriptor to read; it is not closed.
        previous: The ended reader of the same file, whose remaining data comes first.
    """

    def __init__(self, fd: int, previous: "ThreadedReader | None" = None) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._chunks: deque[bytes | OSError] = deque()
        self._has_chunks = asyncio.Event()
        self._may_read = threading.Semaphore()
        self._wake_reader, self._wake_writer = os.pipe()
        self._is_ending = False
        self._previous = previous
        if previous is None:
            self._start()

    def _start(self) -> None:
        # A daemon thread: if another program reads the available data, a read may never return, which must not keep
        # the process alive.
        threading.Thread(target=self._run, name="standard input", daemon=True).start()

    async def read(self) -> bytes:
        """Returns the next bytes; nothing at the end. Cancelling it loses nothing."""
        if self._previous is not None:
            with suppress(OSError):
                if chunk := await self._previous.read():
                    return chunk
            self._previous = None
            self._start()
        return await self._next_chunk()

    async def _next_chunk(self) -> bytes:
        await self._has_chunks.wait()
        chunk = self._chunks[0]
        if isinstance(chunk, OSError):
            raise chunk
        if chunk:
            self._chunks.popleft()
            if not self._chunks:
                self._has_chunks.clear()
            self._may_read.release()
        return chunk

    def end(self) -> None:
        """Stops reading; data that was already read remains available."""
        if not self._is_ending:
            self._is_ending = True
            # Wakes the thread through the other end of the pipe.
            os.close(self._wake_writer)
            self._may_read.release()

    def _run(self) -> None:
        chunk: bytes | OSError = b"more"
        while chunk and not isinstance(chunk, OSError):
            self._may_read.acquire()
            chunk = self._next()
            # The loop may already be closed.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._add, chunk)
        os.close(self._wake_reader)

    def _next(self) -> bytes | OSError:
        waiting = select.poll()
        waiting.register(self._fd, select.POLLIN)
        waiting.register(self._wake_reader, select.POLLIN)
        waiting.poll()
        if self._is_ending:
            return b""
        try:
            return os.read(self._fd, _READ_BYTES)
        except OSError as error:
            return error

    def _add(self, chunk: bytes | OSError) -> None:
        self._chunks.append(chunk)
        self._has_chunks.set()
