"""The producer's cost for a program: the time in `send`, and the time until an event is acknowledged."""

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace_client import Event, Producer, ProducerConfig, SendResult
from tests.bench.bare_server import METHOD
from tests.bench.calls import Method, call_many
from tests.bench.findings import Line, Section
from tests.bench.payloads import FILE_CHANNEL, append_columns, rows
from tests.bench.world import World, running_world

SEND_MICROSECONDS_MAX = 3.0
EVENTS_PER_SECOND = 1_000

_EVENTS_AT_ONCE = 4_000
_HOUR = 3_600.0
_P99 = 99
_P50 = 50


@dataclass(frozen=True, kw_only=True)
class ProducerCostsPlan:
    """The extent of the measurements."""

    sending_rounds: int = 25
    """The number of rounds, each with 4,000 events."""
    latency_rounds: int = 5
    latency_seconds: float = 4.0
    """The duration of each round, at 1,000 events per second."""

    @property
    def step_count(self) -> int:
        """The number of steps."""
        return self.sending_rounds + self.latency_rounds


QUICK_PRODUCER_COSTS_PLAN = ProducerCostsPlan(sending_rounds=5, latency_rounds=2, latency_seconds=1.5)


async def measure_producer_costs(scratch: Path, plan: ProducerCostsPlan, on_step: Callable[[], None]) -> list[Section]:
    """Measures both with a file channel, compared with the machine's times for a round trip and for a sync."""
    async with running_world(scratch) as servers:
        world = servers.on(FILE_CHANNEL)
        return [
            await asyncio.to_thread(_sending, world, plan, on_step),
            await _latencies(world, plan, on_step),
        ]


def _sending(world: World, plan: ProducerCostsPlan, on_step: Callable[[], None]) -> Section:
    """The time of `send` in the calling thread, while the rest of the producer is idle."""
    # Nothing is due before the flush, so only `send` is timed.
    config = ProducerConfig(batch_events_max=2 * _EVENTS_AT_ONCE, batch_bytes_max=32 << 20, linger_seconds=_HOUR)
    body, host = rows(1)[0].body, "web-1.example.org"
    building, sending = [], []
    with Producer(world.server.grpc, world.channel, config=config) as producer:
        for _ in range(plan.sending_rounds):
            began = time.perf_counter()
            for number in range(_EVENTS_AT_ONCE):
                Event(body, {"host": host, "timestamp": str(1_700_000_000_000 + number)})
            built = time.perf_counter()
            send = producer.send
            for number in range(_EVENTS_AT_ONCE):
                send(Event(body, {"host": host, "timestamp": str(1_700_000_000_000 + number)}))
            sent = time.perf_counter()
            producer.flush()
            building.append((built - began) / _EVENTS_AT_ONCE * 1e6)
            sending.append((sent - built) / _EVENTS_AT_ONCE * 1e6)
            on_step()
    extra = statistics.median(both - alone for both, alone in zip(sending, building, strict=True))
    return Section(
        "Producer: what an event costs the thread that sends it",
        [
            Line(what="building an Event with two headers", value=statistics.median(building), unit="us"),
            Line(what="send, over that", value=extra, unit="us", most=SEND_MICROSECONDS_MAX),
        ],
    )


async def _latencies(world: World, plan: ProducerCostsPlan, on_step: Callable[[], None]) -> Section:
    config = ProducerConfig()
    # As many events as arrive in one linger.
    batch_events = max(round(EVENTS_PER_SECOND * config.linger_seconds), 1)
    request = append_columns(batch_events, world.channel)
    acknowledged: list[list[float]] = []
    trips: list[list[float]] = []
    syncs: list[list[float]] = []
    for _ in range(plan.latency_rounds):
        acknowledged.append(await asyncio.to_thread(_acknowledged, world, config, plan.latency_seconds))
        trips.append(await _round_trips(world, request, plan.latency_seconds, config.linger_seconds))
        syncs.append(await asyncio.to_thread(_syncs, world.scratch, request, plan.latency_seconds, config))
        on_step()
    trip, sync = _median_of(trips, _P99), _median_of(syncs, _P99)
    # A batch that arrives during a sync waits for that, and then for its own.
    most = config.linger_seconds * 1e3 + 3 * trip + 2 * sync
    return Section(
        f"Producer: from send to acknowledged at {EVENTS_PER_SECOND:,} events/s",
        [
            Line(what="p99", value=_median_of(acknowledged, _P99), unit="ms", most=round(most, 3)),
            Line(what="p50", value=_median_of(acknowledged, _P50), unit="ms"),
            Line(what="linger", value=config.linger_seconds * 1e3, unit="ms"),
            Line(what="p99 of a bare round trip, of which there may be three", value=trip, unit="ms"),
            Line(what="p99 of a bare sync, of which there may be two", value=sync, unit="ms"),
        ],
    )


def _acknowledged(world: World, config: ProducerConfig, seconds: float) -> list[float]:
    """Milliseconds from `send` to the callback, for each event."""
    made = [Event(row.body, dict(row.headers)) for row in rows(1)]
    latencies: list[float] = []
    with Producer(world.server.grpc, world.channel, config=config) as producer:
        # Connects.
        producer.send(made[0]).result(60)
        began = time.perf_counter()
        for number in range(round(seconds * EVENTS_PER_SECOND)):
            time.sleep(max(began + number / EVENTS_PER_SECOND - time.perf_counter(), 0.0))
            producer.send(made[0], callback=_timing(latencies))
        producer.flush()
    return latencies


def _timing(latencies: list[float]) -> Callable[[SendResult], None]:
    sent = time.perf_counter()

    def note(result: SendResult) -> None:
        assert result.stored
        latencies.append((time.perf_counter() - sent) * 1e3)

    return note


async def _round_trips(world: World, request: bytes, seconds: float, every_seconds: float) -> list[float]:
    """Milliseconds in which a bare server returns the same bytes, at the rate of batches."""
    echo = Method(world.bare, METHOD.format("echo"), request)
    trips = []
    for _ in range(round(seconds / every_seconds)):
        await asyncio.sleep(every_seconds)
        began = time.perf_counter()
        await call_many(echo, 1, callers=1)
        trips.append((time.perf_counter() - began) * 1e3)
    return trips


def _syncs(scratch: Path, request: bytes, seconds: float, config: ProducerConfig) -> list[float]:
    """Milliseconds for writing and syncing the same bytes, at the rate of batches."""
    path = scratch / "bare-syncs"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    syncs = []
    try:
        os.posix_fallocate(descriptor, 0, len(request) * (round(seconds / config.linger_seconds) + 1))
        for number in range(round(seconds / config.linger_seconds)):
            time.sleep(config.linger_seconds)
            began = time.perf_counter()
            os.pwrite(descriptor, request, number * len(request))
            os.fdatasync(descriptor)
            syncs.append((time.perf_counter() - began) * 1e3)
    finally:
        os.close(descriptor)
        path.unlink()
    return syncs


def _median_of(rounds: Sequence[Sequence[float]], percent: int) -> float:
    """The median of each round's percentile."""
    return statistics.median(statistics.quantiles(values, n=100)[percent - 1] for values in rounds)
