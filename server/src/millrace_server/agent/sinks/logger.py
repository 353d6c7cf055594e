"""The sink `logger`: events in the server's log, for those who try things out."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import structlog
from pydantic import Field

from millrace_server.agent.sinks.sink import BatchSink, Sink, SinkContext, TakingSinkConfig
from millrace_server.channels.batches import StoredBatch

_log = structlog.stdlib.get_logger(__name__)


class LoggerSinkConfig(TakingSinkConfig):
    """A sink that logs what it takes."""

    type: Literal["logger"]
    """Logs each event: its sequence, its headers, and how its body begins."""

    bytes_max: int = Field(256, ge=0, le=1_000)
    """So much of a body is logged."""

    events_per_second_max: int | None = Field(None, ge=1, le=1_000_000)
    """More events than that are not logged, only counted; they leave the channel all the same."""

    def make(self, place: SinkContext) -> Sink:
        return LoggerSink(place.name, self)


class LoggerSink(BatchSink):
    """Logs events.

    Args:
        name: The sink's.
        config: What is logged.
        clock: Seconds that only grow.
    """

    def __init__(self, name: str, config: LoggerSinkConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._config = config
        self._log = _log.bind(sink=name)
        self._clock = clock
        self._second = 0
        self._logged_in_second = 0
        self._unlogged_count = 0

    async def write(self, batches: Sequence[StoredBatch]) -> None:
        # The log may be a pipe whose reader is slow.
        await asyncio.to_thread(self._log_all, batches)

    async def close(self) -> None:
        self._tell_unlogged()

    def _log_all(self, batches: Sequence[StoredBatch]) -> None:
        for sequence, headers, body in _events(batches):
            if self._may_log():
                beginning = body[: self._config.bytes_max].decode(errors="backslashreplace")
                self._log.info("an event", sequence=sequence, headers=headers, body=beginning, body_bytes=len(body))
            else:
                self._unlogged_count += 1

    def _may_log(self) -> bool:
        if self._config.events_per_second_max is None:
            return True
        if (second := int(self._clock())) != self._second:
            self._second = second
            self._logged_in_second = 0
            self._tell_unlogged()
        self._logged_in_second += 1
        return self._logged_in_second <= self._config.events_per_second_max

    def _tell_unlogged(self) -> None:
        if self._unlogged_count:
            self._log.info("events were not logged", count=self._unlogged_count)
            self._unlogged_count = 0


def _events(batches: Sequence[StoredBatch]) -> Iterator[tuple[int, dict[str, str], bytes]]:
    for batch in batches:
        for sequence, (headers, body) in enumerate(batch.window.rows(), start=batch.first_sequence):
            yield sequence, headers, body
