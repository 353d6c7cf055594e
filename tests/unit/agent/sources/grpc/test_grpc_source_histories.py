"""Callers that append to a source with several file channels, while disks fail, channels fill up and power is cut.

The model is small: a number always means the same event, whose channels follow from it alone. Whatever is appended, in
whichever pieces and how often, each channel finally has each of its events once.
"""

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
from millrace_server.agent.interceptors.interceptor import QuickInterceptor
from millrace_server.agent.selectors import LoadBalancingConfig, MultiplexingConfig, ReplicatingConfig, SelectorConfig
from millrace_server.agent.sources.grpc.source import GrpcSource
from millrace_server.agent.sources.source import SourceContext
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.commit import Receipt
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import BadArgumentError, MillraceError
from tests.channel_events import bodies_of, queued, stored_rows
from tests.simulated_channels import DATA, make_simple, open_simulated_channel, small_limits
from tests.simulated_disk import SimulatedDisk
from tests.source_writers import component_of, routing_of
from tests.unit.agent.simulated_registry import FakeRegistry
from tests.unit.agent.sources.grpc.grpc_sources import entrance_of
from tests.virtual_clock import VirtualClockLoop, settle

NAMES = ("a", "b", "c")
NUMBERS = 20
"""The numbers of the model's only producer begin at 0."""
CAPACITY = 8
PRODUCER_ID = "caller"

DROPPED_EVERY = 5
CHANNELS_BY_KIND = {"0": "a", "1": "bc", "2": "ac", "3": "b"}
MULTIPLEXING = MultiplexingConfig(
    type="multiplexing", header="kind", mapping={kind: list(names) for kind, names in CHANNELS_BY_KIND.items()}
)
SELECTORS: Sequence[SelectorConfig] = (
    MULTIPLEXING,
    ReplicatingConfig(type="replicating"),
    LoadBalancingConfig(type="load_balancing", policy="round_robin"),
)

CHANNELS = st.sampled_from(NAMES)
RANGES = st.tuples(st.integers(0, NUMBERS - 1), st.integers(1, 5))
STEPS = st.one_of(
    st.tuples(st.just("append"), RANGES),
    st.tuples(st.just("append"), RANGES),
    st.tuples(st.just("append_at_once"), st.lists(RANGES, min_size=2, max_size=3)),
    st.tuples(st.just("append_cancelled"), RANGES, st.integers(0, 12)),
    st.tuples(st.just("commit"), RANGES),
    st.tuples(st.just("fill_disk"), CHANNELS, st.sampled_from(["write", "reserve"]), st.integers(1, 3)),
    st.tuples(st.just("break_disk"), CHANNELS, st.sampled_from(["write", "sync"]), st.integers(1, 3)),
    st.tuples(st.just("empty"), CHANNELS),
    st.tuples(st.just("kill")),
    st.tuples(st.just("cut_power"), st.integers(0, 1 << 32)),
)


class _Dropping(QuickInterceptor):
    """Drops every fifth event, on the event loop: a thread has no place on a virtual clock."""

    def intercept(self, table: EventTable) -> EventTable:
        return table.chosen([int(body) % DROPPED_EVERY != 0 for body in table.bodies])


def request_of(numbers: range) -> list[StoredColumns]:
    """The events of these numbers as a caller sends them."""
    return [stored_rows(({"kind": str(number % 4)}, b"%d" % number) for number in numbers)]


def numbers_of(span: tuple[int, int]) -> range:
    first, count = span
    return range(first, min(first + count, NUMBERS))


def stamp_of(numbers: range) -> Stamp:
    return Stamp(PRODUCER_ID, numbers[0], numbers[-1])


