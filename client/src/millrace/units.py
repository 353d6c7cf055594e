"""Counts, sizes and durations with units, as people write and read them."""

import re
from fractions import Fraction
from typing import TypeAlias

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40
"""Units of sizes, in bytes."""

_Units: TypeAlias = dict[str, int | Fraction]

_QUANTITY = re.compile(r"(\d{1,40}|\d{1,3}(?:_\d{3}){1,12})(\.\d{1,20})?\s*([a-z]*)", re.ASCII)

_COUNT_UNITS: _Units = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_STEP = 1024
_PREFIXES = "kmgt"
_SIZE_UNITS: _Units = {"": 1, "b": 1}
_SIZE_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate(_PREFIXES, start=1)}
_SIZE_UNITS |= {f"{prefix}ib": _STEP**power for power, prefix in enumerate(_PREFIXES, start=1)}
_SECONDS: _Units = {"": 1, "ms": Fraction(1, 1000), "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
_AGE_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def parse_count(text: str) -> int:
    """Parses `5000`, `1_000_000`, `500k`, `1.5M` or `1G`, above 0; raises ValueError for any other text."""
    count = _parsed(text, _COUNT_UNITS)
    if not count or count != int(count):
        raise ValueError(
            f"{text!r} is not a number of events; write one such as 5000, or with a unit such as 500k or 1.5M"
        )
    return int(count)


def parse_byte_size(text: str) -> int:
    """Parses `4096`, `64KiB` or `1.5 GB`; raises ValueError for any other text."""
    size = _parsed(text, _SIZE_UNITS)
    if size is None:
        raise ValueError(
            f"{text!r} is not a size; write bytes such as 4096, or with a unit such as 64KiB, 10MB or 1.5GiB"
        )
    return int(size)


def parse_duration(text: str) -> float:
    """Parses seconds, or a time such as `90s`, `10m`, `2h` or `7d`; raises ValueError for any other text."""
    seconds = _parsed(text, _SECONDS)
    if seconds is None:
        raise ValueError(f"{text!r} is not a duration; write seconds, or a time such as 90s, 10m, 2h or 7d")
    return float(seconds)


def _parsed(text: str, units: _Units) -> Fraction | None:
    match = _QUANTITY.fullmatch(text.strip().lower())
    if match is None or match[3] not in units:
        return None
    # Exact: a float would round above 2**53.
    return Fraction(match[1] + (match[2] or "")) * units[match[3]]


def counted(count: int, noun: str, plural: str = "") -> str:
    """Returns a count with its noun, such as `1 event` or `2,000 events`; `plural` is for one that takes no `s`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_byte_size(count: float) -> str:
    """Returns a size with the largest unit that fits, such as `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < _STEP:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _STEP
    return f"{count:.1f} TiB"


def format_age(seconds: float | None) -> str:
    """Returns how long ago something was, such as `40 s` or `2 h`; a dash for None."""
    if seconds is None:
        return "-"
    for unit_seconds, unit in _AGE_UNITS:
        if seconds >= unit_seconds:
            return f"{seconds / unit_seconds:.0f} {unit}"
    return f"{seconds:.0f} s"
