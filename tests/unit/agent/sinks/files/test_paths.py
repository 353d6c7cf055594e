"""Times of events, and how paths show them."""

import re
from collections.abc import Iterable
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace_server.agent.sinks.files.chunks import EventChunk, chosen, chunks_of
from millrace_server.agent.sinks.files.paths import (
    Partitioner,
    PathRules,
    PathTemplate,
    TimeRule,
    read_time,
    safe_value,
)
from tests.files_sink import Row, raw_of

NOON = 1_767_268_800
"""12:00 on 2026-01-01, UTC."""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (str(NOON * 1_000), NOON),
        (str(NOON * 1_000 + 999), NOON),
        ("2026-01-01T12:00:00Z", NOON),
        ("2026-01-01T12:00:00.999+00:00", NOON),
        ("2026-01-01T13:00:00+01:00", NOON),
        ("2026-01-01T12:00:00", NOON),
        ("2026-01-01 12:00:00", NOON),
        ("0", 0),
    ],
)
def test_read_time_of_millis_or_iso_is_in_seconds(text: str, seconds: int) -> None:
    """Both forms are read; without an offset a time is UTC."""
    assert read_time(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "-5", "12.5", "2026-13-01T00:00:00", "9" * 10_000, "²"),
        # Outside the calendar in some time zone.
        *(str(10**15), "9999-12-31T23:59:59", "0001-01-01T00:00:00", "2" + "0" * 40),
    ],
)
def test_read_time_of_anything_else_is_none(text: str) -> None:
    """A header without a valid time raises nothing, however long it is."""
    assert read_time(text) is None


@pytest.mark.parametrize(
    ("zone", "strftime_format", "shown"),
    [
        ("UTC", "%Y-%m-%d %H", "2026-01-01 12"),
        ("Asia/Kathmandu", "%H:%M", "17:45"),
        ("America/Los_Angeles", "%d %H", "01 04"),
    ],
)
def test_format_in_a_zone_uses_local_time(zone: str, strftime_format: str, shown: str) -> None:
    """A time is formatted as local time."""
    assert TimeRule(ZoneInfo(zone), 1).format(NOON, strftime_format) == shown


@pytest.mark.parametrize(
    ("round_seconds", "shown"), [(1, "17:59:37"), (60, "17:59:00"), (900, "17:45:00"), (3_600, "17:00:00")]
)
def test_format_rounded_goes_down_to_multiples_of_local_time(round_seconds: int, shown: str) -> None:
    """Rounding uses local time, also in zones with an offset of 45 minutes."""
    moment = datetime(2026, 1, 1, 17, 59, 37, tzinfo=ZoneInfo("Asia/Kathmandu"))
    rule = TimeRule(ZoneInfo("Asia/Kathmandu"), round_seconds)
    assert rule.format(int(moment.timestamp()), "%H:%M:%S") == shown


def test_format_rounded_to_a_day_begins_at_midnight() -> None:
    """A day is the zone's own."""
    assert TimeRule(ZoneInfo("Pacific/Auckland"), 86_400).format(NOON, "%d %H:%M") == "02 00:00"


@pytest.mark.parametrize("text", ["0001-01-02T00:00:00", "9999-12-30T23:59:59"])
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_format_of_any_time_that_is_read_has_a_date_in_every_zone(text: str, zone: str) -> None:
    """The date may be another day in some zones."""
    seconds = read_time(text)
    assert seconds is not None
    assert TimeRule(ZoneInfo(zone), 1).format(seconds, "%d")


UTC_RULE = TimeRule(ZoneInfo("UTC"), 1)


def _filled(text: str, headers: dict[str, str | None] | None = None, seconds: int | None = NOON) -> str:
    return PathTemplate.parse(text).fill(headers or {}, seconds, UTC_RULE, "unknown")


