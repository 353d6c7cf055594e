import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millrace_server.agent import failover as failover_module
from millrace_server.agent.channel_reader import ReaderLimits
from millrace_server.agent.components import Component, ComponentKind, Components, ComponentState
from millrace_server.agent.runners import SinkRunner
from millrace_server.agent.sink_group import GroupReader, SinkGroup, member_backoff
from millrace_server.agent.sink_group_config import SinkGroupConfig
from millrace_server.agent.sinks.sink import BatchSink
from millrace_server.agent.supervision import ComponentError, ComponentFailedError
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import ChannelRegistry
from tests.agent_components import registry_with
from tests.channel_events import append, bodies_of, check_accounts, queued
from tests.virtual_clock import at_once
from tests.waiting import until

HAS_VIRTUAL_CLOCK = True

QUICK_SECONDS = 0.03


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks are created on the loop's thread, since the virtual clock advances while another thread works."""
    monkeypatch.setattr(asyncio, "to_thread", at_once)


class Written:
    """What all sinks have written, in order, and the maximum number that worked at the same time."""

    def __init__(self) -> None:
        self.log: list[tuple[str, bytes]] = []
        self.at_work = 0
        self.at_work_max = 0

    def by(self, name: str) -> list[bytes]:
        return [body for writer, body in self.log if writer == name]

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, body in self.log]


class Sink(BatchSink):
    """A sink that writes until the test makes it fail."""

    def __init__(self, name: str, written: Written) -> None:
        self.name = name
        self.written = written
        self.open_error: Exception | None = None
        self.write_error: Exception | None = None
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.may_open = asyncio.Event()
        self.may_open.set()
        self.is_writing = False
        self.open_count = 0

    async def open(self) -> None:
        self.open_count += 1
        await self.may_open.wait()
        if self.open_error is not None:
            raise self.open_error

    async def write(self, batches: Sequence[StoredBatch]) -> None:
        written = self.written
        written.at_work += 1
        written.at_work_max = max(written.at_work, written.at_work_max)
        self.is_writing = True
        try:
            await self.may_write.wait()
            if self.write_error is not None:
                raise self.write_error
            written.log += [(self.name, body) for body in bodies_of(batches)]
            await asyncio.sleep(0)
        finally:
            self.is_writing = False
            written.at_work -= 1


class Group:
    """A running group of three sinks on channel `orders`; `a` has the highest priority."""

    def __init__(self, registry: ChannelRegistry, policy: str, backoff_seconds_max: float) -> None:
        self.channel: Channel = registry.get("orders")
        self.components = Components()
        self.written = Written()
        self.sinks = {name: Sink(name, self.written) for name in "abc"}
        named: dict[str, Any] = {
            "sinks": list(self.sinks),
            "policy": policy,
            "backoff_seconds_max": backoff_seconds_max,
        }
        config = SinkGroupConfig(**named)
        component = self.components.add(ComponentKind.SINK_GROUP, "all", policy)
        self.reader = GroupReader(registry, "orders", component)
        for name in self.sinks:
            self.reader.add_member(self.components.add(ComponentKind.SINK, name, "test"), ReaderLimits(2, 3, None))
        members = [member.component for member in self.reader.members]
        make = [lambda sink=sink: sink for sink in self.sinks.values()]
        self.running = SinkRunner(component, members, self.reader, lambda: SinkGroup(config, self.reader, make))
        self.count = 0

    @property
    def component(self) -> Component:
        return self.running.component

    def state_of(self, name: str) -> ComponentState:
        component = self.components.find(ComponentKind.SINK, name)
        assert component is not None
        return component.state

    async def send(self, count: int = 2) -> None:
        """Appends events, and waits until they are written."""
        await append(self.channel, *[b"%d" % (self.count + number) for number in range(count)])
        self.count += count

    async def delivered(self) -> None:
        await until(lambda: not self.channel._contents.capacity.event_count)

    @property
    def all_bodies(self) -> list[bytes]:
        return [b"%d" % number for number in range(self.count)]


