"""Shards: what one server holds of a channel."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from millrace_spark.errors import OptionError

_PATTERN = re.compile(r"[*?\[]")


@dataclass(frozen=True, order=True)
class Shard:
    """One server's channel. One logical channel over several servers is several shards."""

    channel: str
    """The channel's name."""
    endpoint: str
    """The server, `host:port`."""

    @classmethod
    def parse(cls, name: str) -> "Shard":
        """The shard of a name such as `orders@127.0.0.1:7070`.

        Raises:
            ValueError: It is no such name.
        """
        channel, separator, endpoint = name.partition("@")
        if not (channel and separator and endpoint):
            raise ValueError(f"{name!r} is no channel@host:port")
        return cls(channel, endpoint)

    def __str__(self) -> str:
        return f"{self.channel}@{self.endpoint}"


def parse_channels(text: str) -> tuple[str, ...]:
    """Names of channels, or patterns with `*`, `?` and `[...]`, with commas between.

    Raises:
        OptionError: There is none, or one comes twice.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if not name:
            raise OptionError(f"option channels: is {text!r}; it must be names with commas between, or a pattern")
        if names.count(name) > 1:
            raise OptionError(f"option channels: {name} comes twice; once is allowed")
    return tuple(names)


def is_pattern(name: str) -> bool:
    """Whether it stands for all channels whose names match."""
    return bool(_PATTERN.search(name))


def is_meant(channel: str, wanted: tuple[str, ...]) -> bool:
    """Whether a channel is one of those that were asked for by name or pattern."""
    return any(channel == name or (is_pattern(name) and fnmatchcase(channel, name)) for name in wanted)
