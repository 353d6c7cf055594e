"""Contenders measured in turns, so that other load on the machine affects all of them alike."""

import asyncio
import gc
import random
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
    """One of the programs that are compared."""

    name: str
    server_pid: int
    run: Callable[[int], Awaitable[None]]
    """Performs this many operations; this is timed."""
    prepare: Callable[[int], Awaitable[None]] = _nothing
    """Prepares for this many operations."""
    tidy: Callable[[int], Awaitable[None]] = _nothing
    """Cleans up after this many operations, and checks that they were done."""
    share: float = 1.0
    """The share of the scenario's operations that it does: less than 1 if it is so slow that they would take long."""


@dataclass(frozen=True)
class Target:
    """The target of a rate."""

    least: float
    """The minimum ratio to the reference."""
    words: str
    """The name of the reference."""
    yardstick: Callable[[Mapping[str, float]], float]
    """The rate of the reference, computed from those of all contenders in one round, by name."""


def of_echo(least: float) -> Target:
    """A share of the bare echo's rate."""
    return Target(least, "echo", lambda rates: rates[ECHO])


def of_slower(least: float) -> Target:
    """A share of the rate of the bare echo or the bare loop, whichever is slower: RPC or disk."""
    return Target(least, "slower of echo, loop", lambda rates: min(rates[ECHO], rates[LOOP]))


def of_fastest_peer(names: Sequence[str]) -> Target:
    """More than the rate of the fastest other product."""
    return Target(1.0, "fastest peer", lambda rates: max(rates[name] for name in names))


def of_both_in_turn(least: float) -> Target:
    """A share of the rate of a bare echo followed by a bare loop: RPC, then disk."""
    return Target(least, "echo then loop", lambda rates: 1 / (1 / rates[ECHO] + 1 / rates[LOOP]))


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is measured, and what it is compared with."""

    name: str
    title: str
    events_per_operation: int
    operations: int
    """The number in each round."""
    ours: Sequence[Contender]
    """The variants of Millrace; the first one has the target."""
    echo: Contender
    """A bare server that returns the same bytes."""
    one_way: Contender | None = None
    """A bare server that carries the bytes only in the direction of Millrace: a more demanding reference."""
    logs: Sequence[Contender] = ()
    """Servers that respond once the data is on the disk, without a channel: the possible maximum."""
    loops: Sequence[Contender] = ()
    """Bare loops that write the same bytes to the disk, without RPC."""
    peers: Sequence[Contender] = ()
    """Other products for the same purpose."""
    target: Target | None = None
    """The target of the first variant."""
    notes: Sequence[str] = ()
    """Notes on the contenders, such as why one is left out."""
    remarks: Callable[[], Mapping[str, float]] = dict
    """Further figures of the first variant after all rounds, by name."""

    @property
    def contenders(self) -> list[Contender]:
        """All contenders."""
        bare = [contender for contender in (self.echo, self.one_way) if contender is not None]
        return [*self.ours, *bare, *self.logs, *self.loops, *self.peers]


@dataclass
class Figures:
    """The results of one contender, round by round."""

    events_per_second: list[float] = field(default_factory=list)
    server_microseconds: list[float] = field(default_factory=list)
    """The server's processor time for each operation."""

    @property
    def rate(self) -> float:
        """Events per second, median."""
        return statistics.median(self.events_per_second)

    @property
    def cost(self) -> float:
        """The server's processor time for each operation, median."""
        return statistics.median(self.server_microseconds)

    def share_of(self, other: "Figures") -> float:
        """The ratio to another's rate: the median over the rounds."""
        pairs = zip(self.events_per_second, other.events_per_second, strict=True)
        return statistics.median(mine / theirs for mine, theirs in pairs)


def share_of_target(target: Target, ours: str, figures: Mapping[str, Figures]) -> float:
    """The ratio of a variant to a target's reference: the median over the rounds."""
    rounds = zip(*(measured.events_per_second for measured in figures.values()), strict=True)
    rates: list[dict[str, float]] = [dict(zip(figures, of_round, strict=True)) for of_round in rounds]
    return statistics.median(of_round[ours] / target.yardstick(of_round) for of_round in rates)


async def measure(scenario: Scenario, rounds: int, scale: float, on_round: Callable[[], None]) -> dict[str, Figures]:
    """Measures all contenders of a scenario.

    Args:
        scenario: What to measure.
        rounds: The number of turns of each contender, after one that does not count.
        scale: The share of the scenario's operations in a turn.
        on_round: Called after each round.

    Returns:
        The figures of each contender, by name.
    """
    contenders = scenario.contenders
    figures = {contender.name: Figures() for contender in contenders}
    operations = max(round(scenario.operations * scale), 1)
    shares = {contender.name: max(round(operations * contender.share), 1) for contender in contenders}
    for contender in contenders:
        await _take_turn(contender, max(shares[contender.name] // 5, 1))
    turns = random.Random(0)
    for _ in range(rounds):
        # Not in turn: the same neighbour each time would favour one of two equal servers by some hundredths.
        for contender in turns.sample(contenders, len(contenders)):
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
