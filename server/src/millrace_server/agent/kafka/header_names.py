"""Headers that describe a record, which an event has besides the record's own headers."""

from typing import NamedTuple

DEFAULT_PREFIX = "kafka."


class HeaderNames(NamedTuple):
    """Names of headers: the key and the place of a record, and how to make the same record of the event again."""

    key: str
    """Its key; absent without one."""
    topic: str
    partition: str
    offset: str
    timestamp: str
    """Milliseconds since 1970."""
    tombstone: str
    """`true` if it has no value (null), as distinct from an empty one."""
    base64: str
    """Which headers, as a JSON array of names, hold bytes that are not UTF-8, in Base64."""

    @classmethod
    def with_prefix(cls, prefix: str) -> "HeaderNames":
        return cls(*(prefix + name for name in cls._fields))
