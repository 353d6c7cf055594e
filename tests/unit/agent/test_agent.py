import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from millrace_server.agent import runners
from millrace_server.agent.components import ComponentKind, ComponentState
from millrace_server.agent.sinks.sink import SinkContext
from millrace_server.agent.supervision import Backoff, ComponentError, ComponentFailedError
from millrace_server.channels.channel_handle import Owner
from tests.agent_components import (
    TestSink,
    TestSinkConfig,
    agent_on,
    flows_of,
    made_sinks,
    made_sources,
    registry_with,
    sink_of,
    source_of,
    until_state,
)
from tests.channel_events import append, queued
from tests.waiting import until

GRACE_SECONDS = 20.0


async def test_start_of_a_flow_brings_events_from_source_to_sink(tmp_path: Path) -> None:
    """The sink gets all events in order, and both components count them."""
    async with agent_on(registry_with("orders"), tmp_path) as agent:
        agent.start(flows_of({"app": source_of("orders")}, {"out": sink_of("orders")}))
        await until(lambda: bool(made_sources))
        for number in range(20):
            made_sources[0].bodies.put_nowait(b"%d" % number)
        await until(lambda: bool(made_sinks) and len(made_sinks[0].written) == 20)
        assert made_sinks[0].written == [b"%d" % number for number in range(20)]
        reported = {component.name: (component.state, component.event_count) for component in agent.components}
        assert reported == {"app": (ComponentState.RUNNING, 20), "out": (ComponentState.RUNNING, 20)}
        assert made_sources[0].place.directory == tmp_path / "sources" / "app"
        assert made_sinks[0].place.directory == tmp_path / "sinks" / "out"


async def test_start_of_a_part_that_cannot_be_made_leaves_the_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's factory may raise anything; its component backs off, and the others work."""
    registry = registry_with("orders")
    broken = sink_of("orders", note="broken")
    make = type(broken).make

    def make_unless_broken(config: object, place: object) -> object:
        if config is broken:
            raise ZeroDivisionError
        return make(config, place)  # type: ignore[arg-type] # both are what they were called with

    monkeypatch.setattr(type(broken), "make", make_unless_broken)
    async with agent_on(registry, tmp_path) as agent:
        agent.start(flows_of({"app": source_of("orders")}, {"broken": broken, "out": sink_of("orders")}))
        await until_state(agent.components, ComponentKind.SINK, "broken", ComponentState.BACKING_OFF)
        await append(registry.get("orders"), b"a")
        await until(lambda: [sink.written for sink in made_sinks] == [[b"a"]])


