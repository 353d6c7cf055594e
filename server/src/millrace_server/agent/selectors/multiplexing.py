"""The selector `multiplexing`: the value of a header says where an event goes."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Literal

from pydantic import Field

from millrace_server.agent.channel_names import OwnChannelName
from millrace_server.agent.events import EventTable
from millrace_server.agent.selectors.selector import Choice, Selector, SelectorConfig

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
