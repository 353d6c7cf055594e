"""What a daemon and an embedded agent have in common: channels and flows, from their beginning to their end."""

import asyncio
from collections.abc import Coroutine

import structlog

from millrace_server.agent.agent import Agent, Flows
from millrace_server.channels.hosted import HostedChannel
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.configuration.settings import Settings
from millrace_server.hosting.catalog import Catalog
from millrace_server.hosting.data_dir import CHANNELS_DIRECTORY
from millrace_server.hosting.stop_requests import StopRequests

_LAST_DELIVERIES_SECONDS = 1.0
"""How long sinks may take to finish what they have in hand where draining has used up the grace time."""

_LOOK_SECONDS = 0.05
"""How often it is looked, in the few seconds of a stop, whether everything has left."""

_log = structlog.stdlib.get_logger(__name__)


def open_channels(settings: Settings, catalog: Catalog) -> ChannelRegistry:
    """All channels: those of the configuration, and those that CreateChannel made."""
    registry = ChannelRegistry(
        message_bytes_max=settings.server.message_bytes_max,
        open_transactions_max=settings.server.open_transactions_max,
        channels_dir=settings.server.data_dir / CHANNELS_DIRECTORY,
    )
    catalogued = catalog.load()
    registry.finish_deletions({*settings.channels, *catalogued})
    for name, config in settings.channels.items():
        registry.create(name, config)
    for name, config in catalogued.items():
        if name in settings.channels:
            _log.warning("the configuration's channel is used, not the one that CreateChannel made", channel=name)
        else:
            registry.create(name, config)
    return registry


def flows_of(settings: Settings) -> Flows:
    """The flows that a configuration names."""
    return Flows(settings.sources, settings.sinks, settings.sink_groups)


async def stop_flows(agent: Agent, registry: ChannelRegistry, requests: StopRequests, grace_seconds: float) -> None:
    """Ends everything in the direction of the data.

    First the sources. Then nothing new begins, while open transactions may end, and sinks go on until what would be
    lost with the process has left its channels. Then the sinks. A second stop request cuts all of this short.

    Args:
        agent: Whose flows end.
        registry: The channels, which are still open afterwards.
        requests: Who asked for the stop.
        grace_seconds: How long all of it may take.
    """
    clock = asyncio.get_running_loop().time
    give_up = clock() + grace_seconds
    await _unless_urgent(requests, agent.stop_sources(grace_seconds))
    registry.drain()
    _log.info("stopping", open_transactions=_open_transactions(agent, registry), grace_seconds=grace_seconds)
    agent.hurry_sinks()
    await _unless_urgent(requests, _wait_drained(agent, registry, give_up))
    if left_open := _open_transactions(agent, registry):
        _log.warning("open transactions are rolled back", open_transactions=left_open)
    last_seconds = min(max(give_up - clock(), _LAST_DELIVERIES_SECONDS), grace_seconds)
    await _unless_urgent(requests, agent.stop_sinks(last_seconds))
    if requests.is_urgent:
        await agent.stop_sinks(0.0)
    for hosted in _with_events_in_memory(registry):
        _log.warning("events in memory are lost", channel=hosted.name, events=_event_count(hosted))


async def _wait_drained(agent: Agent, registry: ChannelRegistry, give_up: float) -> None:
    clock = asyncio.get_running_loop().time
    # Looked at again and again, since sinks that empty channels on disk take and settle without end.
    while clock() < give_up:
        if not _open_transactions(agent, registry) and not _undrained(agent, registry):
            return
        await asyncio.sleep(_LOOK_SECONDS)


def _open_transactions(agent: Agent, registry: ChannelRegistry) -> int:
    """Those of callers."""
    return registry.transactions.limit.open_count - agent.delivered_count


def _undrained(agent: Agent, registry: ChannelRegistry) -> list[HostedChannel]:
    """Channels that hold events that end with the process, and that a sink may still take out."""
    draining = agent.draining_channels()
    return [hosted for hosted in _with_events_in_memory(registry) if hosted.name in draining]


def _with_events_in_memory(registry: ChannelRegistry) -> list[HostedChannel]:
    """Channels that hold events that end with the process.

    Not those of type `spillable`: when they are closed, they write what they have in memory to their log.
    """
    return [hosted for hosted in registry.hosted() if hosted.config.type == "memory" and _event_count(hosted)]


def _event_count(hosted: HostedChannel) -> int:
    channel = hosted.channel_if_open
    return 0 if channel is None else channel.contents.room.event_count


async def _unless_urgent(requests: StopRequests, work: Coroutine[None, None, None]) -> None:
    working = asyncio.create_task(work)
    urgent = asyncio.create_task(requests.wait_until_urgent())
    try:
        await asyncio.wait((working, urgent), return_when=asyncio.FIRST_COMPLETED)
    finally:
        urgent.cancel()
        working.cancel()
        await asyncio.wait((working,))
    if not working.cancelled():
        working.result()
