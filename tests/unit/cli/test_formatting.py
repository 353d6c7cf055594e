from datetime import UTC, datetime, timedelta

import pytest

from millrace_client.cli.formatting import beginning, beginning_of_bytes, parse_past, printable_bytes


def test_printable_bytes_not_utf8_shows_the_bytes() -> None:
    """Bytes that are not text are shown as numbers."""
    assert printable_bytes(b"ok \xff\xc3\xa9") == "ok \\xffé"


def test_beginning_of_a_long_text_says_that_there_is_more() -> None:
    """The result, including the mark, is not longer than requested."""
    assert beginning("abcd", 4) == "abcd"
    assert beginning("abcde", 4) == "abc…"


def test_beginning_of_bytes_cuts_no_character_in_two() -> None:
    """Only characters that are invalid in the bytes themselves look so; the rest is not decoded."""
    assert beginning_of_bytes("€".encode() * 3, 3) == "€€€"
    assert beginning_of_bytes("€".encode() * 1_000_000, 3) == "€€…"
    assert beginning_of_bytes(b"ab\xe2", 9) == "ab\\xe2"
    assert beginning_of_bytes(b"\x1b[31m", 9) == "\\x1b[31m"


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-05-04T03:02:01.000007Z", datetime(2026, 5, 4, 3, 2, 1, 7, tzinfo=UTC)),
        ("2026-05-04 05:02+02:00", datetime(2026, 5, 4, 3, 2, tzinfo=UTC)),
        ("2026-05-04T03:02", datetime(2026, 5, 4, 3, 2).astimezone()),
        ("20260504", datetime(2026, 5, 4).astimezone()),
    ],
)
def test_parse_past_of_iso_8601_is_that_time(text: str, time: datetime) -> None:
    """Times without a zone are local."""
    assert parse_past(text) == time


def test_parse_past_of_a_duration_is_that_long_ago() -> None:
    """It counts back from now."""
    before = datetime.now(UTC)
    assert before <= parse_past("10m") + timedelta(minutes=10) <= datetime.now(UTC)


@pytest.mark.parametrize("text", ["", "10", "now", "2026-13-01", "10y", "999999999d", "0001-01-01T00:00:00+14:00"])
def test_parse_past_of_nonsense_says_what_is_allowed(text: str) -> None:
    """Bare numbers too: they could be seconds ago, or since 1970."""
    with pytest.raises(ValueError, match=r"write how long ago, such as 10m, 2h or 7d, or a time such as 2026"):
        parse_past(text)
