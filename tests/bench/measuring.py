"""Contenders measured side by side, in turns, so that whatever else the machine does hits all of them alike."""

import asyncio
import gc
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.process_figures import cpu_seconds

ROUNDS = 5
ECHO = "bare echo"
LOOP = "bare loop"


async def _nothing(_operations: int) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One of those that are measured."""

    name: str
    server_pid: int
    run: Callable[[int], Awaitable[None]]
    """Does so many operations; this is what is timed."""
    prepare: Callable[[int], Awaitable[None]] = _nothing
    """Makes ready for so many operations."""
    tidy: Callable[[int], Awaitable[None]] = _nothing
    """Cleans up after so many operations, and checks that they were done."""
    share: float = 1.0
    """How much of the scenario's operations it does: less than all where it is so slow that they would take long."""


@dataclass(frozen=True)
class Target:
    """What a rate is to reach."""

    least: float
    """The least share of the yardstick."""
    words: str
    """What the yardstick is."""
    yardstick: Callable[[Mapping[str, float]], float]
    """A rate, from those of all contenders in one round by their names."""


def of_echo(least: float) -> Target:
    """A share of what the bare echo does."""
    return Target(least, "echo", lambda rates: rates[ECHO])


def of_slower(least: float) -> Target:
    """A share of what the bare echo or the bare loop does, whichever is slower: RPC or disk."""
    return Target(least, "slower of echo, loop", lambda rates: min(rates[ECHO], rates[LOOP]))


def of_fastest_peer(names: Sequence[str]) -> Target:
    """More than the fastest of others' clients and servers does."""
    return Target(1.0, "fastest peer", lambda rates: max(rates[name] for name in names))


def of_both_in_turn(least: float) -> Target:
    """A share of what a bare echo and then a bare loop would do: RPC, then disk."""
    return Target(least, "echo then loop", lambda rates: 1 / (1 / rates[ECHO] + 1 / rates[LOOP]))


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is measured, and against what."""

    name: str
    title: str
    events_per_operation: int
    operations: int
    """In each round."""
    ours: Sequence[Contender]
    """Ways of Millrace; the first is the one that counts."""
    echo: Contender
    """A bare server that sends the same bytes back."""
    one_way: Contender | None = None
    """A bare server that carries the bytes only the way that Millrace does: a harder yardstick."""
    logs: Sequence[Contender] = ()
    """Servers that answer what is on the disk, and have no channel: what could be reached."""
    loops: Sequence[Contender] = ()
    """Bare loops that write the same bytes to the disk, without RPC."""
    peers: Sequence[Contender] = ()
    """What others use for the same."""
    target: Target | None = None
    """What the first of ours is to reach."""
    notes: Sequence[str] = ()
    """What is to be known of the contenders, such as why one is left out."""
    remarks: Callable[[], Mapping[str, float]] = dict
    """Further figures of the first of ours, once all rounds are done, by what they are."""

    @property
    def contenders(self) -> list[Contender]:
        """All who have their turn."""
        bare = [contender for contender in (self.echo, self.one_way) if contender is not None]
        return [*self.ours, *bare, *self.logs, *self.loops, *self.peers]


@dataclass
class Figures:
    """What one contender did, round by round."""

    events_per_second: list[float] = field(default_factory=list)
    server_microseconds: list[float] = field(default_factory=list)
    """Processor time of the server, for each operation."""

    @property
    def rate(self) -> float:
        """Events a second, median."""
        return statistics.median(self.events_per_second)

    @property
    def cost(self) -> float:
        """Processor time of the server for each operation, median."""
        return statistics.median(self.server_microseconds)

    def share_of(self, other: "Figures") -> float:
        """This rate as a part of another's: the median of what each round says."""
        pairs = zip(self.events_per_second, other.events_per_second, strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def share_of_target(target: Target, ours: str, figures: Mapping[str, Figures]) -> float:
    """What one of ours reaches of a target's yardstick: the median of what each round says."""
    rounds = zip(*(measured.events_per_second for measured in figures.values()), strict=True)
    rates: list[dict[str, float]] = [dict(zip(figures, of_round, strict=True)) for of_round in rounds]
    return statistics.median(of_round[ours] / target.yardstick(of_round) for of_round in rates)


async def measure(scenario: Scenario, rounds: int, scale: float, on_round: Callable[[], None]) -> dict[str, Figures]:
    """Measures all contenders of a scenario.

    Args:
        scenario: What to measure.
        rounds: How often each contender has its turn, after one that does not count.
        scale: How much of the scenario's operations a turn does.
        on_round: Called after each round.

    Returns:
        For each contender, by name, its figures.
    """
    contenders = scenario.contenders
    figures = {contender.name: Figures() for contender in contenders}
    operations = max(round(scenario.operations * scale), 1)
    shares = {contender.name: max(round(operations * contender.share), 1) for contender in contenders}
    for contender in contenders:
        await _take_turn(contender, max(shares[contender.name] // 5, 1))
    for number in range(rounds):
        shift = number % len(contenders)
        for contender in contenders[shift:] + contenders[:shift]:
            event_count = shares[contender.name] * scenario.events_per_operation
            seconds, microseconds = await _take_turn(contender, shares[contender.name])
            figures[contender.name].events_per_second.append(event_count / seconds)
            figures[contender.name].server_microseconds.append(microseconds)
        on_round()
    return figures


async def _take_turn(contender: Contender, operations: int) -> tuple[float, float]:
    await contender.prepare(operations)
    gc.collect()
    await asyncio.sleep(0)
    cpu_before, started = cpu_seconds(contender.server_pid), time.perf_counter()
    await contender.run(operations)
    seconds = time.perf_counter() - started
    cpu_used = cpu_seconds(contender.server_pid) - cpu_before
    await contender.tidy(operations)
    return seconds, cpu_used / operations * 1e6