def test_fill_with_headers_and_time_puts_them_in() -> None:
    """The path has the literals, the event's headers, and its time."""
    path = _filled("/data/{header:host}/dt={time:%Y-%m-%d}/hour={time:%H}", {"host": "web-1"})
    assert path == "/data/web-1/dt=2026-01-01/hour=12"


def test_fill_without_header_or_time_has_the_word_for_it() -> None:
    """A missing value is replaced by a word, never by an empty name."""
    path = _filled("/data/{header:host}/{header:site}/{time:%Y}", {"host": None, "site": ""}, None)
    assert path == "/data/unknown/unknown/unknown"


def test_parse_of_doubled_braces_makes_braces() -> None:
    """Braces may be part of a directory's name."""
    assert _filled("/data/{{x}}/{header:host}", {"host": "a"}) == "/data/{x}/a"


@pytest.mark.parametrize(
    ("text", "root"),
    [
        ("/data", "/data"),
        ("/data/", "/data"),
        ("/data/{header:host}", "/data"),
        ("/data/logs/dt={time:%Y}", "/data/logs"),
        ("/{header:host}", "/"),
        ("out", "out"),
        ("{header:host}", "."),
        ("dt={time:%Y}", "."),
        ("file:///data/{header:host}", "/data"),
        ("s3://bucket/logs/dt={time:%Y}/x", "s3://bucket/logs"),
        ("hdfs://name:8020/logs/{header:host}", "hdfs://name:8020/logs"),
        ("hdfs:///logs/{header:host}", "hdfs:///logs"),
    ],
)
def test_root_of_a_template_is_what_all_paths_have_in_common(text: str, root: str) -> None:
    """The root is the directory before the first placeholder."""
    assert PathTemplate.parse(text).root == root


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it must be the path of a directory"),
        ("/data/{host}", "a brace must begin {header:NAME} or {time:FORMAT}, or be doubled"),
        ("/data/{header:}", "a brace must begin"),
        ("/data/{", "a brace must begin"),
        ("/data/}", "a brace must begin"),
        ("/data/{time:%Y%f}", "%f is not supported in a time, only %Y"),
        ("/data/{time:%}", "is not supported in a time"),
        ("/data/../{header:x}", '".." must not be a part of it'),
        ("/data/{header:a}{header:b}{header:c}", "a name in it could have 300 bytes"),
        ("s3://{header:bucket}/x", "a directory's name must come before the first brace"),
        ("hdfs:///{time:%Y}", "a directory's name must come before the first brace"),
        ("HDFS://nn/x", "a URL begins with a scheme in lower case and two slashes"),
        ("file:/x", "a URL begins with a scheme in lower case and two slashes"),
    ],
)
def test_parse_of_what_is_no_template_says_why(text: str, said: str) -> None:
    """An invalid template is rejected with a sentence that shows it."""
    with pytest.raises(ValueError, match=re.escape(said)):
        PathTemplate.parse(text)


@pytest.mark.parametrize(
    ("value", "safe"),
    [
        ("web-1", "web-1"),
        ("../../etc/passwd", "-._.._etc_passwd"),
        ("..", "-."),
        (".", "-"),
        (".hidden", "-hidden"),
        ("_temporary", "-temporary"),
        ("/etc", "-etc"),
        ("a\\b", "a_b"),
        ("a\0b\n", "a_b_"),
        ("\u202egnp.exe", "-gnp.exe"),
        ("Zürich", "Zürich"),
        ("", ""),
    ],
)
def test_safe_value_of_hostile_headers_stays_one_visible_name(value: str, safe: str) -> None:
    """A header cannot leave its directory, hide a file, or confuse a terminal."""
    assert safe_value(value) == safe


@given(st.text())
@example("\ud800" * 200)
@example("é" * 51)
def test_safe_value_of_any_text_is_a_name_that_file_systems_take(value: str) -> None:
    """Every value becomes one short, visible, ordinary name; an empty value stays empty."""
    safe = safe_value(value)
    assert bool(safe) == bool(value)
    assert "/" not in safe
    assert safe.isprintable()
    assert len(safe.encode()) <= 100
    assert not safe.startswith((".", "_"))


