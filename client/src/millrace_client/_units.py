"""Units as OpenTelemetry writes them."""

_NAMES = {"bytes": "By", "seconds": "s"}


def unit_name(noun: str) -> str:
    """What is counted, in UCUM, as OpenTelemetry asks for: a unit, or in braces a word."""
    return _NAMES.get(noun, f"{{{noun}}}")
