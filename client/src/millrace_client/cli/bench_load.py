"""The load of `millrace bench`: events with the time of their sending, and the measured figures."""

import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from millrace_client import Channel, Event, MillraceError, Producer, SendFuture, SendResult

_STAMP = struct.Struct(">Q")
_SAMPLED_EVERY = 16
_PERCENTS = (50.0, 90.0, 99.0, 99.9)
_MIB = 1 << 20
_MILLISECONDS = 1e3
_IDLE_SECONDS = 0.2

STAMP_BYTES = _STAMP.size
"""The size of the time at the beginning of each body, which is the smallest body."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """The events to send."""

    event_count: int | None
    """None for no limit."""
    seconds: float
    body_bytes: int
    header_count: int
    key_count: int
    """The number of different keys, used in turn; 0 for none."""
    events_per_second: float
    """The maximum rate; 0 for no limit."""

    def events(self) -> Iterator[tuple[Event, str | None]]:
        """Yields the events with their keys, at the rate."""
        filling = bytes(self.body_bytes - STAMP_BYTES)
        headers = {f"header-{index}": "a value" for index in range(self.header_count)}
        keys: list[str | None] = [f"key-{index}" for index in range(self.key_count)] or [None]
        began = time.monotonic()
        number = 0
        while (self.event_count is None or number < self.event_count) and time.monotonic() < began + self.seconds:
            if self.events_per_second:
                time.sleep(max(began + number / self.events_per_second - time.monotonic(), 0.0))
            yield Event(_STAMP.pack(time.monotonic_ns()) + filling, headers), keys[number % len(keys)]
            number += 1


@dataclass
class Figures:
    """The figures of one direction."""

    event_count: int = 0
    body_bytes: int = 0
    seconds: float = 0.0
    latencies_seconds: list[float] = field(default_factory=list)
    """Latencies of a sample of the events."""

    def document(self) -> dict[str, object]:
        seconds = self.seconds or float("inf")
        return {
            "events": self.event_count,
            "seconds": round(self.seconds, 3),
            "events_per_second": round(self.event_count / seconds, 1),
            "mebibytes_per_second": round(self.body_bytes / _MIB / seconds, 2),
            "latency_milliseconds": {
                name: None if value is None else round(value * _MILLISECONDS, 3) for name, value in self._latencies()
            },
        }

    def _latencies(self) -> Iterator[tuple[str, float | None]]:
        ordered = sorted(self.latencies_seconds)
        for percent in _PERCENTS:
            index = min(int(len(ordered) * percent / 100), len(ordered) - 1)
            yield f"p{percent:g}", ordered[index] if ordered else None
        yield "max", ordered[-1] if ordered else None

    def sentence(self, verb: str) -> str:
        seconds = self.seconds or float("inf")
        parts = [f"{self.event_count:,} events {verb} in {self.seconds:.2f} s"]
        parts += [f"{self.event_count / seconds:,.0f} events/s", f"{self.body_bytes / _MIB / seconds:,.1f} MiB/s"]
        latencies = [f"{name} {value * _MILLISECONDS:.2f} ms" for name, value in self._latencies() if value is not None]
        return ", ".join(parts + latencies)


def measure_put(producer: Producer, load: Load) -> Figures:
    """Sends events and waits until all are stored. Latencies are from `send` until the acknowledgement."""
    figures = Figures()
    errors: list[MillraceError] = []
    began = time.monotonic()
    last: SendFuture | None = None
    for number, (event, key) in enumerate(load.events()):
        callback = None if number % _SAMPLED_EVERY else _sampling(figures, errors)
        last = producer.send(event, key, callback=callback)
        figures.event_count += 1
        figures.body_bytes += len(event.body)
        if errors:
            raise errors[0]
    producer.flush()
    if last is not None:
        last.result()
    figures.seconds = time.monotonic() - began
    return figures


def _sampling(figures: Figures, errors: list[MillraceError]) -> Callable[[SendResult], None]:
    sent = time.monotonic()

    def note(result: SendResult) -> None:
        if result.error is None:
            figures.latencies_seconds.append(time.monotonic() - sent)
        else:
            errors.append(result.error)

    return note


def measure_take(channel: Channel, event_count: int | None, is_over: Callable[[], bool], seconds: float) -> Figures:
    """Takes events until the count or the time limit is reached, or none arrives and `is_over` holds.

    Latencies are from `send` until delivery, and hold for events sent by this machine.
    """
    figures = Figures()
    began = ended = time.monotonic()
    while event_count is None or figures.event_count < event_count:
        if time.monotonic() >= began + seconds:
            break
        with channel.consume(idle_seconds=_IDLE_SECONDS) as deliveries:
            for delivery in deliveries:
                ended = time.monotonic()
                _note_delivery(figures, delivery.bodies())
                delivery.ack()
                if (event_count is not None and figures.event_count >= event_count) or ended >= began + seconds:
                    break
            else:
                # A busy server may pause this long although there are more events.
                if is_over():
                    break
    figures.seconds = ended - began
    return figures


def _note_delivery(figures: Figures, bodies: list[bytes]) -> None:
    now = time.monotonic_ns()
    figures.event_count += len(bodies)
    figures.body_bytes += sum(map(len, bodies))
    for body in bodies[::_SAMPLED_EVERY]:
        if len(body) >= STAMP_BYTES:
            waited = now - _STAMP.unpack_from(body)[0]
            # Bodies of other programs do not begin with a time.
            if waited >= 0:
                figures.latencies_seconds.append(waited / 1e9)
