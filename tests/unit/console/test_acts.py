"""What operators change with the console: as the RPCs, with the name typed once more."""

from typing import Any

import pytest
import structlog.testing

from millrace.dead_letters import DeadLetterField
from millrace_server.access import audit
from millrace_server.agent.components import ComponentKind
from millrace_server.channels.channel import Channel
from millrace_server.channels.queue import TakeLimits
from millrace_server.errors import ChannelLogFailedError
from tests.http_response import Response
from tests.unit.console.served_console import ConsoleSite, ServedConsole, append

ACTS: dict[str, tuple[dict[str, Any], str]] = {
    "create_channel": ({"channel": "new", "settings": {"type": "memory"}}, "admin on channel 'new'"),
    "update_channel": ({"channel": "web.a", "settings": {"capacity": 5}}, "operate on channel 'web.a'"),
    "purge_channel": ({"channel": "web.a"}, "operate on channel 'web.a'"),
    "delete_channel": ({"channel": "web.a", "is_forced": True}, "admin on channel 'web.a'"),
    "end_transaction": ({"channel": "web.a", "txn_id": "one"}, "operate on channel 'web.a'"),
    "release_claim": ({"channel": "web.a"}, "operate on channel 'web.a'"),
    "forget_producer": ({"channel": "web.a", "producer_id": "p"}, "operate on channel 'web.a'"),
    "retry_component": ({"kind": "sink", "name": "out"}, "operate on channel 'web.a'"),
    "replay_dead_letters": ({"channel": "web.a", "sequences": [1]}, "take on channel 'web.a'"),
}
"""A request for each act, and what it needs."""


def name_in(act: dict[str, Any]) -> str:
    return str(act.get("txn_id") or act.get("producer_id") or act.get("name") or act["channel"])


async def do(console: ServedConsole, act: str, **request: Any) -> Response:
    """Acts as the page does, with the name typed as it is."""
    return await console.post(f"/api/acts/{act}", {"confirm": name_in(request)} | request)


async def prepare(console: ServedConsole) -> Channel:
    """Creates a channel `web.a` with an event and a transaction, and a sink that reads it."""
    web = console.create("web.a")
    await append(web, ({}, b"x"))
    web.transactions.begin("one", None)
    console.components.add(ComponentKind.SINK, "out", "null", ["web.a"])
    return web


@pytest.mark.parametrize("act", ACTS)
async def test_act_without_the_permission_is_refused_and_audited(site: ConsoleSite, act: str) -> None:
    """Exactly what the RPC needs; without a session nobody learns even that."""
    web = await prepare(site.console)
    request, needed = ACTS[act]
    assert (await do(site.console, act, **request)).reason == "UNAUTHENTICATED"
    await site.console.log_in(site.tokens["reader"])
    with structlog.testing.capture_logs() as logs:
        response = await do(site.console, act, **request)
    assert (response.status, response.reason) == (403, "FORBIDDEN")
    assert needed in response.json()["message"]
    [entry] = [entry for entry in logs if entry["event"] == "audit"]
    assert (entry["identity"], entry["outcome"], entry["reason"]) == ("reader", "denied", "FORBIDDEN")
    assert (web.event_count, "web.a" in site.console.registry, "new" in site.console.registry) == (1, True, False)


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("typed", ["", "web", "WEB.A", "web.a ", "other"])
async def test_act_whose_name_is_typed_otherwise_is_refused(console: ServedConsole, act: str, typed: str) -> None:
    """Nothing is changed."""
    web = await prepare(console)
    response = await console.post(f"/api/acts/{act}", ACTS[act][0] | {"confirm": typed})
    assert (response.status, response.reason) == (409, "CONFIRM_MISMATCH")
    assert (web.event_count, web.open_transactions, "new" in console.registry) == (1, 1, False)


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Millrace-Console": "0"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://localhost:1"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
        {"Content-Type": "application/x-www-form-urlencoded"},
    ],
)
async def test_act_from_a_page_of_another_site_is_refused(console: ServedConsole, headers: dict[str, str]) -> None:
    """Without [auth] too, where a browser needs no session."""
    web = await prepare(console)
    response = await console.post("/api/acts/purge_channel", {"channel": "web.a", "confirm": "web.a"}, **headers)
    assert response.status in {403, 415, 421}
    assert web.event_count == 1


async def test_act_by_get_or_of_no_known_name_is_refused(console: ServedConsole) -> None:
    """A link cannot act."""
    assert (await console.get("/api/acts/purge_channel?channel=web.a&confirm=web.a")).status == 404
    assert (await console.post("/api/acts/explode", {})).reason == "NOT_FOUND"
    bad: tuple[object, ...] = ({}, {"channel": "web.a"}, {"channel": "web.a", "confirm": "web.a", "more": 1}, [], None)
    for document in bad:
        assert (await console.post("/api/acts/purge_channel", document)).reason == "BAD_ARGUMENT"


