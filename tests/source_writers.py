"""Writers of sources on channels in this process."""

from collections.abc import Sequence
from typing import Any

from millrace_server.agent.batch_router import Routing
from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.components import Component, ComponentKind, EventOutcome
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import Interceptor
from millrace_server.agent.selectors import SelectorConfig
from millrace_server.channels.channel import Channel
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from tests.channel_events import limits_of, queued

MESSAGE_BYTES_MAX = 1 << 20


def component_of(name: str = "app") -> Component:
    """Returns a source's component without watchers."""
    return Component(ComponentKind.SOURCE, name, "test", lambda _component: None)


def outcomes_of(component: Component) -> dict[str, int]:
    """Returns the non-zero outcome counts."""
    return {fate.value: count for fate in EventOutcome if (count := component.outcome_counts[fate])}


def registry_of(**channels: ChannelConfig) -> ChannelRegistry:
    """Returns a registry with channels of these configurations."""
    registry = ChannelRegistry(message_bytes_max=MESSAGE_BYTES_MAX, open_transactions_max=1_000)
    for name, config in channels.items():
        registry.create(name, config)
    return registry


def memory(**limits: Any) -> ChannelConfig:
    """A channel in memory; see `limits_of`."""
    return limits_of(**limits)


def routing_of(config: SelectorConfig, channels: Sequence[str], dead_letter_channel: str | None = None) -> Routing:
    """Returns the routing that an agent creates for a source's selector."""
    return Routing(config.make(channels), config.optional_channels, dead_letter_channel)


def writer_of(  # noqa: PLR0913 - each of them is left out by most
    registry: ChannelRegistry,
    channels: Sequence[str],
    *interceptors: Interceptor,
    component: Component | None = None,
    selector: SelectorConfig | None = None,
    dead_letter_channel: str | None = None,
    events_max: int = 100,
) -> ChannelWriter:
    """Returns the writer of a source."""
    routing = Routing(dead_letter_channel=dead_letter_channel)
    if selector is not None:
        routing = routing_of(selector, channels, dead_letter_channel)
    return ChannelWriter(registry, channels, interceptors, component or component_of(), events_max, routing=routing)


def table_of(*bodies: bytes, **headers: Any) -> EventTable:
    """Returns a batch of these bodies; headers by name, each one value or a list."""
    return EventTable(list(bodies), headers)


def batch_stamp(first: int, last: int, producer_id: str = "file") -> Stamp:
    """Returns the stamp of a source that can read its events again."""
    return Stamp(producer_id, first, last)


def held(registry: ChannelRegistry, *names: str) -> dict[str, list[bytes]]:
    """The bodies that channels hold."""
    return {name: queued(registry.get(name)) for name in names}


def rows_in(registry: ChannelRegistry, name: str) -> list[tuple[dict[str, str], bytes]]:
    """Returns the headers and bodies that a channel stores."""
    return [row for batch in registry.get(name)._contents.queue for row in batch.window.rows()]


def ranges_of(channel: Channel, producer_id: str = "file") -> list[tuple[int, int]]:
    """Returns the numbers of a producer that a channel has accepted."""
    return list(channel._contents.ledger.intervals_of(producer_id))
