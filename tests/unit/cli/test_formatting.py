from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_client.cli.formatting import (
    beginning,
    beginning_of_bytes,
    format_byte_size,
    parse_byte_size,
    parse_duration,
    parse_past,
    printable,
    printable_bytes,
)


def test_printable_with_control_characters_escapes_them() -> None:
    """Escape sequences, newlines and C1 controls are escaped; tabs and letters stay."""
    assert printable("a\tä\x1b[31m\n\x9b\x7f") == "a\tä\\x1b[31m\\n\\x9b\\x7f"


def test_printable_with_surrogates_escapes_them() -> None:
    """Arguments that are not UTF-8 can be shown."""
    assert printable("\udcff") == "\\udcff"


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
    ("text", "count"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("64KiB", 65536),
        ("64 kib", 65536),
        ("10MB", 10_000_000),
        ("1.5GiB", 1_610_612_736),
        (" 2TiB ", 2 * 2**40),
        ("9007199254740993", 9_007_199_254_740_993),
    ],
)
def test_parse_byte_size_with_units_gives_bytes(text: str, count: int) -> None:
    """Decimal and binary units are distinguished, and integers stay exact."""
    assert parse_byte_size(text) == count


@pytest.mark.parametrize("text", ["", "KiB", "-1", "1e6", "1.KiB", "12 potatoes", "1 2", "٣", "1,000"])
def test_parse_byte_size_of_nonsense_says_what_is_allowed(text: str) -> None:
    """Invalid sizes are refused with valid examples."""
    with pytest.raises(ValueError, match="write bytes such as 4096"):
        parse_byte_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90.0), ("1.5", 1.5), ("250ms", 0.25), ("10m", 600.0), (" 2 H ", 7_200.0), ("7d", 604_800.0)],
)
def test_parse_duration_with_units_gives_seconds(text: str, seconds: float) -> None:
    """Without a unit it is seconds, as in the other options."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "h", "1y", "1h30m", "nan", "inf", "1e3", "٣s"])
def test_parse_duration_of_nonsense_says_what_is_allowed(text: str) -> None:
    """Invalid durations are refused with valid examples."""
    with pytest.raises(ValueError, match="write seconds, or a time such as 90s, 10m, 2h or 7d"):
        parse_duration(text)


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


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_610_612_736, "1.5 GiB"), (2**60, "1048576.0 TiB")],
)
def test_format_byte_size_of_counts_picks_the_largest_unit(count: int, text: str) -> None:
    """Numbers are short as long as there is a larger unit."""
    assert format_byte_size(count) == text


@given(st.integers(min_value=0, max_value=2**50))
def test_parse_byte_size_of_what_was_formatted_is_near(count: int) -> None:
    """Formatting loses at most the digits that it does not show."""
    assert parse_byte_size(format_byte_size(count)) == pytest.approx(count, rel=0.06, abs=1)
