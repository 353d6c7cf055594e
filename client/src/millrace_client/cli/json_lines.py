"""Lines that are events as JSON, as `millrace take --json` writes them."""

import base64
import binascii
import json

from millrace_client import Event

_FIELDS = {"body", "body_base64", "headers", "sequence"}


def event_of_line(line: bytes) -> Event:
    """The event that a line holds: `headers` and `body`, or `body_base64`. A `sequence` is allowed and left out.

    Raises:
        ValueError: It holds none; the message says why.
    """
    try:
        document = json.loads(line)
    except ValueError as error:
        raise ValueError(f"is no JSON ({error})") from None
    if not isinstance(document, dict):
        example = '{"body": "text", "headers": {"key": "value"}}'
        raise ValueError(f"is no JSON object; write one such as {example}")  # noqa: TRY004 - the line's content is wrong
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
                raise ValueError("has a body_base64 that is no base64") from None
        case _:
            raise ValueError("has no body that is text; write body, or body_base64 for other bytes")


def _headers(headers: object) -> dict[str, str]:
    if not isinstance(headers, dict) or not all(isinstance(value, str) for value in headers.values()):
        raise ValueError("has headers that are not an object of texts")
    for key, value in headers.items():
        _utf8("headers", f"{key}{value}")
    return headers


def _utf8(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        # JSON can write half a character, which no UTF-8 can.
        raise ValueError(f"has a {field} that is not Unicode") from None
