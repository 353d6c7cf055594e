"""What every channel selector is."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Literal, Protocol
from zlib import crc32

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.events import EventTable
from millrace_server.agent.setting_types import FactoryPath, OwnChannelName, load_factory
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


_Way = Annotated[list[OwnChannelName], Field(min_length=1)]


class MultiplexingConfig(SelectorConfig):
    """An event goes where the value of its header says."""

    type: Literal["multiplexing"]
    """Where the value of a header says."""

    header: str
    """The header."""

    mapping: Annotated[dict[str, _Way], Field(min_length=1)]
    """For each value the channels that its events go to. Values are compared as they are, letter by letter."""

    default: list[OwnChannelName] = Field(default_factory=list)
    """Where events go whose value is not in `mapping`, or that have no such header. Without it they are dropped."""

    optional: dict[str, _Way] = Field(default_factory=dict)
    """For each value channels that its events go to besides, and that hold nothing up: what they cannot take at once,
    they miss."""

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

    def select(self, table: EventTable) -> Mapping[str, Choice]:
        values = table.headers.get(self._config.header)
        if values is None or isinstance(values, str):
            return dict.fromkeys(self._channels_for(values), True)
        # There are few values, and many events: each value is looked up once.
        ways = {value: self._channels_for(value) for value in set(values)}
        if len(ways) == 1:
            return dict.fromkeys(next(iter(ways.values())), True)
        chosen = {name: {value for value, way in ways.items() if name in way} for name in self._channels}
        return {name: [value in mine for value in values] for name, mine in chosen.items() if mine}

    def _channels_for(self, value: str | None) -> list[str]:
        config = self._config
        if value is None:
            return config.default
        return [*config.mapping.get(value, config.default), *config.optional.get(value, ())]


class LoadBalancingConfig(SelectorConfig):
    """Each event goes to one of the channels.

    A channel without room is passed over while another one has some; with `key_hash` its events wait for it. Where a
    source can read its events again after a crash, as `taildir` does, the channels should all be of type `file`, with
    each commit synced: one that has forgotten what it had accepted gets again what went to another one.
    """

    type: Literal["load_balancing"]
    """To one of the channels."""

    policy: Literal["round_robin", "random", "key_hash", "least_full"] = "round_robin"
    """Which one. `round_robin`: the next; `random`: any; `least_full`: the one with most room: one for a whole batch.
    `key_hash`: for each event the one that its key stands for: events of one key stay in their order."""

    header: str | None = None
    """The header that `key_hash` takes as the key. None, or an event without it: the body is the key."""

    @field_validator("header")
    @classmethod
    def _check_has_a_use(cls, header: str | None, info: ValidationInfo) -> str | None:
        policy = info.data.get("policy", "key_hash")
        if header is not None and policy != "key_hash":
            raise ValueError(f'is {shown_value(header)}; it is only for policy "key_hash", not {shown_value(policy)}')
        return header

    @property
    def optional_channels(self) -> frozenset[str]:
        return frozenset()

    def make(self, channels: Sequence[str]) -> Selector | Balancer:
        match self.policy:
            case "round_robin":
                return RoundRobin()
            case "random":
                return RandomPick()
            case "least_full":
                return LeastFull()
            case "key_hash":
                return _KeyHash(channels, self.header)


class RoundRobin(Balancer):
    """Goes from one channel to the next."""

    def __init__(self) -> None:
        self._passed: dict[str, int] = {}
        self._picks = 0

    def pick(self, candidates: Sequence[Channel]) -> Channel:
        # Who was picked longest ago is next: so it goes around, whoever is passed over in between.
        picked = min(candidates, key=lambda channel: self._passed.get(channel.name, 0))
        self._picks += 1
        self._passed[picked.name] = self._picks
        return picked


class RandomPick(Balancer):
    """Any channel, each as likely as the others."""

    def pick(self, candidates: Sequence[Channel]) -> Channel:
        return random.choice(candidates)  # noqa: S311 - spreads load, guards no secret


class LeastFull(Balancer):
    """The channel of whose capacity, in events or in bytes, the smallest part is in use."""

    def pick(self, candidates: Sequence[Channel]) -> Channel:
        return min(candidates, key=_fullness)


def _fullness(channel: Channel) -> float:
    room = channel.contents.room
    return max(room.event_count / room.events_max, room.body_bytes / room.body_bytes_max)


class _KeyHash:
    def __init__(self, channels: Sequence[str], header: str | None) -> None:
        self._channels = channels
        self._header = header

    def select(self, table: EventTable) -> Mapping[str, Choice]:
        keys = None if self._header is None else table.headers.get(self._header)
        if isinstance(keys, str):
            return {self._channels[self._index_of(keys)]: True}
        if keys is None:
            count = len(self._channels)
            indexes = [crc32(body) % count for body in table.bodies]
        else:
            # Keys come again and again.
            known = {key: self._index_of(key) for key in set(keys) if key is not None}
            indexes = [
                self._index_of(body) if key is None else known[key]
                for key, body in zip(keys, table.bodies, strict=True)
            ]
        return {name: [index == mine for index in indexes] for mine, name in enumerate(self._channels)}

    def _index_of(self, key: str | bytes) -> int:
        encoded = key if isinstance(key, bytes) else key.encode(errors="replace")
        return crc32(encoded) % len(self._channels)


class CustomSelectorConfig(SelectorConfig):
    """A selector that is made by a factory of the user's."""

    type: Literal["custom"]
    """A user's own."""

    factory: FactoryPath
    """Called with the names of the source's channels and `options`, returns the selector."""

    options: dict[str, Any] = Field(default_factory=dict)
    """What the factory gets as keyword arguments."""

    optional: list[OwnChannelName] = Field(default_factory=list)
    """Channels that hold nothing up: what one of them cannot take at once, it misses."""

    @property
    def optional_channels(self) -> frozenset[str]:
        return frozenset(self.optional)

    def make(self, channels: Sequence[str]) -> Selector:
        return CustomSelector(load_factory(self.factory)(list(channels), **self.options), channels)


class CustomSelector:
    """Asks a user's selector, on a thread, and makes sure that its answer can be followed."""

    def __init__(self, selector: Selector, channels: Sequence[str]) -> None:
        self._selector = selector
        self._channels = frozenset(channels)

    def select(self, table: EventTable) -> Mapping[str, Choice]:
        choices: object = self._selector.select(table)
        if not isinstance(choices, Mapping):
            raise TypeError(f"a selector must return a mapping, not {type(choices).__name__}")
        if unknown := choices.keys() - self._channels:
            raise ValueError(f"the selector named {sorted(map(str, unknown))}, which are no channels of the source")
        for name, choice in choices.items():
            if not isinstance(choice, bool) and len(choice) != table.count:
                raise ValueError(f"the selector gave {len(choice)} choices for channel {name!r}, not {table.count}")
        return choices


AnySelectorConfig = Annotated[
    ReplicatingConfig | MultiplexingConfig | LoadBalancingConfig | CustomSelectorConfig, Field(discriminator="type")
]
"""A selector's table, told apart by its `type`."""
