from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace_server.agent.lines.config import MultilineConfig
from millrace_server.agent.lines.lines import Lines
from millrace_server.agent.lines.splitter import MultilineAggregator


def joined(*lines: bytes, **settings: Any) -> list[bytes]:
    """The events of these lines."""
    aggregator = MultilineAggregator(MultilineConfig.model_validate(settings, strict=True), 0)
    found = aggregator.feed(Lines(0, 0, lines, [len(line) + 1 for line in lines]))
    return [*found.bodies, *aggregator.finish().bodies]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"pattern": "^[a-z]"}, [b"one\n 1\n 2", b"two\n 3"]),
        ({"pattern": "^ ", "negate": True}, [b"one\n 1\n 2", b"two\n 3"]),
        ({"pattern": "^ ", "role": "continues"}, [b"one\n 1\n 2", b"two\n 3"]),
        ({"pattern": "[23]$", "role": "ends"}, [b"one\n 1\n 2", b"two\n 3"]),
        ({"pattern": "[^23]$", "role": "ends", "negate": True}, [b"one\n 1\n 2", b"two\n 3"]),
    ],
    ids=str,
)
def test_feed_joins_lines_by_their_role(settings: dict[str, Any], expected: list[bytes]) -> None:
    """A pattern determines which lines begin, continue or end an event, or which do not."""
    assert joined(b"one", b" 1", b" 2", b"two", b" 3", **settings) == expected


def test_feed_of_a_first_line_that_continues_begins_an_event() -> None:
    """What preceded it is unknown, and nothing is omitted."""
    assert joined(b" 1", b" 2", b"two", pattern="^ ", role="continues") == [b" 1\n 2", b"two"]


def test_feed_of_many_lines_ends_events_at_their_limits() -> None:
    """An event that does not end by itself does so before it has too many lines or bytes."""
    lines = [b"begin", *[b" %d" % number for number in range(5)]]
    assert joined(*lines, pattern="^b", lines_max=3) == [b"begin\n 0\n 1", b" 2\n 3\n 4"]
    assert joined(*lines, pattern="^b", bytes_max=8) == [b"begin\n 0", b" 1\n 2\n 3", b" 4"]
    assert joined(b"a line that is longer", b" 1", pattern="^b", bytes_max=8) == [b"a line that is longer", b" 1"]


def test_feed_of_lines_that_were_left_out_counts_them_to_the_event_around_them() -> None:
    """An event covers a range without gaps, so that all its bytes count as read."""
    aggregator = MultilineAggregator(MultilineConfig(pattern="^a"), 10)
    assert aggregator.feed(Lines(10, 5, [b"a", b"b"], [2, 9])) == Lines(10, 5, [], [])
    found = aggregator.feed(Lines(26, 4, [b"a"], [2]))
    assert found == Lines(15, 0, [b"a\nb"], [15])
    assert aggregator.position == 30


def test_feed_of_a_line_on_which_the_pattern_times_out_counts_it_as_no_match(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The match ends in time, and is logged once."""
    monkeypatch.setattr("millrace_server.agent.interceptors.regexes.MATCH_SECONDS_MAX", 0.01)
    with capture_logs() as log:
        lines = b"first", b"a" * 60 + b"b", b"a" * 61 + b"b"
        assert joined(*lines, pattern="(a|aa)+$") == [b"\n".join(lines)]
    assert len(log) == 1
    assert "took longer than" in log[0]["reason"]


def test_feed_of_lines_that_are_not_utf_8_matches_them_nevertheless() -> None:
    """An invalid character matches as U+FFFD and is passed on unchanged."""
    assert joined(b"\xff 1", b" 2", "é 3".encode(), pattern=r"^\w") == [b"\xff 1\n 2", "é 3".encode()]