@dataclass
class CallerHarness:
    """The source, its channels on their disks, and what callers know."""

    selector: SelectorConfig
    registry: FakeRegistry = field(default_factory=FakeRegistry)
    disks: dict[str, SimulatedDisk] = field(default_factory=lambda: {n: SimulatedDisk([DATA], n == "b") for n in NAMES})
    taken: dict[str, list[bytes]] = field(default_factory=lambda: {name: [] for name in NAMES})
    sent: set[int] = field(default_factory=set)
    responded: set[int] = field(default_factory=set)
    """The numbers that are stored, as the callers were told."""
    source: "asyncio.Task[None] | None" = None

    async def open(self) -> None:
        """Opens the channels from their disks, and starts the source."""
        for name in NAMES:
            opened = await open_simulated_channel(self.disks[name], small_limits(capacity=CAPACITY))
            opened.channel.name = name
            self.registry.opened[name] = opened
        registry, self.entrance = cast("ChannelRegistry", self.registry), entrance_of()
        routing = routing_of(self.selector, NAMES)
        writer = ChannelWriter(registry, NAMES, [_Dropping()], component_of(), CAPACITY, routing=routing)
        await writer.wait_open()
        self.source = asyncio.create_task(GrpcSource(SourceContext("in", DATA, None, self.entrance)).run(writer))
        await asyncio.sleep(0)

    async def kill(self) -> None:
        """Kills the server, and starts it again."""
        await self._reopen({name: disk.copy() for name, disk in self.disks.items()})

    async def cut_power(self, seed: int) -> None:
        """Cuts the power; the disks keep a random part of what was not synced."""
        await self._reopen({name: disk.crashed(seed) for name, disk in self.disks.items()})

    async def _reopen(self, disks: dict[str, SimulatedDisk]) -> None:
        self.abandon()
        self.disks = disks
        for disk in disks.values():
            disk.heal()
        await self.open()

    def abandon(self) -> None:
        assert self.source is not None
        self.source.cancel()
        for opened in self.registry.opened.values():
            opened.abandon()

    async def fill_disk(self, name: str, kind: str, nth: int) -> None:
        """Leaves a disk without space for a moment."""
        self.disks[name].fail(kind, nth, errno.ENOSPC)

    async def break_disk(self, name: str, kind: str, nth: int) -> None:
        """Makes a disk fail, and with it the channel's log."""
        self.disks[name].fail(kind, nth, errno.EIO)

    async def append(self, span: tuple[int, int]) -> None:
        numbers = numbers_of(span)
        self.sent |= set(numbers)
        response = await self.entrance.accepting().appends.append(request_of(numbers), stamp_of(numbers))
        self._note(numbers, response)

    async def append_at_once(self, spans: Sequence[tuple[int, int]]) -> None:
        """Several callers have some of the same numbers, as after a lost connection."""
        outcomes = await asyncio.gather(*map(self.append, spans), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None and (
                not isinstance(outcome, MillraceError) or isinstance(outcome, BadArgumentError)
            ):
                raise outcome

    async def append_cancelled(self, span: tuple[int, int], turns: int) -> None:
        """A caller leaves after some turns of the loop."""
        appending = asyncio.ensure_future(self.append(span))
        for _ in range(turns):
            await asyncio.sleep(0)
        appending.cancel()
        with suppress(asyncio.CancelledError):
            await appending

    async def commit(self, span: tuple[int, int]) -> None:
        """The same by a transaction."""
        numbers, transactions = numbers_of(span), self.entrance.accepting().transactions
        self.sent |= set(numbers)
        txn_id, _ = transactions.begin(None, None)
        try:
            transactions.put(txn_id, request_of(numbers), None)
            self._note(numbers, await transactions.commit([txn_id], stamp_of(numbers)))
        except MillraceError:
            transactions.rollback(txn_id)
            raise

    def _note(self, numbers: range, response: Receipt) -> None:
        assert (response.first_sequence, response.last_sequence, response.commit_time) == (0, 0, 0)
        assert response.is_deduplicated or not self.responded >= set(numbers), "a repeat is told as one"
        self.responded |= set(numbers)
        self.check()

    async def empty(self, name: str) -> None:
        """Takes all events of a channel, unless a fault is pending, which would make the rest unknown."""
        channel = self.registry.get(name)
        await settle()
        if self.disks[name]._refusals or channel._core.committer.fault is not None:
            return
        bodies = queued(channel)
        await channel.purge()
        self.taken[name] += bodies

    def stored(self) -> dict[str, list[int]]:
        """The numbers of all events that each channel has ever stored."""
        return {
            name: sorted(map(int, self.taken[name] + bodies_of(self.registry.get(name)._contents.queue)))
            for name in NAMES
        }

    def check(self) -> None:
        """Asserts that what was acknowledged is there, nothing twice, and nothing that does not belong there."""
        stored = self.stored()
        assert all(len(numbers) == len(set(numbers)) for numbers in stored.values())
        kept = {number for number in self.responded if number % DROPPED_EVERY}
        if isinstance(self.selector, LoadBalancingConfig):
            everywhere = [number for numbers in stored.values() for number in numbers]
            assert len(everywhere) == len(set(everywhere))
            assert kept <= set(everywhere) <= self.sent
            return
        for name in NAMES:
            assert set(filter(lambda number: self.goes_to(number, name), kept)) <= set(stored[name])
            assert all(number in self.sent and self.goes_to(number, name) for number in stored[name])

    def goes_to(self, number: int, name: str) -> bool:
        if number % DROPPED_EVERY == 0:
            return False
        return self.selector is not MULTIPLEXING or name in CHANNELS_BY_KIND[str(number % 4)]


async def _live(harness: CallerHarness, steps: Sequence[tuple[Any, ...]]) -> None:
    await harness.open()
    for name, *arguments in steps:
        try:
            await getattr(harness, name)(*arguments)
        except BadArgumentError:
            raise
        except MillraceError:
            pass
    await harness.kill()
    harness.check()
    for first in range(0, NUMBERS, 3):
        for channel in NAMES:
            await harness.empty(channel)
        await harness.append((first, 3))
    assert harness.responded == set(range(NUMBERS))
    harness.check()
    harness.abandon()


def _run(live: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(live)


EACH_SELECTOR = pytest.mark.parametrize("selector", SELECTORS, ids=["multiplexing", "replicating", "load_balancing"])


@EACH_SELECTOR
@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], derandomize=True
)
@given(steps=st.lists(STEPS, max_size=25))
def test_append_through_faults_and_crashes_stores_each_event_once(
    monkeypatch: pytest.MonkeyPatch, selector: SelectorConfig, steps: list[tuple[Any, ...]]
) -> None:
    """Each event is finally in its channels, once, whatever happens between the commits."""
    make_simple(monkeypatch)
    _run(_live(CallerHarness(selector), steps))


@pytest.mark.torture
@EACH_SELECTOR
@settings(max_examples=1_500, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(steps=st.lists(STEPS, max_size=60))
def test_append_through_long_histories_stores_each_event_once(
    monkeypatch: pytest.MonkeyPatch, selector: SelectorConfig, steps: list[tuple[Any, ...]]
) -> None:
    """The same for longer, random histories; hypothesis reports the seed of a failing one."""
    make_simple(monkeypatch)
    _run(_live(CallerHarness(selector), steps))