async def test_parts_of_a_channel_that_another_server_owns_begin_with_the_takeover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They do not wait for the end of their delay."""
    monkeypatch.setattr(Backoff, "next_seconds", lambda *_: 3600.0)
    registry = registry_with("orders")
    channel, handle = registry.get("orders"), registry.find("orders")
    await append(channel, b"a")
    registry._channels.clear()
    handle.mark_standing_by(lambda: Owner("mill-1:7070", 1))
    async with agent_on(registry, tmp_path) as agent:
        agent.start(flows_of({"app": source_of("orders")}, {"out": sink_of("orders")}))
        for component in agent.components:
            await until_state(agent.components, component.kind, component.name, ComponentState.STANDING_BY)
        registry._channels["orders"] = channel
        handle.mark_open(channel)
        await until(lambda: [sink.written for sink in made_sinks] == [[b"a"]])
        await until_state(agent.components, ComponentKind.SOURCE, "app", ComponentState.RUNNING)


async def test_change_to_the_same_flows_touches_nothing(tmp_path: Path) -> None:
    """With an equal configuration the same objects continue, without interruption."""
    flows = flows_of({"app": source_of("orders")}, {"out": sink_of("orders")})
    same = flows_of({"app": source_of("orders")}, {"out": sink_of("orders")})
    async with agent_on(registry_with("orders"), tmp_path) as agent:
        agent.start(flows)
        await until(lambda: bool(made_sources and made_sinks))
        components = list(agent.components)
        changes = await agent.change(same, GRACE_SECONDS)
        assert changes == ([], [], [], [])
        assert list(agent.components) == components
        assert (len(made_sources), len(made_sinks)) == (1, 1)
        assert made_sources[0].ends == 0


async def test_change_of_one_part_leaves_the_others_running(tmp_path: Path) -> None:
    """One source is restarted, one removed, one added, and one continues unchanged."""
    registry = registry_with("orders", "bills")
    former = flows_of(
        {"kept": source_of("orders"), "changed": source_of("orders"), "gone": source_of("bills")},
        {"out": sink_of("orders"), "bills": sink_of("bills")},
    )
    newer = flows_of(
        {"kept": source_of("orders"), "changed": source_of("orders", note="new"), "come": source_of("bills")},
        {"out": sink_of("orders"), "bills": sink_of("bills", note="new")},
    )
    async with agent_on(registry, tmp_path) as agent:
        agent.start(former)
        # What has not begun when it is stopped never ends.
        await until(lambda: (sum(source.runs for source in made_sources), len(made_sinks)) == (3, 2))
        by_name = {source.place.name: source for source in made_sources}
        [out] = [sink for sink in made_sinks if sink.place.name == "out"]
        changes = await agent.change(newer, GRACE_SECONDS)
        assert changes.started == ["sources/come"]
        assert changes.changed == ["sinks/bills", "sources/changed"]
        assert changes.stopped == ["sources/gone"]
        assert changes.stuck == []
        assert (by_name["kept"].ends, by_name["changed"].ends, by_name["gone"].ends) == (0, 1, 1)
        await until(lambda: (len(made_sources), len(made_sinks)) == (5, 3))
        by_name["kept"].bodies.put_nowait(b"a")
        await until(lambda: out.written == [b"a"])
        names = [(component.kind.value, component.name) for component in agent.components]
        assert names == [
            ("sink", "bills"),
            ("sink", "out"),
            ("source", "changed"),
            ("source", "come"),
            ("source", "kept"),
        ]


async def test_change_of_a_sink_in_the_middle_of_a_delivery_lets_it_finish(tmp_path: Path) -> None:
    """The former sink completes its delivery, the new one resumes after it, and nothing is delivered twice."""
    registry = registry_with("orders")
    async with agent_on(registry, tmp_path) as agent:
        agent.start(flows_of(sinks={"out": sink_of("orders", is_shut=True, batch_events_max=1)}))
        await append(registry.get("orders"), b"a", b"b", b"c")
        await until(lambda: bool(made_sinks) and made_sinks[0].has_begun.is_set())
        changing = asyncio.create_task(agent.change(flows_of(sinks={"out": sink_of("orders")}), GRACE_SECONDS))
        await asyncio.sleep(0.01)
        assert not changing.done()
        made_sinks[0].may_write.set()
        await changing
        await until(lambda: len(made_sinks) == 2 and made_sinks[1].written == [b"b", b"c"])
        assert made_sinks[0].written == [b"a"]
        assert (made_sinks[0].opens, made_sinks[0].closes) == (1, 1)


async def test_change_of_a_sink_that_does_not_finish_nacks_its_events(tmp_path: Path) -> None:
    """After the grace period the delivery returns to the channel, and the new sink gets it."""
    registry = registry_with("orders")
    async with agent_on(registry, tmp_path) as agent:
        agent.start(flows_of(sinks={"out": sink_of("orders", is_shut=True)}))
        await append(registry.get("orders"), b"a", b"b")
        await until(lambda: bool(made_sinks) and made_sinks[0].has_begun.is_set())
        await agent.change(flows_of(sinks={"out": sink_of("orders")}), 0.01)
        await until(lambda: len(made_sinks) == 2 and made_sinks[1].written == [b"a", b"b"])
        assert made_sinks[0].written == []


async def test_change_while_a_sink_backs_off_does_not_wait_for_it(tmp_path: Path) -> None:
    """A sink between two attempts holds no deliveries."""
    registry = registry_with("orders")
    async with agent_on(registry, tmp_path) as agent:
        agent.start(flows_of(sinks={"out": sink_of("orders", is_shut=True)}))
        await append(registry.get("orders"), b"a")
        await until(lambda: bool(made_sinks) and made_sinks[0].has_begun.is_set())
        made_sinks[0].error = ComponentError("cannot reach the target")
        made_sinks[0].may_write.set()
        await until_state(agent.components, ComponentKind.SINK, "out", ComponentState.BACKING_OFF)
        async with asyncio.timeout(GRACE_SECONDS / 2):
            changes = await agent.change(flows_of(), GRACE_SECONDS)
        assert changes.stopped == ["sinks/out"]
        assert queued(registry.get("orders")) == [b"a"]


async def test_change_restarts_what_has_failed(tmp_path: Path) -> None:
    """The cause may have been fixed outside the configuration."""
    registry = registry_with("orders")
    flows = flows_of({"app": source_of("orders")})
    async with agent_on(registry, tmp_path) as agent:
        agent.start(flows)
        await until(lambda: bool(made_sources))
        made_sources[0].error = ComponentFailedError("no such user")
        changes = await agent.change(flows_of({"app": source_of("orders", note="new")}), GRACE_SECONDS)
        assert changes.changed == ["sources/app"]
        await until(lambda: len(made_sources) == 2)
        component = agent.components.find(ComponentKind.SOURCE, "app")
        assert component is not None
        component.mark_failed("no such user")
        changes = await agent.change(flows_of({"app": source_of("orders", note="new")}), GRACE_SECONDS)
        assert changes.changed == ["sources/app"]
        await until_state(agent.components, ComponentKind.SOURCE, "app", ComponentState.RUNNING)


class StubbornSink(TestSink):
    """Ignores cancellation."""

    __test__ = False

    async def write(self, batches: object) -> None:
        self.has_begun.set()
        while not self.may_write.is_set():
            try:
                await self.may_write.wait()
            except asyncio.CancelledError:
                continue


async def test_change_of_a_sink_that_does_not_end_starts_no_second_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sinks of one name would do the work twice; the log reports it, and the next change tries again."""
    monkeypatch.setattr(runners, "CANCELLED_SECONDS_MAX", 0.01)
    registry = registry_with("orders")
    stubborn = sink_of("orders", is_shut=True)

    def make(config: TestSinkConfig, place: SinkContext) -> TestSink:
        made_sinks.append(StubbornSink(place, is_shut=config.is_shut))
        return made_sinks[-1]

    monkeypatch.setattr(type(stubborn), "make", make)
    async with agent_on(registry, tmp_path) as agent:
        agent.start(flows_of(sinks={"out": stubborn}))
        await append(registry.get("orders"), b"a")
        await until(lambda: bool(made_sinks) and made_sinks[0].has_begun.is_set())
        newer = flows_of(sinks={"out": sink_of("orders")})
        with capture_logs() as log:
            changes = await agent.change(newer, 0.01)
        assert changes == ([], [], [], ["sinks/out"])
        assert [entry["event"] for entry in log] == ["did not stop in time"]
        assert len(made_sinks) == 1
        made_sinks[0].may_write.set()
        changes = await agent.change(newer, GRACE_SECONDS)
        assert changes.changed == ["sinks/out"]
        await until(lambda: len(made_sinks) == 2)


async def test_stop_sources_in_the_middle_of_a_delivery_ends_them(tmp_path: Path) -> None:
    """A source that waits for space does not delay a stop, and its component is stopped."""
    registry = registry_with("orders", capacity=1, keep_alive_seconds=3_600.0)
    async with agent_on(registry, tmp_path) as agent:
        agent.start(flows_of({"app": source_of("orders")}))
        await until(lambda: bool(made_sources))
        for body in (b"a", b"b"):
            made_sources[0].bodies.put_nowait(body)
        await until(lambda: bool(registry.get("orders")._contents.capacity.waiters))
        await agent.stop_sources(GRACE_SECONDS)
        assert [component.state for component in agent.components] == [ComponentState.STOPPED]
        assert queued(registry.get("orders")) == [b"a"]
