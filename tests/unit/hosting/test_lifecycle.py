import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace_server.agent.agent import Agent
from millrace_server.agent.components import ComponentKind, ComponentState
from millrace_server.agent.supervision import ComponentError, ComponentFailedError
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.hosting.lifecycle import stop_flows
from millrace_server.hosting.signals import StopRequests
from tests.agent_parts import (
    WAIT_SECONDS_MAX,
    agent_on,
    flows_of,
    made_sinks,
    made_sources,
    registry_with,
    sink_of,
    source_of,
    until,
    until_state,
)
from tests.channel_events import append, begin_with_puts, limits_of, queued
from tests.file_channels import file_limits

LONG_SECONDS = 600.0
"""Far longer than any test may take."""


class Stopping:
    """An agent on a memory channel `orders`, and a stop of it."""

    def __init__(self, registry: ChannelRegistry, agent: Agent) -> None:
        self.registry = registry
        self.agent = agent
        self.requests = StopRequests()
        self.log: list[Any] = []

    async def stop(self, grace_seconds: float = LONG_SECONDS) -> list[str]:
        """Stops as after a first signal; returns what was logged."""
        self.requests.add()
        with capture_logs() as log:
            self.log = log
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await stop_flows(self.agent, self.registry, self.requests, grace_seconds)
        return [entry["event"] for entry in log]

    async def with_a_shut_sink(self) -> None:
        """A sink that has a first delivery in hand, with two events behind it."""
        self.agent.start(flows_of(sinks={"out": sink_of("orders", is_shut=True, batch_events_max=1)}))
        await append(self.registry.get("orders"), b"a", b"b", b"c")
        await until(lambda: bool(made_sinks) and made_sinks[0].has_begun.is_set())


@pytest.fixture
async def stopping(tmp_path: Path) -> AsyncIterator[Stopping]:
    registry = registry_with("orders", keep_alive_seconds=0.01)
    async with agent_on(registry, tmp_path) as agent:
        yield Stopping(registry, agent)
    await registry.close()


async def test_stop_with_a_slow_sink_lets_it_empty_its_memory_channel(stopping: Stopping) -> None:
    """What would end with the process leaves it first, in its order; then the sink is closed, and nothing is lost."""
    await stopping.with_a_shut_sink()
    stop = asyncio.create_task(stopping.stop())
    await until(lambda: any(entry["event"] == "stopping" for entry in stopping.log))
    assert not stop.done()
    made_sinks[0].may_write.set()
    assert await stop == ["stopping"]
    assert made_sinks[0].written == [b"a", b"b", b"c"]
    assert made_sinks[0].closes == 1
    assert [component.state for component in stopping.agent.components] == [ComponentState.STOPPED]


async def test_stop_ends_the_sources_before_anything_else(stopping: Stopping) -> None:
    """While sinks empty the channels, nothing comes in any more by itself."""
    await stopping.with_a_shut_sink()
    stopping.agent.start(flows_of({"app": source_of("orders")}))
    await until(lambda: bool(made_sources) and made_sources[0].runs == 1)
    stop = asyncio.create_task(stopping.stop())
    await until(lambda: any(entry["event"] == "stopping" for entry in stopping.log))
    assert made_sources[0].ends == 1
    made_sources[0].bodies.put_nowait(b"too late")
    made_sinks[0].may_write.set()
    await stop
    assert made_sinks[0].written == [b"a", b"b", b"c"]


async def test_stop_when_the_grace_is_over_tells_what_is_lost(stopping: Stopping) -> None:
    """A sink that does not finish is ended, and the log says how much went with the process."""
    await stopping.with_a_shut_sink()
    assert await stopping.stop(0.05) == ["stopping", "events in memory are lost"]
    lost = stopping.log[-1]
    assert (lost["channel"], lost["events"]) == ("orders", 3)
    assert made_sinks[0].written == []


async def test_stop_with_a_second_request_ends_at_once(stopping: Stopping) -> None:
    """Whoever asks twice does not wait for sinks."""
    await stopping.with_a_shut_sink()
    stop = asyncio.create_task(stopping.stop())
    await until(lambda: any(entry["event"] == "stopping" for entry in stopping.log))
    stopping.requests.add()
    assert await stop == ["stopping", "events in memory are lost"]


