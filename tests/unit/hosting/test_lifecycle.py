import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace_server.agent import runners
from millrace_server.agent.agent import Agent
from millrace_server.agent.channel_reader import ChannelReader
from millrace_server.agent.components import ComponentKind, ComponentState
from millrace_server.agent.supervision import Backoff, ComponentError, ComponentFailedError
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.hosting.lifecycle import stop_flows
from millrace_server.hosting.signals import StopRequests
from tests.agent_components import (
    agent_on,
    flows_of,
    made_sinks,
    made_sources,
    registry_with,
    sink_of,
    source_of,
    until_state,
)
from tests.channel_events import append, begin_with_puts, limits_of, queued
from tests.file_channels import file_limits
from tests.waiting import WAIT_SECONDS_MAX, until

LONG_SECONDS = 600.0
"""Much longer than any test takes."""


class Stopping:
    """An agent on a memory channel `orders`, and its stop."""

    def __init__(self, registry: ChannelRegistry, agent: Agent) -> None:
        self.registry = registry
        self.agent = agent
        self.requests = StopRequests()
        self.log: list[Any] = []

    async def stop(self, grace_seconds: float = LONG_SECONDS) -> list[str]:
        """Stops as after a first signal; returns the log entries."""
        self.requests.add()
        with capture_logs() as log:
            self.log = log
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await stop_flows(self.agent, self.registry, self.requests, grace_seconds)
        return [entry["event"] for entry in log]

    async def with_a_shut_sink(self) -> None:
        """Starts a sink that holds a first delivery while two more events wait."""
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
    """Events in memory are delivered in order first; then the sink is closed, and nothing is lost."""
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
    """While sinks empty the channels, no new events arrive from sources."""
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
    """A sink that does not finish is ended, and the log says how many events were lost."""
    await stopping.with_a_shut_sink()
    assert await stopping.stop(0.05) == ["stopping", "events in memory are lost"]
    lost = stopping.log[-1]
    assert (lost["channel"], lost["events"]) == ("orders", 3)
    assert made_sinks[0].written == []


async def test_stop_with_a_second_request_ends_at_once(stopping: Stopping) -> None:
    """A second signal stops the server without waiting for sinks."""
    await stopping.with_a_shut_sink()
    stop = asyncio.create_task(stopping.stop())
    await until(lambda: any(entry["event"] == "stopping" for entry in stopping.log))
    stopping.requests.add()
    assert await stop == ["stopping", "events in memory are lost"]


async def test_stop_does_not_wait_for_a_sink_that_has_failed(stopping: Stopping) -> None:
    """Events that no sink will take are logged and not waited for."""
    await stopping.with_a_shut_sink()
    made_sinks[0].error = ComponentFailedError("no such user")
    made_sinks[0].may_write.set()
    await until_state(stopping.agent.components, ComponentKind.SINK, "out", ComponentState.FAILED)
    assert await stopping.stop() == ["stopping", "events in memory are lost"]


async def test_stop_while_a_sink_backs_off_tries_until_the_grace_is_over(
    stopping: Stopping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that recovers within the grace time gets all remaining events."""
    monkeypatch.setattr(runners, "Backoff", partial(Backoff, 0.04, 0.1))
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
    stopping: Stopping, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events on disk are there at the next start, so the stop does not wait for them."""
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=100, channels_dir=tmp_path / "channels")
    hosted = registry.create("kept", file_limits())
    await hosted.opened.wait()
    await append(hosted.channel, b"a", b"b", b"c")
    async with agent_on(registry, tmp_path) as agent:
        agent.start(flows_of(sinks={"out": sink_of("kept", is_shut=True, batch_events_max=1)}))
        await until(lambda: bool(made_sinks) and made_sinks[0].has_begun.is_set())
        other, is_closed, close = Stopping(registry, agent), asyncio.Event(), ChannelReader.close

        def close_and_signal(reader: ChannelReader) -> None:
            close(reader)
            is_closed.set()

        monkeypatch.setattr(ChannelReader, "close", close_and_signal)
        stop = asyncio.create_task(other.stop())
        await asyncio.wait_for(is_closed.wait(), WAIT_SECONDS_MAX)
        made_sinks[0].may_write.set()
        assert await stop == ["stopping"]
        assert made_sinks[0].written == [b"a"]
        assert queued(hosted.channel) == [b"b", b"c"]
    await registry.close()


async def test_stop_waits_for_transactions_of_callers_beside_those_of_sinks(stopping: Stopping) -> None:
    """Deliveries of sinks are not waited for as callers' transactions are, which may still commit."""
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
    """Events in memory channels are lost as documented, and the log says how many."""
    stopping.registry.create("empty", limits_of())
    await append(stopping.registry.get("orders"), b"a", b"b")
    assert await stopping.stop() == ["stopping", "events in memory are lost"]
    assert (stopping.log[-1]["channel"], stopping.log[-1]["events"]) == ("orders", 2)


async def test_stop_with_a_poisoned_event_sets_it_aside_and_brings_the_others_away(
    stopping: Stopping, tmp_path: Path
) -> None:
    """While the server drains, a sink can use its dead-letter channel, so a bad event loses no others."""
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
