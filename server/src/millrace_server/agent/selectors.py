"""Channel selectors, which choose the channels for each event of a source."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Literal, Protocol
from zlib import crc32

from pydantic import BaseModel, Field, Secret, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.events import EventTable
from millrace_server.agent.setting_types import FactoryPath, OwnChannelName, load_factory, revealed
from millrace_server.channels.channel import Channel

EventMask = bool | Sequence[bool]
"""The selected events of a batch: all of them, none, or those whose value is true."""

_OneOrMoreChannels = Annotated[list[OwnChannelName], Field(min_length=1)]


class Selector(Protocol):
    """Selects the channels for each event.

    As long as the configuration is the same, it must always select the same channels for the same event: after a crash,
    some channels may have stored a batch, and the others get their part when the source reads it again.
    """

    def select(self, table: EventTable) -> Mapping[str, EventMask]:
        """Returns the events for each channel, by its name; a channel without an entry gets none."""


class LoadBalancer(ABC):
    """Picks one channel for a whole batch; a repeat may go to another channel, see `FanOut`."""

    @abstractmethod
    def pick(self, candidates: Sequence[Channel]) -> Channel:
        """Returns one of the candidates, which are at least one and in the order of the configuration."""


class SelectorConfig(BaseModel, ABC, frozen=True, extra="forbid", defer_build=True):
    """Settings of selectors of every type."""

    @property
    def optional_channels(self) -> frozenset[str]:
        """The source's channels that never delay it: they miss the events that they cannot accept at once."""
        return frozenset()

    @property
    def required_channels(self) -> frozenset[str]:
        """The channels that the selector's settings name as channels that must not miss events."""
        return frozenset()

    @abstractmethod
    def make(self, channels: Sequence[str]) -> Selector | LoadBalancer:
        """Creates the selector for a source with these channels."""


class ReplicatingConfig(SelectorConfig):
    """Every event goes to every channel."""

    type: Literal["replicating"]
    """Every event to every channel."""

    optional: list[OwnChannelName] = Field(default_factory=list)
    """Channels that never delay the source: they miss events that they cannot accept at once. All other channels must
    accept every event."""

    @property
    def optional_channels(self) -> frozenset[str]:
        return frozenset(self.optional)

    def make(self, channels: Sequence[str]) -> Selector:
        return Replicating(channels)


class Replicating:
    """Selects all channels for every event."""

    def __init__(self, channels: Sequence[str]) -> None:
        self._masks = dict.fromkeys(channels, True)

    def select(self, _table: EventTable) -> Mapping[str, EventMask]:
        return self._masks


class MultiplexingConfig(SelectorConfig):
    """The value of a header decides where an event goes."""

    type: Literal["multiplexing"]
    """To the channels that are configured for a header's value."""

    header: str
    """The header."""

    mapping: Annotated[dict[str, _OneOrMoreChannels], Field(min_length=1)]
    """The channels for each value. Values are compared exactly, including capital letters."""

    default: list[OwnChannelName] = Field(default_factory=list)
    """The channels for events without the header, or with a value that is not in `mapping`. By default such events are
    dropped."""

    optional: dict[str, _OneOrMoreChannels] = Field(default_factory=dict)
    """Further channels for each value, which never delay the source: they miss events that they cannot accept at
    once."""

    @property
    def optional_channels(self) -> frozenset[str]:
        return frozenset(chain.from_iterable(self.optional.values()))

    @property
    def required_channels(self) -> frozenset[str]:
        return frozenset(chain(self.default, *self.mapping.values()))

    def make(self, channels: Sequence[str]) -> Selector:
        return _Multiplexing(self, channels)


class _Multiplexing:
    def __init__(self, config: MultiplexingConfig, channels: Sequence[str]) -> None:
        self._config = config
        self._channels = channels

    def select(self, table: EventTable) -> Mapping[str, EventMask]:
        values = table.header(self._config.header)
        if values is None or isinstance(values, str):
            return dict.fromkeys(self._channels_for(values), True)
        # There are few different values and many events, so each value is looked up once.
        channels_by_value = {value: self._channels_for(value) for value in set(values)}
        if len(channels_by_value) == 1:
            return dict.fromkeys(next(iter(channels_by_value.values())), True)
        values_by_channel = {
            name: {value for value, channels in channels_by_value.items() if name in channels}
            for name in self._channels
        }
        return {name: [value in own for value in values] for name, own in values_by_channel.items() if own}

    def _channels_for(self, value: str | None) -> list[str]:
        config = self._config
        if value is None:
            return config.default
        return [*config.mapping.get(value, config.default), *config.optional.get(value, ())]


