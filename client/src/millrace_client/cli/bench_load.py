"""The load of `millrace bench`: events that tell when they were sent, and how long they took."""

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
_LOOK_SECONDS = 0.2

STAMP_BYTES = _STAMP.size
"""Bodies begin with the time at which they were sent; so they have at least so many bytes."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What is sent."""

    event_count: int | None
    """So many events. None: as many as there is time for."""
    seconds: float
    """For at most so long."""
    body_bytes: int
    header_count: int
    key_count: int
    """So many different keys, one after the other; 0: none."""
    events_per_second: float
    """At most so many; 0: as many as can be."""

    def events(self) -> Iterator[tuple[Event, str | None]]:
        """The events with their keys, each when its time has come."""
        filling = bytes(self.body_bytes - STAMP_BYTES)
        headers = {f"header-{index}": "a value" for index in range(self.header_count)}
        keys: list[str | None] = [f"key-{index}" for index in range(self.key_count)]
        keys = keys or [None]
        began = time.monotonic()
        number = 0
        while (self.event_count is None or number < self.event_count) and time.monotonic() < began + self.seconds:
            if self.events_per_second:
                time.sleep(max(began + number / self.events_per_second - time.monotonic(), 0.0))
            yield Event(_STAMP.pack(time.monotonic_ns()) + filling, headers), keys[number % len(keys)]
            number += 1


@dataclass
class Figures:
    """What was measured of one direction."""

    event_count: int = 0
    body_bytes: int = 0
    seconds: float = 0.0
    latencies_seconds: list[float] = field(default_factory=list)
    """Of some of the events."""

    def document(self) -> dict[str, object]:
        """The figures for programs."""
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
        """The figures for people."""
        rate = self.event_count / self.seconds if self.seconds else 0.0
        mebibytes = self.body_bytes / _MIB / self.seconds if self.seconds else 0.0
        parts = [f"{self.event_count:,} events {verb} in {self.seconds:.2f} s", f"{rate:,.0f} events/s"]
        parts.append(f"{mebibytes:,.1f} MiB/s")
        latencies = [f"{name} {value * _MILLISECONDS:.2f} ms" for name, value in self._latencies() if value is not None]
        return ", ".join(parts + latencies)


def measure_put(producer: Producer, load: Load) -> Figures:
    """Sends events and waits until all are stored. Latencies are from `send` until that is known.

    Raises:
        MillraceError: One of the sampled events, or the last one, was not stored.
    """
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
    """Takes events until there are so many, the time is over, or none comes and it is told that none will.

    Latencies are from `send` until an event is delivered, and make sense where it was sent by this machine.
    """
    figures = Figures()
    began = time.monotonic()
    ended = began
    while event_count is None or figures.event_count < event_count:
        if time.monotonic() >= began + seconds:
            break
        with channel.consume(idle_seconds=_LOOK_SECONDS) as deliveries:
            for delivery in deliveries:
                ended = time.monotonic()
                _note_delivery(figures, delivery.bodies())
                delivery.ack()
                if (event_count is not None and figures.event_count >= event_count) or ended >= began + seconds:
                    break
            else:
                # A server that is busy may be silent for as long while there are more.
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
            # What others have put does not begin with a time.
            if waited >= 0:
                figures.latencies_seconds.append(waited / 1e9)
