"""Text for people: bodies, beginnings and times."""

import re
from codecs import getincrementaldecoder
from datetime import UTC, datetime, timedelta

from millrace.command_line.notes import printable
from millrace.units import parse_duration


def printable_bytes(body: bytes) -> str:
    r"""Decodes bytes and escapes control characters; bytes that are not UTF-8 become `\xff`."""
    return printable(body.decode(errors="backslashreplace"))


def beginning(text: str, length_max: int) -> str:
    """Returns the text, cut with `…` if it is longer."""
    return text if len(text) <= length_max else f"{text[: length_max - 1]}…"


def beginning_of_bytes(body: bytes, length_max: int) -> str:
    """Returns the beginning of `printable_bytes` without decoding the rest."""
    # A UTF-8 character has at most 4 bytes. A character that is cut at the end is left out.
    decoder = getincrementaldecoder("utf-8")("backslashreplace")
    start = decoder.decode(body[: 4 * length_max], final=len(body) <= 4 * length_max)
    return beginning(printable(start), length_max)


def is_utf8(text: str) -> bool:
    """Whether text can be encoded. A command line argument that is not UTF-8 has surrogates."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


_DURATION = re.compile(r"[\d.]+\s*[a-z]+", re.ASCII)


def parse_past(text: str) -> datetime:
    """Parses how long ago, as `10m`, or a time in ISO 8601, local without a zone; raises ValueError for other text."""
    try:
        if _DURATION.fullmatch(text.strip().lower()):
            return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time; write how long ago, such as 10m, 2h or 7d, or a time such as 2026-01-31T08:00, "
            "which is local without a zone such as Z or +02:00"
        ) from None