@pytest.mark.parametrize("body", [b"", b"{", b'{"channel": "\xff"}', b"[" * 10_000])
async def test_act_whose_body_is_not_json_is_refused(console: ServedConsole, body: bytes) -> None:
    """The message names the cause."""
    headers = {"X-Millrace-Console": "1", "Content-Type": "application/json"}
    response = await console.ask("POST", "/api/acts/purge_channel", body, headers)
    assert (response.status, response.json()["message"]) == (400, "the body of the request is not JSON")


async def test_create_update_and_delete_change_a_channel(site: ConsoleSite) -> None:
    """They are the RPCs: the audit log has who, what and which."""
    console = site.console
    await console.log_in(site.tokens["operator"])
    with structlog.testing.capture_logs() as logs:
        created = await do(console, "create_channel", channel="new", settings={"type": "memory", "capacity": 7})
        assert (created.status, created.json()["message"]) == (200, "new: created")
        settings = {"capacity": 9, "retention_seconds": 60, "keep_alive_seconds": 0.5}
        assert (await do(console, "update_channel", channel="new", settings=settings)).json()["is_applied"] is True
        config = console.registry.find("new").config
        assert (config.capacity, config.retention_seconds, config.keep_alive_seconds) == (9, 60.0, 0.5)
        assert (await do(console, "update_channel", channel="new", settings={"retention_seconds": None})).status == 200
        assert console.registry.find("new").config.retention_seconds is None
        await append(console.registry.get("new"), ({}, b"x"))
        assert (await do(console, "delete_channel", channel="new")).reason == "CHANNEL_NOT_EMPTY"
        assert (await do(console, "delete_channel", channel="new", is_forced=True)).status == 200
    assert "new" not in console.registry
    audited = [(one["call"], one["outcome"], one["name"]) for one in logs if one["event"] == "audit"]
    assert audited == [
        ("CreateChannel", "done", "new"),
        ("UpdateChannel", "done", "new"),
        ("UpdateChannel", "done", "new"),
        ("DeleteChannel", "failed", "new"),
        ("DeleteChannel", "done", "new"),
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "memory", "capacity": 0},
        {"type": "memory", "capacity": "many"},
        {"type": "memory", "capacity": -1},
        {"type": "memory", "keep_alive_seconds": 1e400},
        {"type": "memory", "keep_alive": 1},
        {"type": "file", "data_dirs": ["/etc"]},
        {"type": "file", "encryption": {}},
        {"type": "disk"},
        {"type": []},
        {},
    ],
)
async def test_create_with_a_bad_setting_is_refused(console: ServedConsole, settings: dict[str, Any]) -> None:
    """The message names it; directories and keys are not for clients."""
    response = await do(console, "create_channel", channel="new", settings=settings)
    assert (response.status, response.reason) == (400, "BAD_ARGUMENT")
    assert "new" not in console.registry


async def test_purge_removes_the_queued_events(console: ServedConsole) -> None:
    """The response has their number."""
    web = await prepare(console)
    response = await do(console, "purge_channel", channel="web.a")
    assert (response.json()["purged_count"], web.event_count) == (1, 0)
    assert (await do(console, "purge_channel", channel="absent")).reason == "CHANNEL_NOT_FOUND"


async def test_acts_on_what_the_channel_page_lists_end_it(console: ServedConsole) -> None:
    """A transaction, a claim and a producer by the names that the page shows; a component by its own."""
    web = await prepare(console)
    await web.transactions.take("one", TakeLimits(), 0.0, None)
    page = await console.read("/api/channels/web.a")
    [shown] = page["transactions"]
    assert (shown["txn_id"], shown["take_count"], page["transaction_count"]) == ("one", 1, 1)
    assert (await do(console, "end_transaction", channel="web.a", txn_id="one")).status == 200
    assert web.open_transactions == 0
    await web.claim("reader", None, takeover=False)
    epoch = (await console.read("/api/channels/web.a"))["claim"]["epoch"]
    assert (await do(console, "release_claim", channel="web.a", epoch=epoch - 1)).reason == "STALE_EPOCH"
    assert (await do(console, "release_claim", channel="web.a", epoch=epoch)).status == 200
    assert (await console.read("/api/channels/web.a"))["claim"] is None
    assert (await do(console, "forget_producer", channel="web.a", producer_id="absent")).status == 404
    assert (await do(console, "retry_component", kind="sink", name="out")).status == 200
    assert (await do(console, "retry_component", kind="source", name="out")).status == 404


def letter(origin: str, body: bytes = b"body") -> tuple[dict[str, str], bytes]:
    fields = {DeadLetterField.REASON: "HTTP 400", DeadLetterField.CHANNEL: origin}
    return {"own": "1"} | {field.header: value for field, value in fields.items()}, body


def contents(channel: Channel) -> list[tuple[dict[str, str], bytes]]:
    return [row for batch in channel._contents.queue for row in batch.window.rows()]