@asynccontextmanager
async def group_of(policy: str, backoff_seconds_max: float = QUICK_SECONDS) -> AsyncIterator[Group]:
    group = Group(registry_with("orders", capacity=10_000, transaction_capacity=1_000), policy, backoff_seconds_max)
    try:
        yield group
    finally:
        assert await group.running.stop(1.0)
        check_accounts(group.channel)


@pytest.fixture
async def failover() -> AsyncIterator[Group]:
    async with group_of("failover") as group:
        yield group


# Failover.


async def test_failover_while_all_are_healthy_activates_the_first_of_the_list(failover: Group) -> None:
    """The order of the list is the priority, whatever the names are; the others stand by, and open nothing."""
    for _ in range(20):
        await failover.send()
    await failover.delivered()
    assert failover.written.by("a") == failover.all_bodies
    assert [failover.state_of(name) for name in "abc"] == [ComponentState.RUNNING, *2 * [ComponentState.STANDING_BY]]
    assert [sink.open_count for sink in failover.sinks.values()] == [1, 0, 0]
    assert (failover.component.state, failover.component.event_count) == (ComponentState.RUNNING, 40)


async def test_failover_of_the_first_goes_to_the_next_in_the_list(failover: Group) -> None:
    """After the second sink fails, the third becomes active; each has its own state, and all events arrive in order."""
    failover.sinks["a"].write_error = ComponentError("a is gone")
    await failover.send()
    await failover.delivered()
    assert failover.written.by("b") == failover.all_bodies
    failover.sinks["b"].write_error = ComponentError("b is gone")
    await failover.send()
    await failover.delivered()
    assert failover.written.by("c") == failover.all_bodies[2:]
    assert [failover.state_of(name) for name in "ab"] == 2 * [ComponentState.BACKING_OFF]
    assert failover.component.state is ComponentState.RUNNING
    assert failover.written.bodies == failover.all_bodies


async def test_failover_of_all_says_why_each_fails(failover: Group) -> None:
    """The group backs off once none of its sinks works; no event is lost."""
    for name, sink in failover.sinks.items():
        sink.write_error = ComponentError(f"{name} is gone")
    await failover.send()
    await until(lambda: failover.component.state is ComponentState.BACKING_OFF)
    assert failover.component.reason == "none of its sinks works: a: a is gone; b: b is gone; c: c is gone"
    failover.sinks["c"].write_error = None
    await failover.delivered()
    assert failover.component.state is ComponentState.RUNNING
    assert failover.written.by("c") == failover.all_bodies


async def test_failover_back_to_one_that_is_healthy_again_is_automatic(failover: Group) -> None:
    """The other settles its deliveries first, and they never work together."""
    first, second = failover.sinks["a"], failover.sinks["b"]
    first.open_error = ComponentError("cannot connect")
    await failover.send()
    await failover.delivered()
    assert failover.written.by("b") == failover.all_bodies
    second.may_write.clear()
    await failover.send()
    await until(lambda: second.is_writing)
    first.open_error = None
    await until(lambda: not failover.reader.members[1].unsettled_count or first.open_count > 1)
    second.may_write.set()
    await until(lambda: failover.state_of("b") is ComponentState.STANDING_BY)
    await failover.send()
    await failover.delivered()
    assert failover.written.by("a") == failover.all_bodies[-2:]
    assert failover.written.bodies == failover.all_bodies
    assert failover.written.at_work_max == 1
    assert failover.state_of("a") is ComponentState.RUNNING


async def test_failover_to_a_sink_that_cannot_open_takes_no_events_for_it(failover: Group) -> None:
    """While it retries in vain, the next one works undisturbed."""
    first = failover.sinks["a"]
    first.open_error = ComponentError("cannot connect")
    while first.open_count < 5:
        await failover.send()
        await failover.delivered()
    assert failover.written.by("b") == failover.all_bodies
    assert failover.sinks["b"].open_count == 1


