"""What every channel selector is."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from pydantic import BaseModel

from millrace_server.agent.events import EventTable
from millrace_server.channels.channel import Channel

Choice = bool | Sequence[bool]
"""Which events of a batch: all of them, none, or each for which it is true."""


class Selector(Protocol):
    """Says where each event goes.

    The same event goes the same way each time, as long as the configuration is the same: after a crash a batch may have
    reached some of its channels, and the others get their part of it when the source reads it again.
    """

    def select(self, table: EventTable) -> Mapping[str, Choice]:
        """For each channel, by its name, the events that go there; a channel that is not named gets none."""


class Balancer(ABC):
    """Says where a whole batch goes; where it would go another time does not matter, see `FanOut`."""

    @abstractmethod
    def pick(self, candidates: Sequence[Channel]) -> Channel:
        """One of some channels, of which there is at least one, in the order of the configuration."""


class SelectorConfig(BaseModel, ABC, frozen=True, extra="forbid"):
    """What selectors of every type have."""

    @property
    @abstractmethod
    def optional_channels(self) -> frozenset[str]:
        """The source's channels that hold nothing up: an event that one of them cannot take at once, it misses."""

    @property
    def required_channels(self) -> frozenset[str]:
        """The channels that the selector itself names as ones that must not miss anything."""
        return frozenset()

    @abstractmethod
    def make(self, channels: Sequence[str]) -> Selector | Balancer:
        """The selector, for a source with these channels."""
