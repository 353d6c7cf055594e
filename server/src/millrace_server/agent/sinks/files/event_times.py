"""When an event happened, as far as the path of its file is concerned."""

from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

_DAY_SECONDS = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_time(text: str) -> int | None:
    """The time that a header tells, in whole seconds since 1970; None where it tells none.

    Args:
        text: Milliseconds since 1970, or a date and time as ISO 8601 writes them. Without an offset they are UTC.
    """
    try:
        if text.isdecimal():
            return int(text) // 1_000
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(seconds=1)


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

    def show(self, seconds: int, strftime_format: str) -> str | None:
        """A time in whole seconds since 1970 as text; None where no calendar has it."""
        try:
            moment = (_EPOCH + timedelta(seconds=seconds)).astimezone(self.zone)
        except (OverflowError, ValueError):
            return None
        # By the clock on the wall, so that quarters of an hour are where that clock has them, in every zone.
        passed = moment.hour * 3_600 + moment.minute * 60 + moment.second
        rest = passed % min(self.round_seconds, _DAY_SECONDS)
        return (moment.replace(tzinfo=None, microsecond=0) - timedelta(seconds=rest)).strftime(strftime_format)
