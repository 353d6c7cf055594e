import json

import pytest

from millrace_server.agent.components import ComponentKind
from millrace_server.channels.queue import TakeLimits
from tests.unit.console.served_console import ServedConsole, append


async def names(console: ServedConsole, query: str) -> list[str]:
    return [row["name"] for row in (await console.read(f"/api/overview?{query}"))["channels"]]


async def test_overview_tells_what_the_channels_hold(console: ServedConsole) -> None:
    """Its figures are those of the channels."""
    orders = console.create("orders", capacity=10)
    await append(orders, ({}, b"abc"), ({}, b"de"), ({}, b""))
    orders.transactions.begin("one", None)
    await orders.transactions.take("one", TakeLimits(events_max=1), 0.0, None)
    overview = await console.read("/api/overview")
    [row] = overview["channels"]
    assert (row["name"], row["type"], row["state"]) == ("orders", "memory", "open")
    assert (row["queued_events"], row["taken_events"], row["capacity"], row["fill"]) == (2, 1, 10, 0.3)
    assert (row["put_count"], row["take_count"], row["body_bytes"]) == (3, 0, 5)
    assert row["oldest_time"] == row["last_put_time"] <= row["last_take_time"] <= overview["time"]
    assert (overview["queued_events"], overview["open_transactions"], overview["total"]) == (2, 1, 1)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["full", "a", "b", "c"]),
        ("sort=name", ["a", "b", "c", "full"]),
        ("sort=name&descending=1&limit=2", ["full", "c"]),
        ("sort=name&offset=1&limit=2", ["b", "c"]),
        ("sort=depth&descending=1", ["b", "full", "c", "a"]),
        ("sort=oldest_age&descending=true", ["b", "c", "full", "a"]),
        ("sort=put_rate", ["a", "b", "c", "full"]),
        ("search=FUL", ["full"]),
    ],
)
async def test_overview_shows_a_part_in_the_order_that_is_asked_for(
    console: ServedConsole, query: str, expected: list[str]
) -> None:
    """What is wrong comes first unless another order is asked for; what has no value comes last."""
    console.create("a")
    await append(console.create("b"), *[({}, b"x")] * 3)
    await append(console.create("c"), ({}, b"x"))
    await append(console.create("full", capacity=2), *[({}, b"x")] * 2)
    assert await names(console, query) == expected


async def test_overview_lists_what_is_wrong_worst_first(console: ServedConsole) -> None:
    """Each trouble has its reason, and what to do."""
    await append(console.create("full", capacity=2), *[({}, b"x")] * 2)
    await append(console.create("nearly", capacity=10), *[({}, b"x")] * 9)
    console.components.add(ComponentKind.SINK, "out", "null").mark_failed("the target does not exist")
    console.components.add(ComponentKind.SINK, "slow", "null").mark_backing_off("cannot reach it")
    console.components.add(ComponentKind.SINK, "well", "null").mark_running()
    overview = await console.read("/api/overview?limit=1")
    assert [(one["kind"], one["name"], one["severity"]) for one in overview["troubles"]] == [
        ("channel", "full", "error"),
        ("sink", "out", "error"),
        ("channel", "nearly", "warning"),
        ("sink", "slow", "warning"),
    ]
    assert overview["trouble_count"] == 4
    assert all(one["reason"] and one["advice"] for one in overview["troubles"])


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=201", "offset=-1", "sort=color", "limit=1&more=1", "search=" + "x" * 65]
)
async def test_overview_with_a_bad_query_says_what_is_allowed(console: ServedConsole, query: str) -> None:
    """Nothing is guessed."""
    response = await console.get(f"/api/overview?{query}")
    assert (response.status, response.reason) == (400, "BAD_ARGUMENT")
    assert query.partition("=")[0] in response.json()["message"] or "more" in response.json()["message"]


async def test_channel_page_tells_all_of_a_channel(console: ServedConsole) -> None:
    """The row of the overview, gauges, counters, and the configuration with its defaults."""
    orders = console.create("orders", capacity=10)
    await append(orders, ({}, b"abc"))
    await orders.claim("reader", None, takeover=False)
    source = console.components.add(ComponentKind.SOURCE, "in", "stdin", ["orders"])
    source.mark_running()
    page = await console.read("/api/channels/orders")
    assert page["row"]["queued_events"] == page["gauges"]["queued_events"] == 1
    assert page["counters"]["event_put_success_count"] == 1
    assert page["channel_id"] == orders.channel_id
    assert page["claim"]["reader_id"] == "reader"
    assert 0 < page["claim"]["remaining_seconds"] <= 30
    assert {one["name"]: one["value"] for one in page["config"] if not one["is_default"]} == {
        "type": "memory",
        "capacity": 10,
        "transaction_capacity": 10,
        "byte_capacity": 1 << 20,
    }
    assert page["writers"] == [{"kind": "source", "name": "in", "type": "stdin", "state": "running"}]
    assert page["may"] == {"peek": True, "append": True, "take": True, "operate": True, "admin": True}
    assert page["log"] is None


async def test_channel_page_of_another_name_is_refused(console: ServedConsole) -> None:
    """Whatever the name is."""
    for name, status in (("absent", 404), ("%2e%2e", 400), ("UPPER", 400), ("%00", 400), ("%f0%9f%a6%8a", 400)):
        response = await console.get(f"/api/channels/{name}")
        assert (response.status, response.reason) == (status, "CHANNEL_NOT_FOUND" if status == 404 else "BAD_NAME")


async def test_components_tell_their_reasons_and_rates(console: ServedConsole) -> None:
    """As the RPC and /metrics do."""
    sink = console.components.add(ComponentKind.SINK_GROUP, "out", "failover", ["orders"])
    sink.record_progress(3, 30)
    sink.mark_backing_off("cannot reach \udcff<b>")
    [shown] = (await console.read("/api/components"))["components"]
    assert (shown["kind"], shown["name"], shown["state"]) == ("sink_group", "out", "backing_off")
    assert (shown["event_count"], shown["failure_count"], shown["channels"]) == (3, 1, ["orders"])
    assert shown["reason"] == "cannot reach ?<b>"


async def test_history_has_arrays_of_one_length(console: ServedConsole) -> None:
    """The page draws them as they are."""
    console.create("orders")
    await console.history.sample()
    history = await console.read("/api/channels/orders/history?points=10")
    lengths = {len(history[key]) for key in ("time", "depth", "put_rate", "take_rate")}
    assert len(lengths) == 1
    assert json.dumps(history).count("NaN") == 0
