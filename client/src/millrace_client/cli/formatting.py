"""Text for people: printable characters, sizes, times and counts."""

import re
from codecs import getincrementaldecoder
from datetime import UTC, datetime, timedelta

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escapes control characters except tabs, as in `\x1b`, so that text cannot control a terminal."""
    return _CONTROL.sub(_escape, text)


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


def _escape(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape", "surrogatepass").decode("ascii")


_STEP = 1024
_PREFIXES = "kmgt"
_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate(_PREFIXES, start=1)}
_UNITS |= {f"{prefix}ib": _STEP**power for power, prefix in enumerate(_PREFIXES, start=1)}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([a-z]*)", re.ASCII)


def parse_byte_size(text: str) -> int:
    """Parses `4096`, `64KiB` or `1.5 GB`; raises ValueError for any other text."""
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(
            f"{text!r} is not a size; write bytes such as 4096, or with a unit such as 64KiB, 10MB or 1.5GiB"
        )
    number, unit = match.groups()
    # Integers stay exact: a float would round above 2**53.
    return int(number) * _UNITS[unit] if number.isdigit() else int(float(number) * _UNITS[unit])


def format_byte_size(count: float) -> str:
    """Returns a size with the largest unit that fits, such as `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < _STEP:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _STEP
    return f"{count:.1f} TiB"


_SECONDS = {"": 1, "ms": 0.001, "s": 1, "min": 60, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII)


def parse_duration(text: str) -> float:
    """Parses seconds, or a time such as `90s`, `10m`, `2h` or `7d`; raises ValueError for any other text."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None or match[2] not in _SECONDS:
        raise ValueError(f"{text!r} is not a duration; write seconds, or a time such as 90s, 10m, 2h or 7d")
    return float(match[1]) * _SECONDS[match[2]]


def parse_past(text: str) -> datetime:
    """Parses how long ago, as `10m`, or a time in ISO 8601, local without a zone; raises ValueError for other text."""
    try:
        # ISO 8601 allows a date without hyphens, which is all digits.
        if not text.strip().isdigit() and _DURATION.fullmatch(text.strip().lower()):
            return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
        return datetime.fromisoformat(text.strip()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not a time; write how long ago, such as 10m, 2h or 7d, or a time such as 2026-01-31T08:00, "
            "which is local without a zone such as Z or +02:00"
        ) from None


def counted(count: int, noun: str) -> str:
    """Returns `1 event` or `2,000 events`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
