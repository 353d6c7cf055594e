"""The interceptors with regular expressions."""

import time
from typing import Any

import pytest

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors import regexes
from millrace_server.agent.interceptors.interceptor import EventsRefusedError
from tests.source_writers import table_of
from tests.unit.agent.interceptors.configured_interceptors import intercepted, interceptor, problem_with

ACCESS_LINE = b'10.1.2.3 - bob [10/Oct/2000:13:55:36 -0700] "GET /a?b=1 HTTP/1.0" 200 2326'
ACCESS_PATTERN = (
    r'^(?P<ip>\S+) \S+ (?P<user>\S+) \[(?P<time>[^\]]+)\] "(?P<verb>\w+) (?P<path>\S+)[^"]*" (?P<status>\d+)'
)

FOREVER_PATTERN = "(a|aa)+$"
FOREVER_TEXT = "a" * 60 + "b"


def bodies_of(rows: list[tuple[dict[str, str], bytes]]) -> list[bytes]:
    return [body for _, body in rows]


# The filter.


@pytest.mark.parametrize(("action", "expected"), [("keep", [b"an error", b"error"]), ("drop", [b"fine", b""])])
def test_regex_filter_keeps_or_drops_what_matches_anywhere(action: str, expected: list[bytes]) -> None:
    """As with Flume, a part of the body is enough."""
    table = table_of(b"an error", b"fine", b"", b"error")
    assert bodies_of(intercepted(table, type="regex_filter", pattern="err", action=action)) == expected


def test_regex_filter_keeps_headers_with_their_events() -> None:
    """Columns of headers and bodies are filtered together."""
    table = table_of(b"1", b"2", b"3", n=["a", "b", "c"], host="h")
    rows = intercepted(table, type="regex_filter", pattern="[13]")
    assert rows == [({"n": "a", "host": "h"}, b"1"), ({"n": "c", "host": "h"}, b"3")]


@pytest.mark.parametrize(("action", "expected"), [("keep", [b"1"]), ("drop", [b"2", b"3"])])
def test_regex_filter_of_a_header_finds_nothing_where_there_is_none(action: str, expected: list[bytes]) -> None:
    """An event without the header does not match."""
    table = table_of(b"1", b"2", b"3", level=["warn", "info", None])
    rows = intercepted(table, type="regex_filter", pattern="^w", header="level", action=action)
    assert bodies_of(rows) == expected


def test_regex_filter_reads_broken_utf_8() -> None:
    """Bodies need not be valid UTF-8."""
    table = table_of(b"\xff\xfe err", "größe".encode(), b"\xff")
    assert bodies_of(intercepted(table, type="regex_filter", pattern="err|ö")) == [b"\xff\xfe err", "größe".encode()]


# Search and replace.


@pytest.mark.parametrize(
    ("pattern", "replacement", "body", "expected"),
    [
        ("o", "0", b"foo", b"f00"),
        (r"(\w+)=(\w+)", r"\2=\1", b"a=b c=d", b"b=a d=c"),
        (r"(?P<key>\w+)=\w+", r"\g<key>=***", b"password=secret", b"password=***"),
        ("", "-", b"ab", b"-a-b-"),
        ("x", "y", b"", b""),
        ("ö", "oe", "größe".encode(), "groeße".encode()),
        ("b", "ü", b"a\xffb\xfe", b"a\xff\xc3\xbc\xfe"),
        ("[é]", "e", "é\udc80".encode(errors="surrogateescape"), b"e\x80"),
        ("$", "", b"a\n", b"a\n"),
        (r"(a)|b", r"[\1]", b"ab", b"[a][]"),
    ],
)
def test_search_replace_replaces_all_places(pattern: str, replacement: str, body: bytes, expected: bytes) -> None:
    """Bytes that are not UTF-8 stay unchanged."""
    rows = intercepted(table_of(body), type="search_replace", pattern=pattern, replacement=replacement)
    assert bodies_of(rows) == [expected]


@pytest.mark.parametrize(
    ("values", "expected"), [("a-a", ["b-b", "b-b"]), (["a", None], ["b", None]), (["", "xax"], ["", "xbx"])]
)
def test_search_replace_in_a_header_leaves_bodies_alone(values: Any, expected: list[str | None]) -> None:
    """Events without the header stay without it."""
    table = table_of(b"a", b"a", h=values)
    rows = intercepted(table, type="search_replace", pattern="a", replacement="b", header="h")
    assert [headers.get("h") for headers, _ in rows] == expected
    assert bodies_of(rows) == [b"a", b"a"]


