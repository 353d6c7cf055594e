"""Text that cannot play tricks on a terminal."""

import re
from codecs import getincrementaldecoder

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Shows control characters, but tabs, as escapes such as `\x1b`, so that text cannot drive a terminal."""
    return _CONTROL.sub(_escape, text)


def printable_bytes(body: bytes) -> str:
    r"""The same for bytes: what is not UTF-8 is shown as `\xff`."""
    return printable(body.decode(errors="backslashreplace"))


def beginning(text: str, length_max: int) -> str:
    """The text, or where it is longer its beginning and `…`."""
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def beginning_of_bytes(body: bytes, length_max: int) -> str:
    """The beginning of bytes as `printable_bytes` shows them; looks at no more of them than that takes."""
    # No character of UTF-8 has more than 4 bytes. One that is cut at the end is no broken one, so it is left out.
    decoder = getincrementaldecoder("utf-8")("backslashreplace")
    start = decoder.decode(body[: 4 * length_max], final=len(body) <= 4 * length_max)
    return beginning(printable(start), length_max)


def is_utf8(text: str) -> bool:
    """Tells whether text can be sent. An argument that the shell gave in other bytes arrives with surrogates in it."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")
