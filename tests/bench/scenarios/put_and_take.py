"""Puts and takes at once, on a file channel that is always full: neither side may starve the other."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.bench.calls import OnResponse, call_many, consume_many, stream_many
from tests.bench.measuring import Contender, Scenario, of_echo
from tests.bench.payloads import BATCH_EVENTS, FULL_CHANNEL, FULL_EVENTS, append_columns
from tests.bench.scenarios.consume import PREFETCH, consuming
from tests.bench.scenarios.take import Taking, take_many
from tests.bench.world import World

_IN_FLIGHT = 8

Side = Callable[[int, OnResponse], Awaitable[object]]
"""Performs this many operations, and reports each."""


@dataclass
class _Course:
    """The times at which one side's operations were done, round by round."""

    rates: list[float] = field(default_factory=list)
    longest_pauses: list[float] = field(default_factory=list)
    _times: list[float] = field(default_factory=list)

    def start(self) -> None:
        self._times = [time.perf_counter()]

    def on_response(self) -> None:
        self._times.append(time.perf_counter())

    def end(self) -> None:
        seconds = self._times[-1] - self._times[0]
        self.rates.append((len(self._times) - 1) * BATCH_EVENTS / seconds)
        pauses = (after - before for before, after in zip(self._times, self._times[1:], strict=False))
        self.longest_pauses.append(max(pauses))


def file_put_and_take_stream_scenario(world: World) -> Scenario:
    """A producer's stream and a consumer's, each with eight batches in flight."""
    world = world.on(FULL_CHANNEL)
    request = append_columns(BATCH_EVENTS, world.channel)

    async def put(operations: int, on_response: OnResponse) -> None:
        await stream_many(world.method("AppendStream", request), operations, _IN_FLIGHT, on_response)

    async def take(operations: int, on_response: OnResponse) -> None:
        await consume_many(world.millrace, consuming(world), operations, on_response)

    echo = world.bare_stream("echo", request, PREFETCH)
    return _scenario(world, "stream", "AppendStream and Consume at once", (put, take), echo)


def file_put_and_take_scenario(world: World) -> Scenario:
    """A producer and a consumer that wait for each response."""
    world = world.on(FULL_CHANNEL)
    request = append_columns(BATCH_EVENTS, world.channel)

    async def put(operations: int, on_response: OnResponse) -> None:
        await call_many(world.method("Append", request), operations, 1, on_response)

    async def take(operations: int, on_response: OnResponse) -> None:
        await take_many(world, operations, Taking(callers=1, takes_per_txn=1), on_response)

    echo = world.bare_calls("echo", request, 1)
    return _scenario(world, "calls", "Append, and BeginTxn, Take, Commit at once", (put, take), echo)


def _scenario(world: World, name: str, title: str, sides: tuple[Side, Side], echo: Contender) -> Scenario:
    courses = (_Course(), _Course())

    async def run(operations: int) -> None:
        async with asyncio.TaskGroup() as running:
            for side, course in zip(sides, courses, strict=True):
                course.start()
                running.create_task(_run_side(side, operations, course))

    async def prepare(_operations: int) -> None:
        missing = FULL_EVENTS - await world.queued_events()
        await world.fill(missing // BATCH_EVENTS, BATCH_EVENTS)

    async def tidy(_operations: int) -> None:
        assert await world.queued_events() == FULL_EVENTS

    def remarks() -> dict[str, float]:
        puts, takes = courses
        return {
            "puts, events/s": statistics.median(puts.rates),
            "takes, events/s": statistics.median(takes.rates),
            "longest pause between puts, ms": max(puts.longest_pauses) * 1e3,
            "longest pause between takes, ms": max(takes.longest_pauses) * 1e3,
        }

    return Scenario(
        name=f"file_put_and_take_{name}",
        title=f"File, full: {title}",
        events_per_operation=BATCH_EVENTS,
        operations=800,
        ours=[
            Contender(
                name="through the channel", server_pid=world.server.process.pid, run=run, prepare=prepare, tidy=tidy
            )
        ],
        echo=echo,
        target=of_echo(0.4),
        remarks=remarks,
    )


async def _run_side(side: Side, operations: int, course: _Course) -> None:
    await side(operations, course.on_response)
    course.end()
