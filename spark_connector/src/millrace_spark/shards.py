"""Shards: the parts of channels on single servers, and the options that choose them by endpoint and channel."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from millrace_spark.errors import OptionError

_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s:/\[\],]+):[0-9]{1,5}")
_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True, order=True)
class Shard:
    """A channel on one server. A logical channel on several servers has several shards, a replicated one has one."""

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
    """Parses a comma-separated list of servers. Those that share channels, such as `a:7070/b:7070`, are the first."""
    groups = _groups(text)
    servers = [server for group in groups for server in group]
    for group in groups:
        if not all(map(_ENDPOINT.fullmatch, group)):
            raise OptionError(f"option endpoints: {'/'.join(group)!r} is not host:port, such as 127.0.0.1:7070")
    for server in servers:
        if servers.count(server) > 1:
            raise OptionError(f"option endpoints: {server} is duplicated, and its events would be too; name it once")
    return tuple(group[0] for group in groups)


def sharing_servers(text: str) -> dict[str, str]:
    """Returns the servers of each endpoint of such a list that stands for several, as the client takes them."""
    return {group[0]: ",".join(group) for group in _groups(text) if len(group) > 1}


def _groups(text: str) -> list[list[str]]:
    return [[server.strip() for server in group.split("/")] for group in text.split(",")]


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
