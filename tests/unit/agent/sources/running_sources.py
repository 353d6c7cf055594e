"""Real sources that fill channels of this process."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from millrace_server.agent.agent import Agent
from millrace_server.agent.components import Component, ComponentKind
from millrace_server.agent.settings import AgentConfig
from millrace_server.agent.sources.source import SourceConfig
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.registry import ChannelRegistry
from tests.waiting import WAIT_SECONDS_MAX


@asynccontextmanager
async def running_source(
    config: SourceConfig, registry: ChannelRegistry, data_dir: Path, name: str = "in"
) -> AsyncIterator[Component]:
    """Runs a source until the end of the block; yields its component."""
    agent = Agent(registry, data_dir)
    # The annotation is the union of all types, to which every configuration belongs.
    agent.start(AgentConfig({name: config}, {}))  # type: ignore[dict-item]  # see above
    component = agent.components.find(ComponentKind.SOURCE, name)
    assert component is not None
    try:
        yield component
    finally:
        await agent.stop_sources(WAIT_SECONDS_MAX)


def rows_in(registry: ChannelRegistry, name: str = "lines") -> list[tuple[Mapping[str, str], bytes]]:
    """The events of a channel, in order."""
    batches = registry.get(name)._contents.held_batches()
    ordered = sorted(batches, key=lambda batch: batch.first_sequence)
    return [row for batch in ordered for row in batch.window.rows()]


def bodies_in(registry: ChannelRegistry, name: str = "lines") -> list[bytes]:
    """The bodies of a channel's events, in order."""
    return [body for _, body in rows_in(registry, name)]


async def take(registry: ChannelRegistry, events_max: int, name: str = "lines") -> list[bytes]:
    """Takes and commits some events; waits until there is one."""
    channel = registry.get(name)
    delivery = await channel.deliveries.deliver_while(
        TakeLimits(events_max=events_max, body_bytes_max=1 << 30), lambda: True
    )
    assert delivery is not None
    bodies = [body for batch in delivery.takes for _, body in batch.window.rows()]
    _ = channel.deliveries.settle(delivery)
    return bodies
