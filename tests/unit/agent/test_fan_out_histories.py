"""A source that reads lines into several file channels while disks fail, channels fill up and power is cut."""

import asyncio
import errno
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable
from millrace_server.agent.selectors import (
    LoadBalancer,
    LoadBalancingConfig,
    MultiplexingConfig,
    ReplicatingConfig,
    SelectorConfig,
)
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import BytesFullError, ChannelFullError, MillraceError
from tests.channel_events import bodies_of, queued
from tests.simulated_channels import DATA, make_simple, open_simulated_channel, small_limits
from tests.simulated_disk import SimulatedDisk
from tests.source_writers import component_of, routing_of
from tests.unit.agent.simulated_registry import FakeRegistry
from tests.virtual_clock import VirtualClockLoop, settle

NAMES = ("a", "b", "c")
LINES_MAX = 24
CAPACITY = 6
PRODUCER_ID = "file"

SELECTORS: Sequence[SelectorConfig] = (
    ReplicatingConfig(type="replicating"),
    MultiplexingConfig(
        type="multiplexing", header="kind", mapping={"0": ["a"], "1": ["b", "c"], "2": ["a", "c"]}, default=["b"]
    ),
    LoadBalancingConfig(type="load_balancing", policy="key_hash"),
    LoadBalancingConfig(type="load_balancing", policy="round_robin"),
    LoadBalancingConfig(type="load_balancing", policy="random"),
    LoadBalancingConfig(type="load_balancing", policy="least_full"),
)

CHANNELS = st.sampled_from(NAMES)
STEPS = st.one_of(
    st.tuples(st.just("offer"), st.integers(1, 4)),
    st.tuples(st.just("offer"), st.integers(1, 4)),
    st.tuples(st.just("offer_cancelled"), st.integers(1, 4), st.integers(0, 12)),
    st.tuples(st.just("fill_disk"), CHANNELS, st.sampled_from(["write", "reserve"]), st.integers(1, 3)),
    st.tuples(st.just("break_disk"), CHANNELS, st.sampled_from(["write", "sync"]), st.integers(1, 3)),
    st.tuples(st.just("empty"), CHANNELS),
    st.tuples(st.just("kill")),
    st.tuples(st.just("cut_power"), st.integers(0, 1 << 32)),
)


