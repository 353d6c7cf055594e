"""The selector `replicating`: every event to every channel."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from millrace_server.agent.channel_names import OwnChannelName
from millrace_server.agent.events import EventTable
from millrace_server.agent.selectors.selector import Choice, Selector, SelectorConfig


class ReplicatingConfig(SelectorConfig):
    """Every event goes to every channel."""

    type: Literal["replicating"]
    """Every event to every channel."""

    optional: list[OwnChannelName] = Field(default_factory=list)
    """Channels that hold nothing up: what one of them cannot take at once, it misses. The others must take it."""

    @property
    def optional_channels(self) -> frozenset[str]:
        return frozenset(self.optional)

    def make(self, channels: Sequence[str]) -> Selector:
        return Replicating(channels)


class Replicating:
    """Sends every event to all of some channels."""

    def __init__(self, channels: Sequence[str]) -> None:
        self._choices = dict.fromkeys(channels, True)

    def select(self, _table: EventTable) -> Mapping[str, Choice]:
        return self._choices
