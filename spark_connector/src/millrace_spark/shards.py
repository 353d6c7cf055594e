"""Shards: the parts of channels on single servers, and the options that choose them by endpoint and channel."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from millrace_spark.errors import OptionError

_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\],]+):[0-9]{1,5}")
_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True, order=True)
class Shard:
    """A channel on one server. A logical channel on several servers has several shards."""

    channel: str
    endpoint: str

    @classmethod
    def parse(cls, name: str) -> "Shard":
        """Returns the shard with a name such as `orders@127.0.0.1:7070`; raises a ValueError for another form."""
        channel, separator, endpoint = name.partition("@")
        if not (channel and separator and endpoint):
            raise ValueError(f"{name!r} is not channel@host:port")
        return cls(channel, endpoint)

    def __str__(self) -> str:
        return f"{self.channel}@{self.endpoint}"


def parse_endpoints(text: str) -> tuple[str, ...]:
    """Parses a comma-separated list of servers."""
    endpoints = [endpoint.strip() for endpoint in text.split(",")]
    for endpoint in endpoints:
        if not _ENDPOINT.fullmatch(endpoint):
            raise OptionError(f"option endpoints: {endpoint!r} is not host:port, such as 127.0.0.1:7070")
        if endpoints.count(endpoint) > 1:
            raise OptionError(f"option endpoints: {endpoint} is duplicated, and its events would be too; name it once")
    return tuple(endpoints)


def parse_channels(text: str) -> tuple[str, ...]:
    """Parses a comma-separated list of channel names, or patterns with `*`, `?` and `[...]`."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name:
            raise OptionError(f"option channels: is {text!r}; it must be names with commas between, or a pattern")
        if names.count(name) > 1:
            raise OptionError(f"option channels: {name} is duplicated; once is allowed")
    return tuple(names)


def is_pattern(name: str) -> bool:
    """Whether a name is a pattern."""
    return bool(_PATTERN.search(name))


def is_meant(channel: str, wanted: tuple[str, ...]) -> bool:
    """Whether a channel matches one of the names and patterns."""
    return any(channel == name or (is_pattern(name) and fnmatchcase(channel, name)) for name in wanted)
