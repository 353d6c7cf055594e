"""The parser of messages, their timestamps and their structured data."""

import json
import re
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from millrace_server.agent.setting_types import time_zone_of

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}
_PARSED_TIMES_MAX = 1_000
_FUTURE_MAX = timedelta(days=31)
_LEAP_YEARS_APART = 8


class TimestampParser:
    """Parses timestamps into milliseconds since 1970. `time_zone` applies to timestamps without a zone."""

    def __init__(self, time_zone: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._zone = time_zone_of(time_zone)
        self._now = now
        self._latest_time = lru_cache(_PARSED_TIMES_MAX)(self._find_latest_time)

    def parse_iso(self, text: str) -> str | None:
        """Parses a timestamp of RFC 5424; None if it is invalid."""
        try:
            time = datetime.fromisoformat(text)
            return _milliseconds(time if time.tzinfo else time.replace(tzinfo=self._zone))
        except (ValueError, OverflowError):
            return None

    def parse_bsd(self, text: str) -> str | None:
        """Parses a timestamp of RFC 3164, such as `Oct 11 22:14:15`; None if it is invalid.

        The year is the latest one for which the time is not in the future, apart from wrong clocks and time zones.
        """
        return self._latest_time(text, self._now().astimezone(self._zone).date())

    def _find_latest_time(self, text: str, today: date) -> str | None:
        for year in range(today.year + 1, today.year - _LEAP_YEARS_APART - 1, -1):
            time = self._in_year(text, year)
            if time is not None and time.date() - today <= _FUTURE_MAX:
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


_NAME = rb'[^\s=\]"]++'
_VALUE = rb'(?:[^"\\]++|\\.)*+'
_ELEMENT = rb"\[" + _NAME + rb"(?: ++" + _NAME + rb'="' + _VALUE + rb'")*+ *+\]'

STRUCTURED_DATA_PATTERN = rb"-|(?:" + _ELEMENT + rb")++"
"""All elements, or a dash if there are none."""

_ELEMENT_PARTS = re.compile(rb"\[(" + _NAME + rb")((?: ++" + _NAME + rb'="' + _VALUE + rb'")*+) *+\]', re.DOTALL)
_PARAMETER = re.compile(rb"(" + _NAME + rb')="(' + _VALUE + rb')"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def structured_data_json(text: bytes) -> str | None:
    """Returns a JSON object that contains an object of parameters for the id of each element; None for a dash.

    The values of a repeated parameter become an array.
    """
    if text == b"-":
        return None
    elements: dict[str, dict[str, str | list[str]]] = {}
    for name, parameters in _ELEMENT_PARTS.findall(text):
        element = elements.setdefault(name.decode(errors="replace"), {})
        for key, value in _PARAMETER.findall(parameters):
            decoded = value.decode(errors="replace")
            _add(element, key.decode(errors="replace"), _ESCAPED.sub(r"\1", decoded) if "\\" in decoded else decoded)
    return _ENCODER.encode(elements)


def _add(element: dict[str, str | list[str]], key: str, value: str) -> None:
    known = element.get(key)
    if known is None:
        element[key] = value
    elif isinstance(known, list):
        known.append(value)
    else:
        element[key] = [known, value]


_PRIORITY = re.compile(rb"<([0-9]{1,3})>")
_RFC_5424 = re.compile(
    rb"(?P<version>1) (?P<timestamp>\S++) (?P<hostname>\S++)"
    rb" (?P<tag>(?P<app_name>\S++) (?P<procid>\S++) (?P<msgid>\S++))"
    rb" (?P<structured_data>" + STRUCTURED_DATA_PATTERN + rb")"
    rb"(?: (?:\xef\xbb\xbf)?(?P<message>.*+))?+\Z",
    re.DOTALL,
)
_RFC_5424_START = re.compile(rb"[1-9][0-9]{0,2} [-0-9]")
_RFC_3164 = re.compile(
    rb"(?P<timestamp>[A-Z][a-z]{2} [ 0-3][0-9] [0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
    rb"|[0-9]{4}-[0-9]{2}-[0-9]{2}T\S++)"
    # A word that ends like a tag is not a host name, which programs omit if they log to their own machine.
    rb"(?: (?P<hostname>[^\s\[]*[^\s\[:])(?= |\Z))?"
    rb"(?: (?P<tag>(?P<app_name>[^\s:\[\]]++)(?:\[(?P<procid>[^\s\]]*+)\]:?|:)(?= |\Z)))?"
    rb"(?: (?P<message>.*+))?+\Z",
    re.DOTALL,
)

_PRIORITIES = [(str(priority // 8), str(priority % 8)) for priority in range(192)]


class Parsed(NamedTuple):
    """A parsed message: the body of an event and its headers, which may be None."""

    body: bytes
    facility: str | None = None
    severity: str | None = None
    timestamp: str | None = None
    hostname: str | None = None
    app_name: str | None = None
    procid: str | None = None
    msgid: str | None = None
    structured_data: str | None = None
    syslog_malformed: str | None = None


class SyslogParser:
    """Parses messages. The fields to keep precede the message in the body."""

    def __init__(self, times: TimestampParser, keep_fields: Collection[str] = ()) -> None:
        self._timestamps = times
        self._keeps_all = "all" in keep_fields
        self._keeps_priority = "priority" in keep_fields
        # In the order of a message.
        fields = ("version", "timestamp", "hostname", "tag", "structured_data")
        self._kept_fields = [field for field in fields if field in keep_fields]

    def parse(self, content: bytes) -> Parsed:
        """Parses one message. A malformed message is kept whole."""
        priority = _PRIORITY.match(content)
        if priority is None:
            return Parsed(content, syslog_malformed="it does not begin with a priority")
        number = int(priority[1])
        if number >= len(_PRIORITIES):
            return Parsed(content, syslog_malformed=f"its priority is above {len(_PRIORITIES) - 1}")
        facility, severity = _PRIORITIES[number]
        start = priority.end()
        if (match := _RFC_5424.match(content, start)) is not None:
            timestamp, is_timed = self._iso_time(match["timestamp"])
            msgid, structured_data = _value(match["msgid"]), structured_data_json(match["structured_data"])
        elif (match := _RFC_3164.match(content, start)) is not None:
            timestamp = self._bsd_time(match["timestamp"])
            is_timed = timestamp is not None
            msgid = structured_data = None
        else:
            is_rfc_5424 = _RFC_5424_START.match(content, start)
            fault = "it does not have the format of its version" if is_rfc_5424 else "it has no time after its priority"
            return Parsed(content, facility, severity, syslog_malformed=fault)
        if not is_timed:
            return Parsed(content, facility, severity, syslog_malformed="its time does not exist")
        return Parsed(
            self._body(content, priority[0], match),
            facility,
            severity,
            timestamp,
            _value(match["hostname"]),
            _value(match["app_name"]),
            _value(match["procid"]),
            msgid,
            structured_data,
        )

    def _iso_time(self, text: bytes) -> tuple[str | None, bool]:
        if text == b"-":
            return None, True
        timestamp = self._timestamps.parse_iso(text.decode(errors="replace"))
        return timestamp, timestamp is not None

    def _bsd_time(self, text: bytes) -> str | None:
        decoded = text.decode(errors="replace")
        return self._timestamps.parse_iso(decoded) if decoded[0].isdigit() else self._timestamps.parse_bsd(decoded)

    def _body(self, content: bytes, priority: bytes, match: re.Match[bytes]) -> bytes:
        if self._keeps_all:
            return content
        message = match["message"] or b""
        if not self._kept_fields:
            return priority + message if self._keeps_priority else message
        found = match.groupdict()
        parts = [part for field in self._kept_fields if (part := found.get(field))]
        return (priority if self._keeps_priority else b"") + b" ".join([*parts, message] if message else parts)


def _value(text: bytes | None) -> str | None:
    """Returns the value of a field; None if it is missing or a dash."""
    return text.decode(errors="replace") if text and text != b"-" else None


HEADERS: Sequence[str] = Parsed._fields[1:]
"""The headers that the parser sets, in the order of its fields."""
