"""Lines as events: their format, and the server that each line goes to."""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from millrace_client import Event
from millrace_client.cli.line_source import InputError
from millrace_client.producing.channel_buffer import BUCKETS
from millrace_client.producing.routing import ranked


@dataclass(frozen=True)
class LineFormat:
    """How the lines of an input become events."""

    headers: Mapping[str, str]
    """Headers of every event; a line's own headers take precedence."""
    is_json: bool = False

    def events(self, lines: list[bytes], first_line: int) -> tuple[Sequence[Event | bytes], InputError | None]:
        """Returns the events of the lines before the first invalid one, and the error of that line."""
        if not self.is_json:
            return ([Event(line, self.headers) for line in lines] if self.headers else lines), None
        events: list[Event] = []
        for line in lines:
            try:
                event = event_of_line(line)
            except ValueError as error:
                return events, InputError(f"line {first_line + len(events) + 1:,} {error}")
            events.append(Event(event.body, {**self.headers, **event.headers}))
        return events, None


_FIELDS = {"body", "body_base64", "commit_time", "headers", "sequence"}


def event_of_line(line: bytes) -> Event:
    """Parses an event with `headers` and `body` or `body_base64`. A `sequence` and a `commit_time` are ignored."""
    try:
        document = json.loads(line)
    except ValueError as error:
        raise ValueError(f"is not JSON ({error})") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if not isinstance(document, dict):
        example = '{"body": "text", "headers": {"key": "value"}}'
        raise ValueError(f"is not a JSON object; write one such as {example}")  # noqa: TRY004 - the line's content is wrong
    if unknown := sorted(document.keys() - _FIELDS):
        raise ValueError(f"has the field {unknown[0]!r}; {', '.join(sorted(_FIELDS))} are allowed")
    return Event(_body(document), _headers(document.get("headers", {})))


def _body(document: dict[str, object]) -> bytes:
    match document:
        case {"body": _, "body_base64": _}:
            raise ValueError("has both body and body_base64; write one of them")
        case {"body": str(text)}:
            return _utf8("body", text)
        case {"body_base64": str(text)}:
            try:
                return base64.b64decode(text, validate=True)
            except (binascii.Error, ValueError):
                raise ValueError("has a body_base64 that is not base64") from None
        case _:
            raise ValueError("has no body that is a string; write body, or body_base64 for other bytes")


def _headers(headers: object) -> dict[str, str]:
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise ValueError("has headers that are not an object of strings")
    for key, value in headers.items():
        _utf8("headers", f"{key}{value}")
    return headers


def _utf8(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        # JSON can hold a lone surrogate, which UTF-8 cannot encode.
        raise ValueError(f"has a {field} that is not Unicode") from None


class LineRouting:
    """Distributes lines over servers by their key, or round-robin by their number.

    Nothing else counts, not even the state of the servers. So a resumed put finds the server of each line again, and
    the line's number there: the number of earlier lines for that server. The key is the value of a header; events
    without it go in turn. A key's server is the one that a `Producer` with by-key routing gives it while all servers
    are available.
    """

    def __init__(self, endpoints: Sequence[str], key_header: str | None) -> None:
        self.server_count = len(endpoints)
        self._key_header = key_header
        self._homes = [endpoints.index(ranked(lane, endpoints)[0]) for lane in range(BUCKETS)]

    def indexes_by_server(self, events: Sequence[Event | bytes], first_line: int) -> list[Sequence[int]]:
        """Returns the indexes of each server's events, in order; `first_line` is the number of lines before them."""
        if self.server_count == 1:
            return [range(len(events))]
        found: list[list[int]] = [[] for _ in range(self.server_count)]
        for index, event in enumerate(events):
            found[self._server_of(event, first_line + index)].append(index)
        return [*found]

    def _server_of(self, event: Event | bytes, line: int) -> int:
        if self._key_header is not None and isinstance(event, Event):
            key = event.headers.get(self._key_header)
            if key is not None:
                return self._homes[crc32(key.encode()) % BUCKETS]
        return line % self.server_count