class LoadBalancingConfig(SelectorConfig):
    """Each event goes to one of the channels.

    A full channel is skipped while another one has space; with `key_hash`, its events wait for it. If the source can
    read its events again after a crash, as `taildir` does, all channels should be of type `file` and sync each commit:
    otherwise, after a channel has lost accepted events, events that went to one channel may be stored in another again.
    """

    type: Literal["load_balancing"]
    """To one of the channels."""

    policy: Literal["round_robin", "random", "key_hash", "least_full"] = "round_robin"
    """Which channel a whole batch goes to: `round_robin`, the next one; `random`, any; `least_full`, the one with the
    most free space. `key_hash` chooses by each event's key instead: events with the same key stay in order."""

    header: str | None = None
    """The header with the key for `key_hash`. None, or an event without the header: the body is the key."""

    @field_validator("header")
    @classmethod
    def _check_has_a_use(cls, header: str | None, info: ValidationInfo) -> str | None:
        policy = info.data.get("policy", "key_hash")
        if header is not None and policy != "key_hash":
            raise ValueError(f'is {shown_value(header)}; it is only for policy "key_hash", not {shown_value(policy)}')
        return header

    def make(self, channels: Sequence[str]) -> Selector | LoadBalancer:
        match self.policy:
            case "round_robin":
                return RoundRobin()
            case "random":
                return RandomPick()
            case "least_full":
                return LeastFull()
            case "key_hash":
                return _KeyHash(channels, self.header)


class RoundRobin(LoadBalancer):
    """Picks the channels in turn."""

    def __init__(self) -> None:
        self._last_picks: dict[str, int] = {}
        self._pick_count = 0

    def pick(self, candidates: Sequence[Channel]) -> Channel:
        # The least recently picked channel: this keeps the rotation even if channels are skipped in between.
        picked = min(candidates, key=lambda channel: self._last_picks.get(channel.name, 0))
        self._pick_count += 1
        self._last_picks[picked.name] = self._pick_count
        return picked


class RandomPick(LoadBalancer):
    """Picks any channel, each with the same probability."""

    def pick(self, candidates: Sequence[Channel]) -> Channel:
        return random.choice(candidates)  # noqa: S311 - spreads load, guards no secret


class LeastFull(LoadBalancer):
    """Picks the channel that uses the smallest part of its capacity, in events or in bytes."""

    def pick(self, candidates: Sequence[Channel]) -> Channel:
        return min(candidates, key=lambda channel: channel.used_fraction)


class _KeyHash:
    def __init__(self, channels: Sequence[str], header: str | None) -> None:
        self._channels = channels
        self._header = header

    def select(self, table: EventTable) -> Mapping[str, EventMask]:
        keys = None if self._header is None else table.header(self._header)
        if isinstance(keys, str):
            return {self._channels[self._index_of(keys)]: True}
        if keys is None:
            count = len(self._channels)
            indexes = [crc32(body) % count for body in table.bodies]
        else:
            # Most keys occur many times, so each is hashed once.
            known = {key: self._index_of(key) for key in set(keys) if key is not None}
            indexes = [
                self._index_of(body) if key is None else known[key]
                for key, body in zip(keys, table.bodies, strict=True)
            ]
        return {name: [index == own for index in indexes] for own, name in enumerate(self._channels)}

    def _index_of(self, key: str | bytes) -> int:
        encoded = key if isinstance(key, bytes) else key.encode(errors="replace")
        return crc32(encoded) % len(self._channels)


class CustomSelectorConfig(SelectorConfig):
    """A selector created by the user's factory."""

    type: Literal["custom"]
    """A user-defined selector."""

    factory: FactoryPath
    """Called with the names of the source's channels and `options`; returns the selector."""

    options: dict[str, Secret[Any]] = Field(default_factory=dict)
    """Keyword arguments of the factory."""

    optional: list[OwnChannelName] = Field(default_factory=list)
    """Channels that never delay the source: they miss events that they cannot accept at once."""

    @property
    def optional_channels(self) -> frozenset[str]:
        return frozenset(self.optional)

    def make(self, channels: Sequence[str]) -> Selector:
        return CustomSelector(load_factory(self.factory)(list(channels), **revealed(self.options)), channels)


class CustomSelector:
    """Wraps a user-defined selector and checks its results; it runs on a thread."""

    def __init__(self, selector: Selector, channels: Sequence[str]) -> None:
        self._selector = selector
        self._channels = frozenset(channels)

    def select(self, table: EventTable) -> Mapping[str, EventMask]:
        masks: object = self._selector.select(table)
        if not isinstance(masks, Mapping):
            raise TypeError(f"a selector must return a mapping, not {type(masks).__name__}")
        if unknown := masks.keys() - self._channels:
            raise ValueError(f"the selector named {sorted(map(str, unknown))}, which are not channels of the source")
        for name, mask in masks.items():
            if not isinstance(mask, bool) and len(mask) != table.count:
                raise ValueError(f"the selector returned {len(mask)} choices for channel {name!r}, not {table.count}")
        return masks


AnySelectorConfig = Annotated[
    ReplicatingConfig | MultiplexingConfig | LoadBalancingConfig | CustomSelectorConfig, Field(discriminator="type")
]
"""A selector's table, discriminated by its `type`."""
