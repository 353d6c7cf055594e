"""What a syslog message says: RFC 5424, and RFC 3164 as it is sent in practice."""

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from millrace_server.agent.sources.syslog.structured_data import STRUCTURED_DATA_PATTERN, structured_data_json
from millrace_server.agent.sources.syslog.times import TimeReader

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
    # What ends like a tag is one: programs that log to their own machine leave the host name out.
    rb"(?: (?P<hostname>[^\s\[]*[^\s\[:])(?= |\Z))?"
    rb"(?: (?P<tag>(?P<app_name>[^\s:\[\]]++)(?:\[(?P<procid>[^\s\]]*+)\]:?|:)(?= |\Z)))?"
    rb"(?: (?P<message>.*+))?+\Z",
    re.DOTALL,
)

_PRIORITIES = [(str(priority // 8), str(priority % 8)) for priority in range(192)]


class Parsed(NamedTuple):
    """One message: an event's body, and its headers, None where it has none."""

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
    """Reads messages.

    Args:
        times: Reads their times.
        keep_fields: What stays in front of the message in the body.
    """

    def __init__(self, times: TimeReader, keep_fields: Collection[str] = ()) -> None:
        self._times = times
        self._keeps_all = "all" in keep_fields
        self._keeps_priority = "priority" in keep_fields
        # In the order in which they stand in a message, each with what follows it there.
        fields = ("version", "timestamp", "hostname", "tag", "structured_data")
        self._kept_fields = [field for field in fields if field in keep_fields]

    def parse(self, content: bytes) -> Parsed:
        """One message, which is kept whole where it cannot be read."""
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
            fault = "it is not what its version says" if is_rfc_5424 else "it has no time behind its priority"
            return Parsed(content, facility, severity, syslog_malformed=fault)
        if not is_timed:
            return Parsed(content, facility, severity, syslog_malformed="there is no such time as it says")
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
        timestamp = self._times.read_iso(text.decode(errors="replace"))
        return timestamp, timestamp is not None

    def _bsd_time(self, text: bytes) -> str | None:
        decoded = text.decode(errors="replace")
        return self._times.read_iso(decoded) if decoded[0].isdigit() else self._times.read_bsd(decoded)

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
    """A field's value; None where there is none, or a dash for none."""
    return text.decode(errors="replace") if text and text != b"-" else None


HEADERS: Sequence[str] = Parsed._fields[1:]
"""The headers that parsing gives, in the order of its columns."""
