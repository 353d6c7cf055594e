"""The times that syslog messages carry."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}
_READ_TIMES_MAX = 1_000
_AHEAD_MAX = timedelta(days=31)
_LEAP_YEARS_APART = 8


class TimeReader:
    """Reads times, in milliseconds since 1970.

    Args:
        time_zone: Where senders are whose times say nothing of a zone.
        now: The wall clock, for times without a year.
    """

    def __init__(self, time_zone: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._zone: tzinfo = UTC if time_zone == "UTC" else ZoneInfo(time_zone)
        self._now = now
        self._read_times: dict[str, str | None] = {}
        self._read_on = now().date()

    def read_iso(self, text: str) -> str | None:
        """A time of RFC 5424; None where it is none."""
        try:
            time = datetime.fromisoformat(text)
            return _milliseconds(time if time.tzinfo else time.replace(tzinfo=self._zone))
        except (ValueError, OverflowError):
            return None

    def read_bsd(self, text: str) -> str | None:
        """A time of RFC 3164, such as `Oct 11 22:14:15`; None where it is none.

        It is in the latest year in which it does not lie ahead by more than what clocks and zones explain.
        """
        now = self._now().astimezone(self._zone)
        if self._read_on != now.date() or len(self._read_times) >= _READ_TIMES_MAX:
            self._read_times.clear()
            self._read_on = now.date()
        if text not in self._read_times:
            self._read_times[text] = self._latest(text, now)
        return self._read_times[text]

    def _latest(self, text: str, now: datetime) -> str | None:
        for year in range(now.year + 1, now.year - _LEAP_YEARS_APART - 1, -1):
            time = self._in_year(text, year)
            if time is not None and time - now <= _AHEAD_MAX:
                return _milliseconds(time)
        return None

    def _in_year(self, text: str, year: int) -> datetime | None:
        month = _MONTHS.get(text[:3])
        if month is None:
            return None
        hours, minutes, seconds = text[7:].split(":")
        whole_seconds, _, fraction = seconds.partition(".")
        try:
            return datetime(
                year,
                month,
                int(text[4:6]),
                int(hours),
                int(minutes),
                int(whole_seconds),
                int(fraction.ljust(6, "0") or 0),
                tzinfo=self._zone,
            )
        except ValueError:
            return None


def _milliseconds(time: datetime) -> str:
    return str(round(time.timestamp() * 1000))