def _chunk(rows: Iterable[Row]) -> EventChunk:
    [chunk] = chunks_of([(1, raw_of(rows))])
    return chunk


def _partitioner(path: str, *, is_clock_used: bool = True) -> Partitioner:
    rules = PathRules(PathTemplate.parse(path), TimeRule(ZoneInfo("UTC"), 1), "timestamp", "unknown", is_clock_used)
    return Partitioner(rules, clock=lambda: float(NOON))


def test_split_by_what_all_events_share_keeps_them_together() -> None:
    """If nothing in the path differs, no event is inspected."""
    chunk = _chunk(({"host": "a", "n": str(n)}, b"") for n in range(3))
    assert _partitioner("/data/{header:host}").split(chunk) == {"/data/a": range(3)}
    assert _partitioner("/data").split(chunk) == {"/data": range(3)}


def test_split_by_a_header_sorts_events_and_keeps_their_order() -> None:
    """Each event goes to its header's directory; one without the header to that of `missing_word`."""
    hosts: list[dict[str, str]] = [{"host": "b"}, {"host": "a"}, {}, {"host": "b"}]
    chunk = _chunk((headers, b"") for headers in hosts)
    assert _partitioner("/data/{header:host}").split(chunk) == {
        "/data/b": [0, 3],
        "/data/a": [1],
        "/data/unknown": [2],
    }


def test_split_by_time_takes_the_header_before_the_clock() -> None:
    """An event's own time counts; without a valid one, the clock's does."""
    times: list[dict[str, str]] = [{"timestamp": "1000"}, {}, {"timestamp": "soon"}, {"timestamp": "9" * 16}]
    chunk = _chunk((headers, b"") for headers in times)
    assert _partitioner("/data/{time:%Y}").split(chunk) == {"/data/1970": [0], "/data/2026": [1, 2, 3]}


def test_split_by_time_without_the_clock_has_the_word_for_no_time() -> None:
    """The time of an event is never guessed if that is not configured."""
    chunk = _chunk([({}, b""), ({}, b"")])
    assert _partitioner("/data/{time:%Y}", is_clock_used=False).split(chunk) == {"/data/unknown": range(2)}


def test_split_of_values_that_become_the_same_name_shares_a_directory() -> None:
    """Two headers with the same safe name share one open file."""
    chunk = _chunk(({"host": host}, b"") for host in ("a/b", "x", "a_b", "a/b"))
    assert _partitioner("/data/{header:host}").split(chunk) == {"/data/a_b": [0, 2, 3], "/data/x": [1]}
    chunk = _chunk(({"host": host}, b"") for host in ("a/b", "a_b"))
    assert _partitioner("/data/{header:host}").split(chunk) == {"/data/a_b": range(2)}


@given(
    st.lists(
        st.fixed_dictionaries({}, optional={"host": st.text(max_size=3), "timestamp": st.text(max_size=3)}), min_size=1
    )
)
def test_split_of_any_headers_assigns_each_event_to_one_directory_below_the_root(headers: list[dict[str, str]]) -> None:
    """No event is lost or doubled, and none leaves the root."""
    split = _partitioner("/data/{header:host}/{time:%H}").split(_chunk((each, b"") for each in headers))
    assert sorted(row for rows in split.values() for row in rows) == list(range(len(headers)))
    assert all(path.startswith("/data/") and path.count("/") == 3 for path in split)


def test_chosen_of_some_rows_takes_just_these() -> None:
    """Rows are a range or a list; all of them is the sequence itself."""
    assert chosen("abcd", range(1, 3)) == "bc"
    assert chosen("abcd", [0, 3]) == ["a", "d"]
    assert chosen("abcd", range(4)) == "abcd"
