"""When an event happened, as far as the path of its file is concerned."""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

_DAY_SECONDS = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_time(text: str) -> int | None:
    """The time that a header tells, in whole seconds since 1970; None where it tells none that a calendar has.

    Args:
        text: Milliseconds since 1970, or a date and time as ISO 8601 writes them. Without an offset they are UTC.
    """
    try:
        seconds = int(text) // 1_000 if text.isdecimal() else _seconds_of(datetime.fromisoformat(text))
    except ValueError:
        return None
    return seconds if _SECONDS_MIN <= seconds <= _SECONDS_MAX else None


def _seconds_of(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(seconds=1)


# A day less at both ends than Python's calendar has, for the zones in which they are shown.
_SECONDS_MIN = _seconds_of(datetime.min.replace(tzinfo=UTC)) + _DAY_SECONDS
_SECONDS_MAX = _seconds_of(datetime.max.replace(tzinfo=UTC)) - _DAY_SECONDS


def zone_named(name: str) -> tzinfo:
    """A time zone; UTC is there even on machines that know of no other.

    Raises:
        KeyError, OSError, ValueError: There is none of that name.
    """
    return UTC if name == "UTC" else ZoneInfo(name)


class TimeRule(NamedTuple):
    """How a time is written in a path."""

    zone: tzinfo
    """Whose clocks it is shown by."""
    round_seconds: int
    """It is rounded down to a multiple of this, counted from midnight of its day."""

    def show(self, seconds: int, strftime_format: str) -> str:
        """A time of the calendar, in whole seconds since 1970, as text."""
        moment = (_EPOCH + timedelta(seconds=seconds)).astimezone(self.zone)
        # By the clock on the wall, so that quarters of an hour are where that clock has them, in every zone.
        passed = moment.hour * 3_600 + moment.minute * 60 + moment.second
        rest = passed % min(self.round_seconds, _DAY_SECONDS)
        return (moment.replace(tzinfo=None, microsecond=0) - timedelta(seconds=rest)).strftime(strftime_format)
