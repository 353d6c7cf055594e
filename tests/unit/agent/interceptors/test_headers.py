"""The interceptors that add and remove headers."""

import os
import re
import socket
import uuid
from datetime import UTC, datetime

import pytest

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors import regexes
from millrace_server.agent.interceptors.context import outbound_address
from millrace_server.agent.interceptors.headers import Timestamp, TimestampConfig, random_uuids
from millrace_server.agent.interceptors.interceptor import EventsRefusedError
from tests.source_writers import table_of
from tests.unit.agent.interceptors.configured_interceptors import intercepted, interceptor, problem_with

NOW = 1_769_903_999.1234


def stamped(table: EventTable, **settings: object) -> list[dict[str, str]]:
    config = TimestampConfig.model_validate({"type": "timestamp", **settings})
    return [headers for headers, _ in Timestamp(config, lambda: NOW).intercept(table).rows()]


def test_timestamp_says_when_a_batch_came_in() -> None:
    """The time is in milliseconds, as in Flume, or a date in ISO format."""
    assert stamped(table_of(b"1", b"2")) == [{"timestamp": "1769903999123"}] * 2
    assert stamped(table_of(b"1"), header="at", format="iso") == [{"at": "2026-01-31T23:59:59.123+00:00"}]


def test_timestamp_of_now_is_now() -> None:
    """The clock is read for each batch."""
    before = int(datetime.now(UTC).timestamp() * 1000)
    [(headers, _)] = intercepted(table_of(b"1"), type="timestamp")
    assert before <= int(headers["timestamp"]) <= int(datetime.now(UTC).timestamp() * 1000)


@pytest.mark.parametrize("kind", ["timestamp", "host", "static", "uuid"])
@pytest.mark.parametrize("preserve_existing", [True, False])
def test_giving_a_header_keeps_an_event_s_own_where_it_is_to(kind: str, *, preserve_existing: bool) -> None:
    """The choice is made per event: some may have the header already."""
    settings = {"static": {"key": "h", "value": "new"}}.get(kind, {"header": "h"})
    rows = intercepted(
        table_of(b"1", b"2", h=["old", None]), type=kind, preserve_existing=preserve_existing, **settings
    )
    assert (rows[0][0]["h"] == "old") is preserve_existing
    assert rows[1][0]["h"] not in {"old", ""}


def test_host_sets_the_name_or_address_of_the_machine() -> None:
    """The name is the default, since an address means little in a container."""
    assert intercepted(table_of(b"1"), type="host") == [({"host": socket.gethostname()}, b"1")]
    [(headers, _)] = intercepted(table_of(b"1"), type="host", header="from", use="ip")
    assert headers == {"from": outbound_address()}
    assert socket.inet_pton(socket.AF_INET6 if ":" in headers["from"] else socket.AF_INET, headers["from"])


def test_outbound_address_without_a_network_is_the_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a network still receives events."""

    def refuse(*_: object) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket, "socket", refuse)
    assert outbound_address() == "127.0.0.1"


def test_static_sets_one_header_or_several() -> None:
    """Both ways may be used together."""
    rows = intercepted(table_of(b"1"), type="static", key="a", value="1", headers={"b": "2", "c": ""})
    assert rows == [({"a": "1", "b": "2", "c": ""}, b"1")]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({}, "headers: has no entry, and there is no key; the interceptor needs a header to set"),
        ({"key": "a"}, 'value: key is "a"; key and value must be given together'),
        ({"value": "1", "headers": {"b": "2"}}, 'value: is "1" without a key; key and value must be given together'),
    ],
)
def test_static_without_a_whole_header_is_refused(table: dict[str, object], problem: str) -> None:
    """Flume would set a header called "key"."""
    assert problem_with(type="static", **table) == problem


def test_uuid_sets_a_different_one_on_each_event() -> None:
    """The values are UUIDs of version 4 after the prefix."""
    rows = intercepted(table_of(*[b"x"] * 1_000), type="uuid", prefix="app-")
    ids = [headers["id"] for headers, _ in rows]
    assert len(set(ids)) == 1_000
    for each in ids:
        assert each.startswith("app-")
        parsed = uuid.UUID(each.removeprefix("app-"))
        assert (parsed.version, parsed.variant, str(parsed)) == (4, uuid.RFC_4122, each.removeprefix("app-"))


def test_random_uuids_use_every_variant_and_digit() -> None:
    """All bits but those of version and variant are random."""
    ids = random_uuids("", 2_000, os.urandom)
    assert {each[19] for each in ids} == set("89ab")
    for at in {*range(36)} - {8, 13, 14, 18, 19, 23}:
        assert len({each[at] for each in ids}) == 16


def test_remove_header_removes_by_name_and_by_pattern() -> None:
    """A pattern must match the whole name; missing headers are ignored."""
    table = table_of(b"1", b"2", host="h", x_a="1", x_b=["2", None], ax_a="3", other="4")
    rows = intercepted(table, type="remove_header", names=["host", "gone"], pattern="x_.")
    assert rows == [({"ax_a": "3", "other": "4"}, body) for body in (b"1", b"2")]


def test_remove_header_without_anything_to_remove_is_refused() -> None:
    """The configuration is a mistake."""
    assert problem_with(type="remove_header") == (
        "pattern: is missing, and names is empty; the interceptor needs a header to remove"
    )


def test_remove_header_whose_pattern_takes_too_long_refuses_the_events_with_that_header(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Header names may come from untrusted senders too."""
    monkeypatch.setattr(regexes, "MATCH_SECONDS_MAX", 0.05)
    name = "a" * 60 + "b"
    table = EventTable([b"1", b"2"], {name: [None, "x"]})
    with pytest.raises(EventsRefusedError) as caught:
        interceptor(type="remove_header", pattern="(a|aa)+$").intercept(table)
    assert list(caught.value.reasons) == [1]
    assert re.match("the regular expression took longer", caught.value.reasons[1])
    assert name in table.headers
