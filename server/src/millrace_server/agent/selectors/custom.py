"""The selector `custom`: a user's own."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from millrace_server.agent.channel_names import OwnChannelName
from millrace_server.agent.events import EventTable
from millrace_server.agent.factories import FactoryPath, load_factory
from millrace_server.agent.selectors.selector import Choice, Selector, SelectorConfig


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
