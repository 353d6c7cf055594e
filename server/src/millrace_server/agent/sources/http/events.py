"""The events in a request body."""

import base64
import binascii
import json
import re
from collections.abc import Iterator
from email.message import Message

from millrace.columns import HEADER_KEYS_MAX
from millrace.setting_problems import shown_value
from millrace_server.agent.sources.http.bodies import HttpRefusalError, bad_request, too_large

Event = tuple[dict[str, str], bytes]
"""The headers and the body of an event."""

_JSON_TYPE = "application/json"
_JSON_LINES_TYPES = {
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/x-jsonlines",
    "application/jsonlines",
    "application/json-lines",
}
# A byte order mark may precede any of them.
_CHARSETS = {"utf-8": "utf-8-sig", "utf8": "utf-8-sig", "us-ascii": "utf-8-sig", "utf-16": "utf-16", "utf-32": "utf-32"}
_FIELDS = {"headers", "body", "body_base64"}
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def read_events(content_type: str, body: bytes, events_max: int) -> list[Event]:
    """Returns the events of a body. Raises HttpRefusalError if it is invalid for its type or has too many events."""
    declared = Message()
    declared["Content-Type"] = content_type
    kind = declared.get_content_type() if content_type else ""
    if kind == _JSON_TYPE:
        items = _array_items(_text(declared, body))
    elif kind in _JSON_LINES_TYPES:
        items = _line_items(_text(declared, body))
    else:
        return [({}, body)]
    events: list[Event] = []
    for place, item in items:
        if len(events) == events_max:
            raise too_large(f"the body has more than {events_max} events; send them in several requests")
        events.append(_event(place, item))
    return events


def _text(declared: Message, body: bytes) -> str:
    charset = declared.get_content_charset("utf-8")
    if charset not in _CHARSETS:
        sentence = f"the charset of Content-Type is {shown_value(charset)}; it must be utf-8, utf-16 or utf-32"
        raise HttpRefusalError(415, "BAD_ENCODING", sentence)
    try:
        return body.decode(_CHARSETS[charset])
    except UnicodeDecodeError as error:
        raise bad_request(f"the body is not {charset} at byte {error.start}") from None


def _array_items(text: str) -> Iterator[tuple[str, object]]:
    """Yields each item of an array with a text that identifies it; a single object counts as an array of one.

    The array is parsed item by item, so that other threads can run in between.
    """
    position = _after_space(text, 0)
    if not text.startswith("[", position):
        item, position = _item("the body", text, position)
        _check_end(text, position)
        if not isinstance(item, dict):
            raise bad_request(f"the body is {_shown(item)}; it must be an array of events")
        yield "event 0", item
        return
    position = _after_space(text, position + 1)
    index = 0
    while index or not text.startswith("]", position):
        item, position = _item(f"event {index}", text, position)
        yield f"event {index}", item
        index += 1
        position = _after_space(text, position)
        if text.startswith("]", position):
            break
        if not text.startswith(",", position):
            raise bad_request(f"the body is not JSON at character {position}: a comma or ] is missing")
        position = _after_space(text, position + 1)
    _check_end(text, position + 1)


def _line_items(text: str) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line and not line.isspace():
            place = f"line {number}"
            item, position = _item(place, line, _after_space(line, 0))
            if _after_space(line, position) != len(line):
                raise bad_request(f"{place} has more than one JSON value")
            yield place, item


def _item(place: str, text: str, position: int) -> tuple[object, int]:
    try:
        return _DECODER.raw_decode(text, position)
    except json.JSONDecodeError as error:
        raise bad_request(f"{place} is not JSON at character {error.pos}: {error.msg}") from None
    except RecursionError:
        raise bad_request(f"{place} is nested too deeply") from None
    except ValueError as error:
        # For example, a number of 5,000 digits.
        raise bad_request(f"{place} is not JSON: {error}") from None


def _after_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    assert match is not None, "the pattern matches any text"
    return match.end()


def _check_end(text: str, position: int) -> None:
    position = _after_space(text, position)
    if position != len(text):
        raise bad_request(f"the body has data after its JSON value, at character {position}")


def _event(place: str, item: object) -> Event:
    if not isinstance(item, dict):
        raise bad_request(f"{place} is {_shown(item)}; it must be an object of headers and body")
    if unknown := item.keys() - _FIELDS:
        raise bad_request(
            f"{place} has {shown_value(min(unknown))}, which is unknown; allowed are headers, body and body_base64"
        )
    return _headers(place, item.get("headers")), _body(place, item)


def _headers(place: str, headers: object) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, dict):
        raise bad_request(f"{place}.headers is {_shown(headers)}; it must be an object whose values are text")
    if len(headers) > HEADER_KEYS_MAX:
        raise bad_request(f"{place}.headers has {len(headers)} headers; at most {HEADER_KEYS_MAX} are allowed")
    for key, value in headers.items():
        field = f"{place}.headers[{shown_value(key)}]"
        if not isinstance(value, str):
            raise bad_request(f"{field} is {_shown(value)}; it must be text")
        _encoded(field, key + value)
    return headers


def _body(place: str, item: dict[str, object]) -> bytes:
    fields = [field for field in ("body", "body_base64") if item.get(field) is not None]
    if len(fields) != 1:
        raise bad_request(f"{place} has {' and '.join(fields) or 'no body'}; it must have body or body_base64")
    [field] = fields
    value = item[field]
    if not isinstance(value, str):
        raise bad_request(f"{place}.{field} is {_shown(value)}; it must be text")
    if field == "body":
        return _encoded(f"{place}.body", value)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(f"{place}.body_base64 is {_shown(value)}; it must be base64") from None


def _encoded(place: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise bad_request(f"{place} has an unpaired surrogate, which cannot be encoded") from None


def _shown(value: object) -> str:
    if value is None:
        return "null"
    return "an object" if isinstance(value, dict) else shown_value(value)
