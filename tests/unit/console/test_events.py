"""The event browser, dead letters, and following a channel."""

import asyncio
import base64
import json
from datetime import datetime
from typing import Any

import pytest
import structlog.testing

from millrace.dead_letters import DeadLetterField
from millrace_client import Event
from millrace_client.cli.line_events import event_of_line
from millrace_server.console import events as events_module
from millrace_server.console import routes
from millrace_server.errors import OverloadedError
from tests.unit.console.served_console import ServedConsole, append


def bodies(page: dict[str, Any]) -> list[bytes]:
    return [base64.b64decode(event["body_base64"]) for event in page["events"]]


async def test_events_show_headers_and_bodies_whatever_they_hold(console: ServedConsole) -> None:
    """Bytes that are no text, and text that looks like HTML or JSON, arrive as they were."""
    headers = {"</script><b>": 'quo"te\n\u2028', "k": ""}
    await append(console.create("orders"), (headers, b"\xff\x00</script>"), ({}, b""))
    page = await console.read("/api/channels/orders/events")
    first, second = page["events"]
    assert (first["sequence"], dict(first["headers"])) == (1, headers)
    assert bodies(page) == [b"\xff\x00</script>", b""]
    assert (first["body_bytes"], first["is_cut"], second["headers"]) == (11, False, [])
    assert first["commit_time"] == pytest.approx(page["events"][1]["commit_time"])
    assert (page["next_sequence"], page["is_end"], page["first_sequence"], page["end_sequence"]) == (3, True, 1, 3)


async def test_events_are_never_taken(console: ServedConsole) -> None:
    """However often they are shown."""
    orders = console.create("orders")
    await append(orders, *[({}, b"x")] * 5)
    for _ in range(3):
        assert len((await console.read("/api/channels/orders/events"))["events"]) == 5
    assert (orders.gauges().queued_events, orders.counters.take_attempts) == (5, 0)


async def test_lines_of_events_can_be_put_again(console: ServedConsole) -> None:
    """Each line is an event as the command line writes and reads it, whole, with other bytes than text in base64."""
    await append(console.create("orders"), ({"to": "M\u00fcnchen"}, b"first"), ({}, b"\xff" * 5_000), ({}, b"third"))
    response = await console.get("/channels/orders/events?max_events=2")
    assert (response.status, response.headers["content-type"]) == (200, "application/x-ndjson")
    lines = response.body.splitlines()
    assert [event_of_line(line) for line in lines] == [Event(b"first", {"to": "M\u00fcnchen"}), Event(b"\xff" * 5_000)]
    shown = json.loads(lines[0])
    assert (shown["sequence"], shown["body"]) == (1, "first")
    assert datetime.fromisoformat(shown["commit_time"]).tzinfo is not None
    assert (await console.get("/channels/orders/events?from_sequence=3&search=nothing")).body == b""
    assert (await console.get("/channels/orders/events?body_bytes_max=3")).status == 400
    assert (await console.get("/channels/nowhere/events")).status == 404


async def test_events_from_a_place_continue_where_the_last_page_ended(console: ServedConsole) -> None:
    """Page by page, each event is shown once."""
    orders = console.create("orders")
    for number in range(7):
        await append(orders, ({}, b"%d" % number))
    shown: list[bytes] = []
    place, is_end = 0, False
    while not is_end:
        page = await console.read(f"/api/channels/orders/events?max_events=3&from_sequence={place}")
        shown += bodies(page)
        place, is_end = page["next_sequence"], page["is_end"]
    assert shown == [b"%d" % number for number in range(7)]


async def test_events_from_a_time_begin_with_the_first_since_then(console: ServedConsole) -> None:
    """A time after the last event shows none."""
    orders = console.create("orders")
    await append(orders, ({}, b"early"))
    time = orders.gauges().last_put_time / 1e6
    assert bodies(await console.read(f"/api/channels/orders/events?from_time={time:.6f}")) == [b"early"]
    assert bodies(await console.read(f"/api/channels/orders/events?from_time={time + 60:.6f}")) == []
    response = await console.get("/api/channels/orders/events?from_time=1&from_sequence=1")
    assert (response.status, response.reason) == (400, "BAD_ARGUMENT")


@pytest.mark.parametrize(
    ("search", "found"),
    [("NEEDLE", [1, 3, 4]), ("%C3%A4", [2]), ("host-1", [3]), ("absent", []), ("%00%01", [5])],
)
async def test_events_that_match_have_the_text_in_a_header_or_the_body(
    console: ServedConsole, search: str, found: list[int]
) -> None:
    """Regardless of the case of ASCII letters."""
    await append(
        console.create("orders"),
        ({}, b"a Needle here"),
        ({}, "\u00e4".encode()),
        ({"NEEDLE": "Host-1"}, b""),
        ({"k": "neeDLE"}, b"\xff"),
        ({}, b"\x00\x01"),
    )
    page = await console.read(f"/api/channels/orders/events?search={search}")
    assert [event["sequence"] for event in page["events"]] == found
    assert page["scanned_count"] == 5