async def test_stop_does_not_wait_for_a_sink_that_has_failed(stopping: Stopping) -> None:
    """What nobody will take out is not worth a wait, but a word."""
    await stopping.with_a_shut_sink()
    made_sinks[0].error = ComponentFailedError("no such user")
    made_sinks[0].may_write.set()
    await until_state(stopping.agent.components, ComponentKind.SINK, "out", ComponentState.FAILED)
    assert await stopping.stop() == ["stopping", "events in memory are lost"]


async def test_stop_while_a_sink_backs_off_tries_until_the_grace_is_over(stopping: Stopping) -> None:
    """A target that comes back within the grace gets all that is left."""
    await stopping.with_a_shut_sink()
    made_sinks[0].error = ComponentError("cannot reach the target")
    made_sinks[0].may_write.set()
    await until_state(stopping.agent.components, ComponentKind.SINK, "out", ComponentState.BACKING_OFF)
    stop = asyncio.create_task(stopping.stop())
    await until(lambda: bool(stopping.log))
    made_sinks[0].error = None
    assert (await stop)[0] == "stopping"
    assert made_sinks[0].written == [b"a", b"b", b"c"]


async def test_stop_with_a_full_file_channel_waits_for_what_its_sink_has_in_hand_only(
    stopping: Stopping, tmp_path: Path
) -> None:
    """What is on disk is there at the next start; no stop waits for all of it."""
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=100, channels_dir=tmp_path / "channels")
    hosted = registry.create("kept", file_limits())
    await hosted.opened.wait()
    await append(hosted.channel, b"a", b"b", b"c")
    async with agent_on(registry, tmp_path) as agent:
        agent.start(flows_of(sinks={"out": sink_of("kept", is_shut=True, batch_events_max=1)}))
        await until(lambda: bool(made_sinks) and made_sinks[0].has_begun.is_set())
        other = Stopping(registry, agent)
        stop = asyncio.create_task(other.stop())
        await until(lambda: bool(other.log))
        made_sinks[0].may_write.set()
        assert await stop == ["stopping"]
        assert made_sinks[0].written == [b"a"]
        assert queued(hosted.channel) == [b"b", b"c"]
    await registry.close()


async def test_stop_waits_for_transactions_of_callers_beside_those_of_sinks(stopping: Stopping) -> None:
    """A sink's deliveries are no transactions that somebody would lose; a caller's transaction may still commit."""
    channel = stopping.registry.get("orders")
    txn_id = begin_with_puts(channel, b"x")
    stop = asyncio.create_task(stopping.stop())
    await until(lambda: bool(stopping.log))
    assert stopping.log[0]["open_transactions"] == 1
    await asyncio.sleep(0.1)
    assert not stop.done()
    await channel.transactions.commit([txn_id], None)
    assert await stop == ["stopping", "events in memory are lost"]


async def test_stop_of_an_agent_without_flows_is_over_at_once_and_tells_what_is_lost(stopping: Stopping) -> None:
    """What memory channels hold was never promised to last, but whoever stops the server should know of it."""
    stopping.registry.create("empty", limits_of())
    await append(stopping.registry.get("orders"), b"a", b"b")
    assert await stopping.stop() == ["stopping", "events in memory are lost"]
    assert (stopping.log[-1]["channel"], stopping.log[-1]["events"]) == ("orders", 2)


async def test_stop_with_a_poisoned_event_sets_it_aside_and_brings_the_others_away(
    stopping: Stopping, tmp_path: Path
) -> None:
    """While the server drains, a sink may still use its dead-letter channel: nothing is lost for one bad event."""
    dead = stopping.registry.create("dead", limits_of(keep_alive_seconds=0.01)).channel
    sink = sink_of("orders", is_shut=True, batch_events_max=1, deliveries_max=1, dead_letter_channel="dead")
    stopping.agent.start(flows_of(sinks={"out": sink}))
    await append(stopping.registry.get("orders"), b"poison", b"b", b"c")
    await until(lambda: bool(made_sinks) and made_sinks[0].has_begun.is_set())
    made_sinks[0].poison = b"poison"
    stop = asyncio.create_task(stopping.stop())
    await until(lambda: bool(stopping.log))
    made_sinks[0].may_write.set()
    await stop
    assert made_sinks[0].written == [b"b", b"c"]
    assert queued(dead) == [b"poison"]