async def test_replay_returns_exactly_the_selected_letters(console: ServedConsole) -> None:
    """Each to its own channel, as it was before, in order; the others keep their places. The act is audited."""
    orders, web, dead = (console.create(name) for name in ("orders", "web", "dead"))
    await append(dead, letter("orders", b"1"), letter("web", b"2"), letter("orders", b"3"), letter("orders", b"4"))
    with structlog.testing.capture_logs() as logs:
        response = await do(console, "replay_dead_letters", channel="dead", sequences=[4, 1, 2, 1])
    assert [(one["outcome"], one["channel"], one["identity"]) for one in logs] == [("done", "dead", None)]
    assert response.json()["replayed"] == {"orders": 2, "web": 1}
    assert response.json()["left"] == []
    assert contents(orders) == [({"own": "1"}, b"1"), ({"own": "1"}, b"4")]
    assert contents(web) == [({"own": "1"}, b"2")]
    assert [body for _, body in contents(dead)] == [b"3"]
    assert (dead.gauges().taken_events, dead.counters.take_successes) == (0, 3)


async def test_replay_leaves_what_cannot_return_and_says_why(console: ServedConsole) -> None:
    """Letters without a channel, ordinary events, and those that their channel does not accept."""
    full, dead = console.create("full", capacity=1, keep_alive_seconds=0), console.create("dead")
    await append(full, ({}, b"x"))
    await append(dead, letter("gone"), ({}, b"ordinary"), letter("dead"), letter(""), letter("full"), letter("full"))
    before = contents(dead)
    response = await do(console, "replay_dead_letters", channel="dead", sequences=[1, 2, 3, 4, 5, 9])
    left = {one["sequence"]: one["reason"] for one in response.json()["left"]}
    assert (response.status, set(left), response.json()["replayed"]) == (200, {1, 2, 3, 4, 5, 9}, {})
    assert all(
        what in left[sequence] for sequence, what in {1: "no channel", 2: "not a dead letter", 5: "full"}.items()
    )
    assert contents(dead) == before
    assert dead.gauges().taken_events == 0


async def test_replay_of_more_than_a_transaction_may_hold_stores_all_that_fit(console: ServedConsole) -> None:
    """A letter that is too large for its channel stays alone."""
    orders = console.create("orders", transaction_capacity=2, byte_capacity=1_000)
    dead = console.create("dead")
    await append(dead, *[letter("orders", b"%d" % number) for number in range(6)], letter("orders", b"x" * 900))
    response = await do(console, "replay_dead_letters", channel="dead", sequences=list(range(1, 8)))
    assert response.json()["replayed"] == {"orders": 6}
    assert [one["sequence"] for one in response.json()["left"]] == [7]
    assert [body for _, body in contents(orders)] == [b"%d" % number for number in range(6)]


async def test_replay_that_was_interrupted_is_completed_by_another_one(
    console: ServedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters that were stored, and not removed, are not stored twice. A named channel takes those of any origin."""
    other, dead = console.create("other"), console.create("dead")
    await append(dead, letter("gone"), letter(""))

    def fail(_commit: object) -> None:
        raise ChannelLogFailedError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(dead._core.committer, "submit", fail)
        response = await do(console, "replay_dead_letters", channel="dead", sequences=[1, 2], target="other")
    assert (response.status, response.reason) == (500, "LOG_FAILED")
    assert (other.event_count, dead.gauges().queued_events) == (2, 2)
    response = await do(console, "replay_dead_letters", channel="dead", sequences=[1, 2], target="other")
    assert response.json()["message"] == "dead: replayed 2 to other"
    assert (other.event_count, dead.event_count) == (2, 0)


async def test_replay_under_a_claim_is_refused(console: ServedConsole) -> None:
    """The claim's reader alone may take."""
    dead = console.create("dead")
    console.create("orders")
    await append(dead, letter("orders"))
    await dead.claim("reader", None, takeover=False)
    response = await do(console, "replay_dead_letters", channel="dead", sequences=[1])
    assert (response.status, response.reason) == (409, "CHANNEL_CLAIMED")
    assert contents(dead) == [letter("orders")]


async def test_replay_needs_the_right_to_append_to_each_channel(
    site: ConsoleSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all letters stay, the audit log tells it, and so it does of what is done."""
    # Of the denials of a test the log has the first.
    monkeypatch.setattr(audit, "_DENIAL_SECONDS", 3_600.0)
    console = site.console
    dead, web, app = (console.create(name) for name in ("web.dead", "web.a", "app"))
    await append(dead, letter("web.a"), letter("app"), letter("absent"))
    await console.log_in(site.tokens["replayer"])
    with structlog.testing.capture_logs() as logs:
        response = await do(console, "replay_dead_letters", channel="web.dead", sequences=[1, 2])
        assert (response.status, response.reason) == (403, "FORBIDDEN")
        assert (dead.gauges().queued_events, web.event_count, app.event_count) == (3, 0, 0)
        assert (await do(console, "replay_dead_letters", channel="web.dead", sequences=[3])).reason == "FORBIDDEN"
        assert (await do(console, "replay_dead_letters", channel="web.dead", sequences=[1])).status == 200
    audited = [(one["call"], one["outcome"], one["channel"]) for one in logs if one["event"] == "audit"]
    call = "HTTP /api/acts/replay_dead_letters"
    assert audited == [(call, "denied", "app"), (call, "done", "web.dead")]
