"""The sink `logger`, which writes events to the server's log, for testing."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import structlog
from pydantic import Field

from millrace_server.agent.sinks.sink import BatchSink, NonRejectingSinkConfig, Sink, SinkContext
from millrace_server.channels.batches import StoredBatch

_log = structlog.stdlib.get_logger(__name__)


class LoggerSinkConfig(NonRejectingSinkConfig):
    """A sink that logs its events."""

    type: Literal["logger"]
    """Logs each event: its sequence, its headers, and the start of its body."""

    bytes_max: int = Field(256, ge=0, le=1_000)
    """The number of bytes of a body that are logged."""

    events_per_second_max: int | None = Field(None, ge=1, le=1_000_000)
    """The maximum number of events that are logged per second. Further events leave the channel too, but are only
    counted."""

    def make(self, context: SinkContext) -> Sink:
        return LoggerSink(context.name, self)


class LoggerSink(BatchSink):
    """Logs events."""

    def __init__(self, name: str, config: LoggerSinkConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._log = _log.bind(sink=name)
        self._clock = clock
        self._second = 0
        self._logged_in_second = 0
        self._suppressed_count = 0

    async def write(self, batches: Sequence[StoredBatch]) -> None:
        # On a thread, since the log may be a pipe whose reader is slow.
        await asyncio.to_thread(self._log_all, batches)

    async def close(self) -> None:
        self._log_suppressed()

    def _log_all(self, batches: Sequence[StoredBatch]) -> None:
        for sequence, headers, body in _events(batches):
            if self._may_log():
                beginning = body[: self._config.bytes_max].decode(errors="backslashreplace")
                self._log.info("an event", sequence=sequence, headers=headers, body=beginning, body_bytes=len(body))
            else:
                self._suppressed_count += 1

    def _may_log(self) -> bool:
        if self._config.events_per_second_max is None:
            return True
        if (second := int(self._clock())) != self._second:
            self._second = second
            self._logged_in_second = 0
            self._log_suppressed()
        self._logged_in_second += 1
        return self._logged_in_second <= self._config.events_per_second_max

    def _log_suppressed(self) -> None:
        if self._suppressed_count:
            self._log.info("events were not logged", count=self._suppressed_count)
            self._suppressed_count = 0


def _events(batches: Sequence[StoredBatch]) -> Iterator[tuple[int, dict[str, str], bytes]]:
    for batch in batches:
        for sequence, (headers, body) in enumerate(batch.window.rows(), start=batch.first_sequence):
            yield sequence, headers, body
