"""Times of events, and how paths show them."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from millrace_server.agent.sinks.files.event_times import TimeRule, read_time

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


@pytest.mark.parametrize("text", ["", "now", "-5", "12.5", "2026-13-01T00:00:00", "9" * 10_000, "²"])
def test_read_time_of_anything_else_is_none(text: str) -> None:
    """A header that tells no time raises nothing, however long it is."""
    assert read_time(text) is None


@pytest.mark.parametrize(
    ("zone", "strftime_format", "shown"),
    [
        ("UTC", "%Y-%m-%d %H", "2026-01-01 12"),
        ("Asia/Kathmandu", "%H:%M", "17:45"),
        ("America/Los_Angeles", "%d %H", "01 04"),
    ],
)
def test_show_in_a_zone_uses_its_clocks(zone: str, strftime_format: str, shown: str) -> None:
    """A time is shown as clocks in the zone show it."""
    assert TimeRule(ZoneInfo(zone), 1).show(NOON, strftime_format) == shown


@pytest.mark.parametrize(
    ("round_seconds", "shown"), [(1, "17:59:37"), (60, "17:59:00"), (900, "17:45:00"), (3_600, "17:00:00")]
)
def test_show_rounded_goes_down_to_the_clocks_own_multiples(round_seconds: int, shown: str) -> None:
    """Rounding is by the clock on the wall, also where that is 45 minutes beside UTC."""
    moment = datetime(2026, 1, 1, 17, 59, 37, tzinfo=ZoneInfo("Asia/Kathmandu"))
    rule = TimeRule(ZoneInfo("Asia/Kathmandu"), round_seconds)
    assert rule.show(int(moment.timestamp()), "%H:%M:%S") == shown


def test_show_rounded_to_a_day_begins_at_midnight() -> None:
    """A day is the zone's own."""
    assert TimeRule(ZoneInfo("Pacific/Auckland"), 86_400).show(NOON, "%d %H:%M") == "02 00:00"


@pytest.mark.parametrize("text", [str(10**15), "9999-12-31T23:59:59", "0001-01-01T00:00:00", "2" + "0" * 40])
def test_read_time_beyond_the_calendar_is_none(text: str) -> None:
    """What no calendar has in every zone is no time."""
    assert read_time(text) is None


@pytest.mark.parametrize("text", ["0001-01-02T00:00:00", "9999-12-30T23:59:59"])
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_show_of_any_time_that_is_read_has_a_date_in_every_zone(text: str, zone: str) -> None:
    """Also where it is another day."""
    seconds = read_time(text)
    assert seconds is not None
    assert TimeRule(ZoneInfo(zone), 1).show(seconds, "%d")