async def test_search_in_many_events_pauses_and_goes_on(
    console: ServedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request looks at a limited number of events, and says where it has stopped."""
    monkeypatch.setattr(events_module, "SCANNED_EVENTS_MAX", 4)
    orders = console.create("orders")
    await append(orders, *[({}, b"hay")] * 9, ({}, b"needle"))
    places = []
    place, is_end = 0, False
    while not is_end:
        page = await console.read(f"/api/channels/orders/events?search=needle&from_sequence={place}")
        place, is_end = page["next_sequence"], page["is_end"]
        places.append((place, len(page["events"])))
    assert places == [(5, 0), (9, 0), (11, 1)]


async def test_events_with_large_bodies_are_cut_and_few(
    console: ServedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A response is bounded in bytes too."""
    monkeypatch.setattr(events_module, "SHOWN_BYTES_MAX", 1_000)
    await append(console.create("orders"), *[({}, b"y" * 600)] * 5)
    cut = await console.read("/api/channels/orders/events?body_bytes_max=100")
    assert [(one["body_bytes"], one["is_cut"]) for one in cut["events"]] == [(600, True)] * 5
    assert bodies(cut) == [b"y" * 100] * 5
    whole = await console.read("/api/channels/orders/events?body_bytes_max=600")
    assert (len(whole["events"]), whole["is_end"], whole["next_sequence"]) == (2, False, 3)


@pytest.mark.parametrize(
    "query", ["max_events=501", "max_events=0", "from_sequence=-1", "body_bytes_max=9999999", "x=1"]
)
async def test_events_with_a_bad_query_are_refused(console: ServedConsole, query: str) -> None:
    """Nothing is unlimited."""
    console.create("orders")
    response = await console.get(f"/api/channels/orders/events?{query}")
    assert (response.status, response.reason) == (400, "BAD_ARGUMENT")


def letter(reason: str, origin: str) -> dict[str, str]:
    fields = {DeadLetterField.REASON: reason, DeadLetterField.CHANNEL: origin, DeadLetterField.SINK: "out"}
    return {"own": "1"} | {field.header: value for field, value in fields.items()}


async def test_dead_letters_tell_why_they_were_set_aside(console: ServedConsole) -> None:
    """Among other events; the headers are those from before."""
    await append(
        console.create("dead"),
        (letter("HTTP 400", "orders") | {DeadLetterField.SEQUENCE.header: "7"}, b"bad"),
        ({"own": "2"}, b"ordinary"),
        (letter("HTTP 413", "web"), b"large"),
    )
    page = await console.read("/api/channels/dead/dead_letters")
    assert [(one["sequence"], one["reason"], one["origin"]) for one in page["events"]] == [
        (1, "HTTP 400", "orders"),
        (3, "HTTP 413", "web"),
    ]
    assert (page["events"][0]["origin_sequence"], page["events"][1]["origin_sequence"]) == (7, None)
    assert page["events"][0]["headers"] == [["own", "1"]]
    assert page["events"][0]["component"] == "sinks/out"
    assert bodies(await console.read("/api/channels/dead/dead_letters?reason=http%20413")) == [b"large"]
    assert bodies(await console.read("/api/channels/dead/dead_letters?origin=orders")) == [b"bad"]


async def test_follow_shows_events_as_they_are_committed(console: ServedConsole) -> None:
    """Also those that a consumer takes at once; the channel keeps nothing for it afterwards."""
    orders = console.create("orders")
    await append(orders, ({}, b"earlier"))
    async with console.stream("/api/channels/orders/follow?search=new") as messages:
        await append(orders, ({}, b"new 1"), ({}, b"other"))
        await orders.purge()
        message = await anext(messages)
        assert (bodies(message), message["skipped_count"]) == ([b"new 1"], 0)
        await append(orders, ({}, b"new 2"))
        assert bodies(await anext(messages)) == [b"new 2"]
    while orders._contents._subscribers:  # noqa: ASYNC110 - it ends once the server notices that nobody reads
        await asyncio.sleep(0)


async def test_follow_of_a_busy_channel_shows_the_newest_and_counts_the_others(
    console: ServedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is sent no more than it can show."""
    monkeypatch.setattr(events_module, "FOLLOWED_EVENTS_MAX", 3)
    orders = console.create("orders")
    async with console.stream("/api/channels/orders/follow") as messages:
        await append(orders, *[({}, b"%d" % number) for number in range(10)])
        message = await anext(messages)
    assert (bodies(message), message["skipped_count"]) == ([b"7", b"8", b"9"], 7)


async def test_follow_of_a_channel_that_is_deleted_says_so(console: ServedConsole) -> None:
    """It is the last message."""
    console.create("orders")
    async with console.stream("/api/channels/orders/follow") as messages:
        await console.registry.delete("orders")
        assert (await anext(messages))["reason"] == "CHANNEL_NOT_FOUND"
        assert [message async for message in messages] == []


async def test_follow_while_the_server_stops_ends_in_order(console: ServedConsole) -> None:
    """It neither delays the stop nor breaks off."""
    console.create("orders")
    async with console.stream("/api/channels/orders/follow") as messages:
        with structlog.testing.capture_logs() as logs:
            await console.service.stop()
        assert [message async for message in messages] == []
    assert logs == []


async def test_follow_by_too_many_pages_is_refused(console: ServedConsole, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them may hold events in memory."""
    monkeypatch.setattr(routes, "_FOLLOWERS_MAX", 1)
    console.create("orders")
    async with console.stream("/api/channels/orders/follow"):
        response = await console.get("/api/channels/orders/follow")
    assert (response.status, response.reason) == (429, OverloadedError.reason)
