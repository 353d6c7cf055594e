from datetime import UTC, datetime

import pytest

from millrace_server.agent.sources.syslog.parsing import TimestampParser


def milliseconds(text: str) -> str:
    return str(round(datetime.fromisoformat(text).timestamp() * 1000))


@pytest.mark.parametrize(
    ("now", "text", "expected"),
    [
        ("2026-06-15T00:00:00", "Jun 14 23:59:59", "2026-06-14T23:59:59+00:00"),
        ("2026-06-15T00:00:00", "Jun  1 00:00:00", "2026-06-01T00:00:00+00:00"),
        ("2026-01-01T00:00:05", "Dec 31 23:59:59", "2025-12-31T23:59:59+00:00"),
        ("2026-12-31T23:59:55", "Jan  1 00:00:02", "2027-01-01T00:00:02+00:00"),
        ("2028-03-01T00:00:00", "Feb 29 12:00:00", "2028-02-29T12:00:00+00:00"),
        ("2029-01-01T00:00:00", "Feb 29 12:00:00", "2028-02-29T12:00:00+00:00"),
        ("2027-06-15T00:00:00", "Feb 29 12:00:00", "2024-02-29T12:00:00+00:00"),
        ("2026-10-12T00:00:00", "Feb  5 12:00:00", "2026-02-05T12:00:00+00:00"),
        ("2026-10-12T00:00:00", "Nov  5 12:00:00", "2026-11-05T12:00:00+00:00"),
        ("2026-10-12T00:00:00", "Dec  5 12:00:00", "2025-12-05T12:00:00+00:00"),
        ("2026-06-15T00:00:00", "Jun 14 23:59:59.123456", "2026-06-14T23:59:59.123+00:00"),
    ],
)
def test_read_bsd_without_a_year_takes_the_latest_that_is_not_ahead(now: str, text: str, expected: str) -> None:
    """This includes the days around New Year and the 29th of February."""
    times = TimestampParser("UTC", lambda: datetime.fromisoformat(now).replace(tzinfo=UTC))
    assert times.parse_bsd(text) == milliseconds(expected)
    assert times.parse_bsd(text) == milliseconds(expected)


def test_read_bsd_in_a_time_zone_is_of_that_zone() -> None:
    """A timestamp without a zone is in the configured one, including its summer time."""
    times = TimestampParser("Europe/Berlin", lambda: datetime(2026, 6, 15, tzinfo=UTC))
    assert times.parse_bsd("Jun 14 12:00:00") == milliseconds("2026-06-14T12:00:00+02:00")
    assert times.parse_bsd("Jan 14 12:00:00") == milliseconds("2026-01-14T12:00:00+01:00")
    assert times.parse_iso("2026-06-14T12:00:00") == milliseconds("2026-06-14T12:00:00+02:00")
    assert times.parse_iso("2026-06-14T12:00:00Z") == milliseconds("2026-06-14T12:00:00+00:00")


def test_read_bsd_a_year_later_is_of_the_new_year() -> None:
    """A cached time does not stay valid without limit."""
    now = datetime(2026, 6, 15, tzinfo=UTC)
    times = TimestampParser("UTC", lambda: now)
    assert times.parse_bsd("Jun 15 12:00:00") == milliseconds("2026-06-15T12:00:00+00:00")
    now = datetime(2027, 6, 15, tzinfo=UTC)
    assert times.parse_bsd("Jun 15 12:00:00") == milliseconds("2027-06-15T12:00:00+00:00")


def test_read_bsd_of_many_times_remembers_few() -> None:
    """A sender cannot fill the memory with times."""
    times = TimestampParser("UTC", lambda: datetime(2026, 6, 15, tzinfo=UTC))
    for number in range(5_000):
        assert times.parse_bsd(f"Jun 14 12:00:00.{number:06}") is not None
    assert times._latest_time.cache_info().currsize <= 1_000


@pytest.mark.parametrize("text", ["", "now", "2026-13-01T00:00:00Z", "2026-01-01T24:30:00Z", "9999-99-99T99:99:99Z"])
def test_read_iso_of_no_time_is_none(text: str) -> None:
    """Any other text gives no time."""
    assert TimestampParser("UTC").parse_iso(text) is None