async def test_failover_back_from_one_that_hangs_does_not_wait_for_it(
    failover: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cancelled after a while; the events that it held are delivered by the other."""
    monkeypatch.setattr(failover_module, "HANDOVER_SECONDS_MAX", 0.01)
    first, second = failover.sinks["a"], failover.sinks["b"]
    first.open_error = ComponentError("cannot connect")
    await failover.send()
    await failover.delivered()
    second.may_write.clear()
    await failover.send()
    await until(lambda: second.is_writing)
    first.open_error = None
    await failover.delivered()
    assert failover.written.by("a") == failover.all_bodies[2:]
    assert failover.state_of("b") is ComponentState.STANDING_BY


async def open_slowly(failover: Group, count: int) -> list[Sink]:
    """Sends events until `a` has failed, then `b`, and `c` is opening; returns once `a` has failed again."""
    first, second, third = failover.sinks.values()
    first.open_error = ComponentError("a cannot connect")
    await failover.send()
    await failover.delivered()
    second.write_error = ComponentError("b is gone")
    third.may_open.clear()
    await failover.send(count)
    await until(lambda: third.open_count == 1)
    former_count = first.open_count
    await until(lambda: first.open_count > former_count + 1)
    return [first, third]


async def test_failover_to_one_that_opens_too_late_leaves_it_ready_for_the_next_time(failover: Group) -> None:
    """A sink with a higher priority is already active; it remains on standby."""
    first, third = await open_slowly(failover, 2)
    first.open_error = None
    await failover.delivered()
    assert failover.written.by("a") == failover.all_bodies[2:]
    third.may_open.set()
    await until(lambda: failover.state_of("c") is ComponentState.STANDING_BY)
    first.write_error = ComponentError("a is gone")
    await failover.send()
    await failover.delivered()
    assert failover.written.by("c") == failover.all_bodies[4:]


async def test_failover_to_one_that_opens_slowly_lets_it_follow_one_that_failed_before(failover: Group) -> None:
    """Sinks that are tried meanwhile, and fail again, do not keep it from its turn."""
    # More than a sink holds: an empty channel counts as progress.
    first, third = await open_slowly(failover, 10)
    first.open_error, first.write_error = None, ComponentError("a is gone")
    first.may_write.clear()
    await until(lambda: first.is_writing)
    third.may_write.clear()
    third.may_open.set()
    await until(lambda: failover.reader.members[0]._is_closing)
    first.may_write.set()
    await until(lambda: third.is_writing)
    assert third.open_count == 1
    third.may_write.set()
    await failover.delivered()
    assert failover.written.by("c") == failover.all_bodies[2:]


async def test_failover_of_a_sink_that_has_failed_permanently_leaves_the_others(failover: Group) -> None:
    """It is not retried by itself; the group fails only if all have failed, and its retry is one of all of them."""
    failover.sinks["a"].open_error = ComponentFailedError("no such directory")
    await failover.send()
    await failover.delivered()
    assert failover.written.by("b") == failover.all_bodies
    assert failover.state_of("a") is ComponentState.FAILED
    for name in "bc":
        failover.sinks[name].write_error = ComponentFailedError("no such host")
    await failover.send()
    await until(lambda: failover.component.state is ComponentState.FAILED)
    assert "c: no such host" in failover.component.reason
    assert queued(failover.channel) == failover.all_bodies[-2:]
    failover.sinks["c"].write_error = None
    failover.component.retry()
    await failover.delivered()
    assert failover.written.by("c") == failover.all_bodies[-2:]
    assert failover.component.state is ComponentState.RUNNING


async def test_failover_of_one_with_a_bug_is_a_failure_like_others(failover: Group) -> None:
    """An error of a user's own sink ends neither the group nor the agent."""
    failover.sinks["a"].write_error = ZeroDivisionError("division by zero")
    await failover.send()
    await failover.delivered()
    assert failover.written.by("b") == failover.all_bodies


# Load balancing.


async def test_load_balancing_runs_all_sinks_at_once() -> None:
    """Each takes as much as it can deliver: a slow one gets less, and delays none."""
    async with group_of("load_balancing") as group:
        await until(lambda: len(group.channel._contents.takers) == 3)
        group.sinks["a"].may_write.clear()
        for _ in range(50):
            await group.send()
        await until(lambda: len(group.written.log) == 98)
        assert group.written.by("a") == []
        assert group.written.by("b")
        assert group.written.by("c")
        assert {group.state_of(name) for name in "abc"} == {ComponentState.RUNNING}
        group.sinks["a"].may_write.set()
        await group.delivered()
    assert sorted(group.written.bodies) == sorted(group.all_bodies)
    assert group.component.event_count == 100


async def test_load_balancing_with_one_that_fails_leaves_its_share_to_the_others() -> None:
    """It backs off, and works again once it can."""
    async with group_of("load_balancing") as group:
        group.sinks["a"].write_error = ComponentError("a is gone")
        for _ in range(30):
            await group.send()
        await group.delivered()
        assert group.written.by("a") == []
        assert group.component.state is ComponentState.RUNNING
        group.sinks["a"].write_error = None
        while not group.written.by("a"):
            await group.send()
            await group.delivered()
        assert group.state_of("a") is ComponentState.RUNNING
    assert sorted(group.written.bodies) == sorted(group.all_bodies)


# Stopping.


@pytest.mark.parametrize("policy", ["failover", "load_balancing"])
async def test_stop_waits_only_for_running_calls(policy: str) -> None:
    """Deliveries are settled; a sink that waits for a retry or is on standby causes no delay."""
    async with group_of(policy, backoff_seconds_max=3_600) as group:
        group.sinks["a"].write_error = ComponentError("a is gone")
        await group.send()
        await group.delivered()
        await until(lambda: group.state_of("a") is ComponentState.BACKING_OFF or not group.sinks["a"].open_count)
        for sink in group.sinks.values():
            sink.may_write.clear()
        await group.send()
        await until(lambda: any(sink.is_writing for sink in group.sinks.values()))
        await group.send()
        stopping = asyncio.create_task(group.running.stop(20.0))
        await asyncio.sleep(0.01)
        assert not stopping.done()
        for sink in group.sinks.values():
            sink.may_write.set()
        assert await stopping
        assert {component.state for component in group.components} == {ComponentState.STOPPED}
        assert group.reader.unsettled_count == 0
        assert sorted(group.written.bodies + queued(group.channel)) == sorted(group.all_bodies)


async def test_stop_of_a_group_that_hangs_nacks_its_deliveries(failover: Group) -> None:
    """After the grace period it is cancelled."""
    failover.sinks["a"].may_write.clear()
    await failover.send()
    await until(lambda: failover.sinks["a"].is_writing)
    assert await failover.running.stop(0.01)
    assert queued(failover.channel) == failover.all_bodies


# Back-off.


def test_backoff_of_many_failures_stays_at_its_maximum() -> None:
    """Flume's delay overflowed at the 22nd failure, and a dead sink was retried without a pause."""
    backoff = member_backoff(Components().add(ComponentKind.SINK, "a", "test"), 30.0)
    delays = [backoff.next_seconds() for _ in range(5_000)]
    assert delays[0] <= 1.0
    assert min(delays[6:]) >= 15.0
    assert max(delays) <= 30.0


def test_backoff_requested_by_a_server_is_no_shorter_than_its_own() -> None:
    """A full server requests a second; the group's other sinks must not be interrupted that often."""
    backoff = member_backoff(Components().add(ComponentKind.SINK, "a", "test"), 30.0)
    assert 2.0 <= backoff.next_seconds(2.0) <= 2.5
    for _ in range(10):
        backoff.next_seconds(1.0)
    assert backoff.next_seconds(1.0) >= 15.0