def test_search_replace_in_a_header_that_no_event_has_does_nothing() -> None:
    """No header is added."""
    assert intercepted(table_of(b"a"), type="search_replace", pattern="a", replacement="b", header="h") == [({}, b"a")]


@pytest.mark.parametrize("replacement", ["0123456789" * 20, r"\g<0>\g<0>" * 10])
def test_search_replace_that_makes_a_text_too_long_refuses_that_event(replacement: str) -> None:
    """Memory is bounded for any pattern and body; the other events pass at the next attempt."""
    table = table_of(b"1", b"x" * 100_000, b"2")
    with pytest.raises(EventsRefusedError) as caught:
        interceptor(type="search_replace", pattern="x|x+$", replacement=replacement).intercept(table)
    assert list(caught.value.reasons) == [1]
    assert f"more than {regexes.GROWTH_CHARACTERS_MAX} characters longer" in caught.value.reasons[1]
    assert table.bodies == [b"1", b"x" * 100_000, b"2"]


def test_search_replace_just_below_the_limit_is_done() -> None:
    """Counting and replacing step by step has the same result as replacing at once."""
    body = b"ab" * 1_000
    rows = intercepted(table_of(body), type="search_replace", pattern="(a)b", replacement=r"<\1>" * 100)
    assert bodies_of(rows) == [b"<a>" * 100 * 1_000]


def test_search_replace_of_a_header_that_all_have_refuses_all_where_it_is_too_much() -> None:
    """The single value of all events is refused for all of them."""
    table = table_of(b"1", b"2", h="x" * 100_000)
    with pytest.raises(EventsRefusedError) as caught:
        interceptor(type="search_replace", pattern="x", replacement="y" * 100, header="h").intercept(table)
    assert list(caught.value.reasons) == [0, 1]


@pytest.mark.parametrize(
    ("pattern", "replacement", "said"),
    [
        ("a", r"\1", "invalid group reference"),
        ("(a)", r"\2", "invalid group reference"),
        ("(?P<x>a)", r"\g<y>", "unknown group"),
        ("a", "\\", "bad escape"),
    ],
)
def test_search_replace_whose_replacement_does_not_fit_is_refused(pattern: str, replacement: str, said: str) -> None:
    """The configuration is refused, not the first event that matches."""
    problem = problem_with(type="search_replace", pattern=pattern, replacement=replacement)
    assert problem.startswith("replacement: is ")
    assert said in problem


# The extractor.


def test_regex_extractor_makes_headers_of_named_groups() -> None:
    """Times become milliseconds since 1970, with their own zone."""
    [(headers, body)] = intercepted(
        table_of(ACCESS_LINE),
        type="regex_extractor",
        pattern=ACCESS_PATTERN,
        millis={"time": "%d/%b/%Y:%H:%M:%S %z"},
    )
    assert body == ACCESS_LINE
    assert headers == {
        "ip": "10.1.2.3",
        "user": "bob",
        "time": "971211336000",
        "verb": "GET",
        "path": "/a?b=1",
        "status": "200",
    }


def test_regex_extractor_makes_headers_of_a_list_of_names() -> None:
    """The names of the groups are ignored then."""
    rows = intercepted(
        table_of(b"1:2.3foobar5"),
        type="regex_extractor",
        pattern=r"(\d):(?P<x>\d)\.(\d)",
        names=["one", "two", "three"],
    )
    assert [headers for headers, _ in rows] == [{"one": "1", "two": "2", "three": "3"}]


def test_regex_extractor_where_nothing_is_found_changes_nothing() -> None:
    """No header is set for a group that did not take part either; an existing header stays then."""
    table = table_of(b"a1", b"zz", b"b", kind=["old", "old", "old"])
    rows = intercepted(table, type="regex_extractor", pattern=r"(?P<kind>a\d)|(?P<other>b)")
    assert [headers for headers, _ in rows] == [{"kind": "a1"}, {"kind": "old"}, {"kind": "old", "other": "b"}]


def test_regex_extractor_of_a_header_looks_there() -> None:
    """The header may be, for example, the path of the file that a line comes from."""
    rows = intercepted(
        table_of(b"1", b"2", file=["/var/log/app.log", None]),
        type="regex_extractor",
        header="file",
        pattern=r"/(?P<app>\w+)\.log$",
    )
    assert [headers.get("app") for headers, _ in rows] == ["app", None]


