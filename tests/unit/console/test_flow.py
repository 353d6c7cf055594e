"""The flow graph with its rates, and the configuration, as the page gets them."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from millrace_server.agent.components import ComponentKind
from millrace_server.channels.queue import TakeLimits
from millrace_server.configuration.settings import check_settings
from millrace_server.console import flow
from tests.unit.console.served_console import ServedConsole, append, served_console

TABLES: dict[str, Any] = {
    "channels": {"orders": {"type": "memory", "capacity": 5}, "dead": {"type": "memory"}},
    "sources": {"in": {"type": "exec", "command": ["fetch", "--password=hunter2"], "channels": ["orders"]}},
    "sinks": {
        "out": {
            "type": "http",
            "channel": "orders",
            "url": "http://127.0.0.1:9/x?key=hunter2",
            "headers": {"Authorization": "hunter2"},
            "dead_letter_channel": "dead",
        }
    },
}


@pytest.fixture
async def flowing(tmp_path: Path, prompt_http_stop: None) -> AsyncIterator[ServedConsole]:
    """A console of a server with a source, two channels and a sink, which has delivered 20 events in 10 s."""
    async with served_console(tmp_path, check_settings(TABLES, "test")) as console:
        now = [0.0]
        console.history._clock = lambda: now[0]
        console.create("orders", capacity=5)
        console.create("dead")
        source = console.components.add(ComponentKind.SOURCE, "in", "exec", ["orders"])
        sink = console.components.add(ComponentKind.SINK, "out", "http", ["orders"])
        await console.history.sample()
        source.record_progress(30, 300)
        sink.record_progress(20, 200)
        now[0] += 10.0
        yield console


async def test_flow_tells_rates_from_source_to_sink(flowing: ServedConsole) -> None:
    """An edge has the rate of the component at its end."""
    graph = await flowing.read("/api/flow")
    nodes = {node["key"]: node for node in graph["nodes"]}
    assert (nodes["sources/in"]["rate"], nodes["sinks/out"]["rate"]) == (3.0, 2.0)
    assert (nodes["channels/orders"]["queued_events"], nodes["channels/orders"]["rate"]) == (0, 0.0)
    rates = {(edge["from"], edge["to"]): edge["rate"] for edge in graph["edges"]}
    assert rates["sources/in", "channels/orders"] == 3.0
    assert rates["channels/orders", "sinks/out"] == rates["sinks/out", "sinks/out/place"] == 2.0
    assert rates["sinks/out", "channels/dead"] is None
    assert not any(edge["is_stalled"] for edge in graph["edges"])


async def test_flow_shows_where_it_stalls(flowing: ServedConsole) -> None:
    """At the component that fails, and at the channel that is full; the reason is that of the overview."""
    [sink] = [one for one in flowing.components if one.name == "out"]
    sink.mark_failed("the target does not exist")
    orders = flowing.registry.get("orders")
    await append(orders, *[({}, b"x")] * 5)
    await orders.deliveries.deliver(TakeLimits(events_max=2))
    graph = await flowing.read("/api/flow")
    nodes = {node["key"]: node for node in graph["nodes"]}
    assert (nodes["sinks/out"]["severity"], nodes["sinks/out"]["reason"]) == ("error", "the target does not exist")
    full = nodes["channels/orders"]
    assert (full["severity"], full["fill"]) == ("error", 1.0)
    assert (full["queued_events"], full["taken_events"]) == (3, 2)
    stalled = {(edge["from"], edge["to"]) for edge in graph["edges"] if edge["is_stalled"]}
    assert {("sources/in", "channels/orders"), ("channels/orders", "sinks/out")} <= stalled


async def test_flow_shows_some_of_the_channels_outside_the_configuration(
    flowing: ServedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says how many it has left out."""
    monkeypatch.setattr(flow, "OTHER_CHANNELS_MAX", 2)
    for name in ("a", "b", "c"):
        flowing.create(name)
    graph = await flowing.read("/api/flow")
    assert {"channels/a", "channels/b"} < {node["key"] for node in graph["nodes"]}
    assert ("callers/in", "channels/a") in {(edge["from"], edge["to"]) for edge in graph["edges"]}
    assert graph["left_out_count"] == 1


async def test_dead_letters_that_wait_are_a_trouble(flowing: ServedConsole) -> None:
    """In the channel that the configuration names for them."""
    await append(flowing.registry.get("dead"), ({}, b"x"), ({}, b"y"))
    [trouble] = (await flowing.read("/api/overview"))["troubles"]
    assert (trouble["name"], trouble["severity"], trouble["reason"]) == ("dead", "warning", "2 dead letters wait")


async def test_configuration_tells_values_and_defaults_without_secrets(flowing: ServedConsole) -> None:
    """As `millraced check --show` does, and of a command only its program."""
    response = await flowing.get("/api/configuration")
    assert b"hunter2" not in response.body
    sections = {one["name"]: {each["name"]: each for each in one["settings"]} for one in response.json()["sections"]}
    assert {"server", "channels.orders", "channels.dead", "sources.in", "sinks.out"} <= set(sections)
    assert sections["channels.orders"]["capacity"] == {
        "name": "capacity",
        "value": 5,
        "default": 100,
        "is_default": False,
    }
    assert sections["channels.dead"]["capacity"]["is_default"] is True
    assert sections["sources.in"]["command"]["value"] == ["fetch", "***"]
