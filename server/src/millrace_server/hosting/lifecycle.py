"""How a daemon or an embedded agent opens its channels and stops its flows."""

import asyncio
from collections.abc import Awaitable

import structlog

from millrace_server.agent.agent import Agent
from millrace_server.agent.settings import AgentConfig
from millrace_server.channels.channel_handle import ChannelHandle
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.configuration.settings import Settings
from millrace_server.errors import StartError
from millrace_server.hosting.data_dir import CHANNELS_DIRECTORY, Catalog
from millrace_server.hosting.signals import StopRequests

_LAST_DELIVERIES_SECONDS = 1.0
"""Grace period of sinks for their current batch if the drain has used up the grace period."""

_POLL_SECONDS = 0.05
"""Interval of checks whether the channels are drained."""

_log = structlog.stdlib.get_logger(__name__)


def open_channels(settings: Settings, catalog: Catalog) -> ChannelRegistry:
    """Opens the channels of the configuration and those of the catalog."""
    registry = ChannelRegistry(
        message_bytes_max=settings.server.message_bytes_max,
        open_transactions_max=settings.server.open_transactions_max,
        channels_dir=settings.server.data_dir / CHANNELS_DIRECTORY,
    )
    catalogued = catalog.load()
    entrances = flows_of(settings).entrances()
    if taken := sorted(entrances & catalogued.keys()):
        raise StartError(
            f"sources.{taken[0]} has the name of a channel that CreateChannel created; give the source another name, "
            "or start without it and delete the channel"
        )
    registry.set_entrances(entrances)
    registry.finish_deletions({*settings.channels, *catalogued})
    for name, config in settings.channels.items():
        registry.create(name, config).configured = config
    for name, config in catalogued.items():
        if name in settings.channels:
            _log.warning("the configuration's channel is used, not the one that CreateChannel created", channel=name)
        else:
            registry.create(name, config)
    return registry


def flows_of(settings: Settings) -> AgentConfig:
    """Returns the flows of a configuration."""
    return AgentConfig(settings.sources, settings.sinks, settings.sink_groups)


async def stop_flows(agent: Agent, registry: ChannelRegistry, requests: StopRequests, grace_seconds: float) -> None:
    """Stops sources, channels and sinks, in this order; the channels stay open.

    Sources stop first. Then the channels refuse new transactions, open transactions may end, and sinks drain the memory
    channels. Then the sinks stop. A second stop request ends all of this at once.
    """
    clock = asyncio.get_running_loop().time
    give_up = clock() + grace_seconds
    await _until_urgent(requests, agent.stop_sources(grace_seconds))
    registry.drain()
    handing_over = asyncio.ensure_future(registry.handed_over(grace_seconds))
    _log.info("stopping", open_transactions=_open_transactions(agent, registry), grace_seconds=grace_seconds)
    agent.flush_sinks()
    await _until_urgent(requests, _wait_drained(agent, registry, give_up))
    if left_open := _open_transactions(agent, registry):
        _log.warning("open transactions are rolled back", open_transactions=left_open)
    last_seconds = min(max(give_up - clock(), _LAST_DELIVERIES_SECONDS), grace_seconds)
    await _until_urgent(requests, agent.stop_sinks(last_seconds))
    await _until_urgent(requests, handing_over)
    if requests.is_urgent:
        await agent.stop_sinks(0.0)
    for handle in _with_events_in_memory(registry):
        _log.warning("events in memory are lost", channel=handle.name, events=_event_count(handle))


async def _wait_drained(agent: Agent, registry: ChannelRegistry, give_up: float) -> None:
    clock = asyncio.get_running_loop().time
    # Polls, since sinks of channels on disk open and end transactions all the time.
    while clock() < give_up:
        if not _open_transactions(agent, registry) and not _undrained(agent, registry):
            return
        await asyncio.sleep(_POLL_SECONDS)


def _open_transactions(agent: Agent, registry: ChannelRegistry) -> int:
    """Returns the number of open transactions of clients."""
    return registry.transactions.limit.open_count - agent.unsettled_count


def _undrained(agent: Agent, registry: ChannelRegistry) -> list[ChannelHandle]:
    """Returns the channels with events in memory only that a sink may still take."""
    draining = agent.draining_channels()
    return [handle for handle in _with_events_in_memory(registry) if handle.name in draining]


def _with_events_in_memory(registry: ChannelRegistry) -> list[ChannelHandle]:
    """Returns the channels whose events are lost with the process; a spillable one writes them to its log on close."""
    return [handle for handle in registry.handles() if handle.config.type == "memory" and _event_count(handle)]


def _event_count(handle: ChannelHandle) -> int:
    channel = handle.channel_if_open
    return 0 if channel is None else channel.event_count


async def _until_urgent(requests: StopRequests, work: Awaitable[None]) -> None:
    working = asyncio.ensure_future(work)
    urgent = asyncio.create_task(requests.wait_until_urgent())
    try:
        await asyncio.wait((working, urgent), return_when=asyncio.FIRST_COMPLETED)
    finally:
        urgent.cancel()
        working.cancel()
        await asyncio.wait((working,))
    if not working.cancelled():
        working.result()
