"""Bytes as people write and read them."""

import re

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([a-z]*)", re.ASCII)
_STEP = 1024


def parse_byte_size(text: str) -> int:
    """Reads `4096`, `64KiB` or `1.5 GB` as bytes.

    Raises:
        ValueError: The text is no size; says what is allowed.
    """
    match = _SIZE.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{text!r} is no size; write bytes such as 4096, or with a unit such as 64KiB, 10MB or 1.5GiB")
    number, unit = match.groups()
    # Whole numbers stay exact: a float would round above 2**53.
    return int(number) * _UNITS[unit] if number.isdigit() else int(float(number) * _UNITS[unit])


def format_byte_size(count: float) -> str:
    """Writes bytes with the largest unit that fits, such as `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < _STEP:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= _STEP
    return f"{count:.1f} TiB"
