"""The paths that events make."""

import re
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from millrace_server.agent.sinks.files.event_times import TimeRule
from millrace_server.agent.sinks.files.path_template import PathTemplate, safe_value

UTC_RULE = TimeRule(ZoneInfo("UTC"), 1)
NOON = 1_767_268_800
"""12:00 on 2026-01-01, UTC."""


def _filled(text: str, headers: dict[str, str | None] | None = None, seconds: int | None = NOON) -> str:
    return PathTemplate.parse(text).fill(headers or {}, seconds, UTC_RULE, "unknown")


def test_fill_with_headers_and_time_puts_them_in() -> None:
    """A path has what stands in it, the event's headers, and its time."""
    path = _filled("/data/{header:host}/dt={time:%Y-%m-%d}/hour={time:%H}", {"host": "web-1"})
    assert path == "/data/web-1/dt=2026-01-01/hour=12"


def test_fill_without_header_or_time_has_the_word_for_it() -> None:
    """What an event does not have is told by a word, and never an empty name."""
    path = _filled("/data/{header:host}/{header:site}/{time:%Y}", {"host": None, "site": ""}, None)
    assert path == "/data/unknown/unknown/unknown"


def test_parse_of_doubled_braces_makes_braces() -> None:
    """Braces may be a part of a directory's name."""
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
    """The root is the directory before the first place."""
    assert PathTemplate.parse(text).root == root


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it must be a directory's path"),
        ("/data/{host}", "a brace must begin {header:NAME} or {time:FORMAT}, or come twice"),
        ("/data/{header:}", "a brace must begin"),
        ("/data/{", "a brace must begin"),
        ("/data/}", "a brace must begin"),
        ("/data/{time:%Y%f}", "%f is not a part of a time, those are %Y"),
        ("/data/{time:%}", "is not a part of a time"),
        ("/data/../{header:x}", '".." must not be a part of it'),
        ("/data/{header:a}{header:b}{header:c}", "a name in it could have 300 bytes"),
        ("s3://{header:bucket}/x", "a directory's name must come before the first brace"),
        ("hdfs:///{time:%Y}", "a directory's name must come before the first brace"),
    ],
)
def test_parse_of_what_is_no_template_says_why(text: str, said: str) -> None:
    """A wrong template is refused with a sentence that shows it."""
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
    """A header can neither leave its directory nor hide a file nor confuse a terminal."""
    assert safe_value(value) == safe


@given(st.text())
@example("\ud800" * 200)
@example("é" * 51)
def test_safe_value_of_any_text_is_a_name_that_file_systems_take(value: str) -> None:
    """Whatever a header holds, it is one short, visible name that is not special; and none at all for none."""
    safe = safe_value(value)
    assert bool(safe) == bool(value)
    assert "/" not in safe
    assert safe.isprintable()
    assert len(safe.encode()) <= 100
    assert not safe.startswith((".", "_"))
