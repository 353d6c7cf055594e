"""The source `stdin`: lines of the daemon's standard input."""

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

from millrace.setting_problems import shown_path
from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.sources.line_stream import LineStream
from millrace_server.agent.sources.source import Source, SourceConfig, SourceContext
from millrace_server.agent.supervision import ComponentFailedError

_READ_BYTES = 1 << 18
_LAST_STORE_SECONDS = 1.0
"""How long storing may go on when the source is to end."""

_log = structlog.stdlib.get_logger(__name__)


class StdinSourceConfig(LinesConfig, SourceConfig):
    """A source whose events are the lines of the daemon's standard input, until its end.

    What was read from it and is not stored yet is lost in a crash, since nobody can read it again.
    """

    type: Literal["stdin"]
    """Lines of the daemon's standard input."""

    linger_seconds: float = Field(0.2, ge=0, le=3600, allow_inf_nan=False)
    """A batch is stored this long after its first event, full or not."""

    exit_at_end: bool = False
    """Whether the daemon stops, as it does on SIGTERM, once the input has ended and all of it is stored."""

    def make(self, place: SourceContext) -> Source:
        return _StdinSource(place.name, self)


def stdin_problems(tables: Mapping[str, Any]) -> list[str]:
    """A sentence for each source of a configuration that would read the same standard input as another.

    Args:
        tables: The configuration, as TOML has it.
    """
    sources = tables.get("sources")
    tables_by_name = sources.items() if isinstance(sources, dict) else ()
    first, *others = [
        name for name, table in tables_by_name if isinstance(table, dict) and table.get("type") == "stdin"
    ] or [""]
    return [
        f'{shown_path(("sources", name, "type"))}: is "stdin"; {shown_path(("sources", first))} reads the daemon\'s '
        "standard input already, and only one source can"
        for name in others
    ]


class _StdinSource:
    def __init__(self, name: str, config: StdinSourceConfig) -> None:
        self._config = config
        self._log = _log.bind(source=name)
        self._stream = LineStream(config, config.linger_seconds, self._log)
        self._reader: ThreadReader | None = None
        """Of the run before this one, which may have failed with something that it has read ahead."""

    async def run(self, writer: ChannelWriter) -> None:
        if sys.__stdin__ is None:
            raise ComponentFailedError("the daemon was started without a standard input")
        standard_input = self._reader = ThreadReader(sys.__stdin__.fileno(), self._reader)
        writer.note_ready()
        try:
            await self._stream.bring(writer, standard_input.read)
        except asyncio.CancelledError:
            standard_input.end()
            # There is no way to put back what was read.
            await self._stream.bring_rest(writer, standard_input.read, _LAST_STORE_SECONDS)
            raise
        finally:
            standard_input.end()
        writer.note_ended("standard input has ended")
        if self._config.exit_at_end:
            self._log.info("the daemon stops, since standard input has ended")
            os.kill(os.getpid(), signal.SIGTERM)


class ThreadReader:
    """Reads a file on a thread, as it is: a pipe, a terminal or a file on a disk.

    Setting it to not block would do so for every program that shares it, such as the shell behind a terminal. It reads
    one portion ahead and no further.

    Args:
        fd: What to read. It stays open.
        former: Has read it before, and was ended: what it has left comes first.
    """

    def __init__(self, fd: int, former: "ThreadReader | None" = None) -> None:
        self._fd = fd
        self._loop = asyncio.get_running_loop()
        self._portions: deque[bytes | OSError] = deque()
        self._has_news = asyncio.Event()
        self._may_read = threading.Semaphore()
        self._wake_reader, self._wake_writer = os.pipe()
        self._is_ending = False
        self._former = former
        if former is None:
            self._begin()

    def _begin(self) -> None:
        # As a daemon: where another program takes what was there, a read may never return, and must keep nobody.
        threading.Thread(target=self._run, name="standard input", daemon=True).start()

    async def read(self) -> bytes:
        """The next bytes; none at the end. Nothing is lost where this is cancelled.

        Raises:
            OSError: It cannot be read.
        """
        if self._former is not None:
            with suppress(OSError):
                if portion := await self._former.read():
                    return portion
            self._former = None
            self._begin()
        return await self._next_portion()

    async def _next_portion(self) -> bytes:
        await self._has_news.wait()
        portion = self._portions[0]
        if isinstance(portion, OSError):
            raise portion
        if portion:
            self._portions.popleft()
            if not self._portions:
                self._has_news.clear()
            self._may_read.release()
        return portion

    def end(self) -> None:
        """Reads no more; what was read before can still be had."""
        if not self._is_ending:
            self._is_ending = True
            # The other end tells the thread.
            os.close(self._wake_writer)
            self._may_read.release()

    def _run(self) -> None:
        portion: bytes | OSError = b"more"
        while portion and not isinstance(portion, OSError):
            self._may_read.acquire()
            portion = self._next()
            # The loop may be gone already.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._add, portion)
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

    def _add(self, portion: bytes | OSError) -> None:
        self._portions.append(portion)
        self._has_news.set()