@pytest.mark.parametrize(
    ("time_zone", "text", "millis"),
    [
        ("UTC", b"2026-01-31 23:59:59", "1769903999000"),
        ("Europe/Berlin", b"2026-07-01 02:00:00", "1782864000000"),
        ("UTC", b"2026-02-30 00:00:00", None),
        ("UTC", b"yesterday", None),
    ],
)
def test_regex_extractor_of_a_time_without_zone_takes_the_configured_one(
    time_zone: str, text: bytes, millis: str | None
) -> None:
    """A time that cannot be parsed sets no header; the event passes."""
    [(headers, _)] = intercepted(
        table_of(text),
        type="regex_extractor",
        pattern="(?P<at>.+)",
        millis={"at": "%Y-%m-%d %H:%M:%S"},
        time_zone=time_zone,
    )
    assert headers.get("at") == millis


def test_regex_extractor_of_broken_utf_8_makes_headers_that_can_be_stored() -> None:
    """Headers must be text."""
    made = interceptor(type="regex_extractor", pattern="(?P<all>.+)").intercept(table_of(b"a\xffb"))
    assert made.values("all") == ["a\ufffdb"]
    assert made.stored()


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (
            {"pattern": "a"},
            "names: is empty, and the pattern has no group with a name; one of them must name the headers",
        ),
        (
            {"pattern": "(a)(b)", "names": ["x"]},
            "names: must have one name for each group of the pattern: 2, not 1",
        ),
        (
            {"pattern": "(?P<at>a)", "millis": {"on": "%Y"}},
            'millis: has "on"; the headers are "at"',
        ),
        (
            {"pattern": "(?P<at>a)", "millis": {"at": "yyyy-MM-dd"}},
            'millis: has "yyyy-MM-dd" for "at"; it must be a time format, such as "%Y-%m-%d %H:%M:%S"',
        ),
        (
            {"pattern": "(?P<at>a)", "millis": {"at": "%"}},
            'millis: has "%" for "at"; it must be a time format, such as "%Y-%m-%d %H:%M:%S"',
        ),
        (
            {"pattern": "(?P<at>a)", "time_zone": "Mars/Base"},
            'time_zone: is "Mars/Base"; it must be the name of a time zone on this machine, such as "Europe/Berlin"',
        ),
    ],
)
def test_regex_extractor_that_does_not_fit_together_is_refused(table: dict[str, Any], problem: str) -> None:
    """The error names the wrong setting."""
    assert problem_with(type="regex_extractor", **table) == problem


# All interceptors.


@pytest.mark.parametrize("kind", ["regex_filter", "search_replace", "regex_extractor", "remove_header"])
@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "[", r"(?P<1>a)"])
def test_config_with_an_invalid_pattern_is_refused(kind: str, pattern: str) -> None:
    """The check of the configuration reports it."""
    more = {"replacement": ""} if kind == "search_replace" else {}
    problem = problem_with(type=kind, pattern=pattern, **more)
    assert problem.startswith("pattern: is ")
    assert "which is not a valid regular expression: " in problem


@pytest.mark.parametrize(
    ("kind", "more"),
    [("regex_filter", {}), ("search_replace", {"replacement": "b"}), ("regex_extractor", {"names": ["x"]})],
)
@pytest.mark.parametrize("header", [None, "h"])
def test_a_search_without_end_is_given_up_and_its_event_refused(
    monkeypatch: pytest.MonkeyPatch, kind: str, more: dict[str, Any], header: str | None
) -> None:
    """Untrusted text must not block the server or the source; the other events are not refused."""
    monkeypatch.setattr(regexes, "MATCH_SECONDS_MAX", 0.05)
    texts = ["aa", FOREVER_TEXT, "aa"]
    table = EventTable([text.encode() for text in texts], {"h": texts})
    began = time.thread_time()
    with pytest.raises(EventsRefusedError) as caught:
        interceptor(type=kind, pattern=FOREVER_PATTERN, header=header, **more).intercept(table)
    assert list(caught.value.reasons) == [1]
    # The limit, too, is one of processor time.
    assert time.thread_time() - began < 5
    good = table.chosen([True, False, True])
    assert interceptor(type=kind, pattern=FOREVER_PATTERN, header=header, **more).intercept(good).count == 2
