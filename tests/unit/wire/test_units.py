import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.units import counted, format_age, format_byte_size, parse_byte_size, parse_count, parse_duration


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("5000", 5_000), ("1_000_000", 1_000_000), ("500k", 500_000), ("1M", 1_000_000), (" 1.5 m ", 1_500_000)],
)
def test_parse_count_with_units_gives_the_number(text: str, count: int) -> None:
    """Units are decimal, in either case."""
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "0k", "-1", "many", "1.5", "1.0001k", "1e6", "1MiB", "1,000", "1__0", "٣"])
def test_parse_count_of_nonsense_says_what_is_allowed(text: str) -> None:
    """Neither parts of events nor none; the sentence has valid examples."""
    with pytest.raises(ValueError, match=r"write one such as 5000, or with a unit such as 500k or 1\.5M"):
        parse_count(text)


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (0.4, "0 s"), (40, "40 s"), (90, "2 min"), (200_000, "2 d")]
)
def test_format_age_of_times_picks_the_largest_unit(seconds: float | None, text: str) -> None:
    """An unknown time is a dash."""
    assert format_age(seconds) == text


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


def test_counted_things_agree_with_their_number() -> None:
    """Only one thing is singular, and thousands are separated."""
    assert [counted(count, "event") for count in (0, 1, 2_000)] == ["0 events", "1 event", "2,000 events"]
    assert [counted(count, "batch", "batches") for count in (1, 2)] == ["1 batch", "2 batches"]