@dataclass
class FanOutHarness:
    """The source, its channels on their disks, and what sinks have taken out of them."""

    selector: SelectorConfig
    line_lengths: Sequence[int]
    registry: FakeRegistry = field(default_factory=FakeRegistry)
    disks: dict[str, SimulatedDisk] = field(default_factory=lambda: {n: SimulatedDisk([DATA], n == "b") for n in NAMES})
    taken: dict[str, list[bytes]] = field(default_factory=lambda: {name: [] for name in NAMES})
    pending: tuple[EventTable, Stamp] | None = None
    """The batch that the source tries to store, until it reads again."""
    writer: ChannelWriter = field(init=False)

    def __post_init__(self) -> None:
        starts = [sum(self.line_lengths[:index]) for index in range(len(self.line_lengths) + 1)]
        self.starts = starts

    async def open(self) -> None:
        """Opens the channels from their disks, and restarts the source."""
        for name in NAMES:
            opened = await open_simulated_channel(self.disks[name], small_limits(capacity=CAPACITY))
            opened.channel.name = name
            self.registry.opened[name] = opened
        routing = routing_of(self.selector, NAMES)
        registry = cast("ChannelRegistry", self.registry)
        self.writer = ChannelWriter(registry, NAMES, [], component_of(), CAPACITY, routing=routing)
        await self.begin_run()

    async def begin_run(self) -> None:
        """Runs the source again, which asks the channels where to continue."""
        self.pending = None
        with suppress(MillraceError):
            await self.writer.wait_open()

    async def kill(self) -> None:
        """Kills the server, and starts it again."""
        await self._reopen({name: disk.copy() for name, disk in self.disks.items()})

    async def cut_power(self, seed: int) -> None:
        """Cuts the power; the disks keep a random part of what was not synced."""
        await self._reopen({name: disk.crashed(seed) for name, disk in self.disks.items()})

    async def _reopen(self, disks: dict[str, SimulatedDisk]) -> None:
        for opened in self.registry.opened.values():
            opened.abandon()
        self.disks = disks
        for disk in disks.values():
            disk.heal()
        await self.open()

    async def fill_disk(self, name: str, kind: str, nth: int) -> None:
        """Leaves a disk without space for a moment."""
        self.disks[name].fail(kind, nth, errno.ENOSPC)

    async def break_disk(self, name: str, kind: str, nth: int) -> None:
        """Makes a disk fail, and with it the channel's log."""
        self.disks[name].fail(kind, nth, errno.EIO)

    def next_batch(self, count: int) -> tuple[EventTable, Stamp] | None:
        """The next lines that some channel has not accepted, cut at the ends of the accepted ranges."""
        accepted = self.writer.stored_ranges(PRODUCER_ID)
        ends = [ranges[-1][1] + 1 if ranges else 0 for ranges in accepted]
        assert all(len(ranges) <= 1 for ranges in accepted), "each channel's numbers are without gaps"
        start = min(ends)
        border = min([end for end in ends if end > start], default=self.starts[-1])
        first = self.starts.index(start)
        last = min(first + count, self.starts.index(border))
        if first == last:
            return None
        bodies = [b"%d" % index for index in range(first, last)]
        kinds = [str(index % 4) for index in range(first, last)]
        return EventTable(bodies, {"kind": kinds}), Stamp(PRODUCER_ID, start, self.starts[last] - 1)

    async def offer(self, count: int) -> bool:
        """Makes the source try once; returns whether there was anything left to store."""
        self.pending = self.pending or self.next_batch(count)
        if self.pending is None:
            return False
        before = self.stored()
        try:
            await self.writer.try_deliver(*self.pending)
        except (ChannelFullError, BytesFullError):
            assert self.stored() == before, "a full channel leaves no half behind"
            raise
        self.pending = None
        return True

    async def offer_cancelled(self, count: int, turns: int) -> None:
        """Makes an attempt that is cancelled after some turns of the loop; then runs the source again."""
        trying = asyncio.ensure_future(self.offer(count))
        for _ in range(turns):
            await asyncio.sleep(0)
        trying.cancel()
        with suppress(asyncio.CancelledError, MillraceError):
            await trying
        await self.begin_run()

    async def empty(self, name: str) -> None:
        """Takes all events of a channel, unless a fault is pending, which would make the rest unknown."""
        channel = self.registry.get(name)
        await settle()
        if self.disks[name]._refusals or channel._core.committer.fault is not None:
            return
        bodies = queued(channel)
        await channel.purge()
        self.taken[name] += bodies

    def stored(self) -> dict[str, list[bytes]]:
        """All events that each channel has ever stored."""
        assert all(self.registry.get(name)._contents.capacity.event_count <= CAPACITY for name in NAMES)
        return {name: self.taken[name] + bodies_of(self.registry.get(name)._contents.queue) for name in NAMES}

    def check_whole(self) -> None:
        """Asserts that each event is where it belongs, once, in its order."""
        bodies = [b"%d" % index for index in range(len(self.line_lengths))]
        stored = self.stored()
        selector = self.selector.make(NAMES)
        if isinstance(selector, LoadBalancer):
            assert sorted((body for each in stored.values() for body in each), key=int) == bodies
            assert all(each == sorted(each, key=int) for each in stored.values())
            return
        kinds = [str(index % 4) for index in range(len(bodies))]
        choices = selector.select(EventTable(bodies, {"kind": kinds}))
        for name in NAMES:
            choice = choices.get(name, False)
            goes = [choice] * len(bodies) if isinstance(choice, bool) else choice
            assert stored[name] == [body for body, is_mine in zip(bodies, goes, strict=True) if is_mine]


async def _live(harness: FanOutHarness, steps: Sequence[tuple[Any, ...]]) -> None:
    await harness.open()
    for name, *arguments in steps:
        with suppress(MillraceError):
            await getattr(harness, name)(*arguments)
    await harness.kill()
    is_left = True
    while is_left:
        for channel in NAMES:
            await harness.empty(channel)
        is_left = await harness.offer(3)
    harness.check_whole()
    for opened in harness.registry.opened.values():
        opened.abandon()


def _run(live: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(live)


LINE_LENGTHS = st.lists(st.integers(1, 3), min_size=1, max_size=LINES_MAX)
EACH_SELECTOR = pytest.mark.parametrize(
    "selector", SELECTORS, ids=[getattr(each, "policy", type(each).__name__) for each in SELECTORS]
)


@EACH_SELECTOR
@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], derandomize=True
)
@given(line_lengths=LINE_LENGTHS, steps=st.lists(STEPS, max_size=25))
def test_offer_through_faults_and_crashes_stores_each_event_once(
    monkeypatch: pytest.MonkeyPatch, selector: SelectorConfig, line_lengths: list[int], steps: list[tuple[Any, ...]]
) -> None:
    """Each event is finally in its channels, once and in order, whatever happens between the commits."""
    make_simple(monkeypatch)
    _run(_live(FanOutHarness(selector, line_lengths), steps))


@pytest.mark.torture
@EACH_SELECTOR
@settings(max_examples=1_500, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(line_lengths=LINE_LENGTHS, steps=st.lists(STEPS, max_size=60))
def test_offer_through_long_histories_stores_each_event_once(
    monkeypatch: pytest.MonkeyPatch, selector: SelectorConfig, line_lengths: list[int], steps: list[tuple[Any, ...]]
) -> None:
    """The same for longer, random histories; hypothesis reports the seed of a failing one."""
    make_simple(monkeypatch)
    _run(_live(FanOutHarness(selector, line_lengths), steps))
