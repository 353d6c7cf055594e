"""Event headers that describe a Kafka record, in addition to the record's own headers."""

from typing import NamedTuple

DEFAULT_PREFIX = "kafka."


class HeaderNames(NamedTuple):
    """Names of headers for a record's key and position, and for what is needed to restore the record from the event."""

    key: str
    """Its key; absent if it has none."""
    topic: str
    partition: str
    offset: str
    timestamp: str
    """Milliseconds since 1970."""
    tombstone: str
    """`true` if its value is null, as opposed to empty."""
    base64: str
    """The names, as a JSON array, of the headers that are encoded in Base64 because they are not UTF-8."""

    @classmethod
    def with_prefix(cls, prefix: str) -> "HeaderNames":
        return cls(*(prefix + name for name in cls._fields))
