"""The agent: runs the sources and sinks of a configuration on the server's channels."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from millrace_server.agent.backoff import Backoff
from millrace_server.agent.components import Component, ComponentKind, Components
from millrace_server.agent.intake import Intake
from millrace_server.agent.outlet import Outlet, OutletLimits
from millrace_server.agent.settings import AnySinkConfig, AnySourceConfig
from millrace_server.agent.sinks.sink import Sink, SinkPlace
from millrace_server.agent.sources.source import Source, SourcePlace
from millrace_server.agent.supervision import supervise
from millrace_server.channels.registry import ChannelRegistry


class Flows(NamedTuple):
    """What an agent runs."""

    sources: Mapping[str, AnySourceConfig]
    """Each source by its name."""
    sinks: Mapping[str, AnySinkConfig]
    """Each sink by its name."""


class Agent:
    """Runs flows.

    Stopping goes with the data: first the sources, then, once what is in memory has left the channels, the sinks.

    Args:
        registry: The channels.
        data_dir: Below it each source and sink has a directory for what it must remember.

    Attributes:
        components: All sources and sinks, and how they are.
    """

    def __init__(self, registry: ChannelRegistry, data_dir: Path) -> None:
        self._registry = registry
        self._data_dir = data_dir
        self.components = Components()
        self._sources: dict[str, _RunningSource] = {}
        self._sinks: dict[str, _RunningSink] = {}

    def start(self, flows: Flows) -> None:
        """Starts everything, the sinks first."""
        for name, sink_config in flows.sinks.items():
            self._start_sink(name, sink_config)
        for name, source_config in flows.sources.items():
            self._start_source(name, source_config)

    def _start_source(self, name: str, config: AnySourceConfig) -> None:
        component = self.components.add(ComponentKind.SOURCE, name, config.type)
        source = config.make(SourcePlace(name, self._data_dir / "sources" / name))
        interceptors = [each.make() for each in config.interceptors]
        intake = Intake(self._registry, config.channels, interceptors, component, config.batch_events_max)
        self._sources[name] = _RunningSource(component, source, intake)

    def _start_sink(self, name: str, config: AnySinkConfig) -> None:
        component = self.components.add(ComponentKind.SINK, name, config.type)
        sink = config.make(SinkPlace(name, self._data_dir / "sinks" / name))
        limits = OutletLimits(config.batch_events_max, config.deliveries_max, config.dead_letter_channel)
        self._sinks[name] = _RunningSink(component, sink, Outlet(self._registry, config.channel, limits, component))

    async def stop_sources(self) -> None:
        """Ends all sources: nothing comes in any more by itself."""
        await asyncio.gather(*(source.stop() for source in self._sources.values()))
        self._sources.clear()

    async def stop_sinks(self, grace_seconds: float) -> None:
        """Ends all sinks, once what would be lost with the process has left its channels, or the grace is over."""
        await asyncio.gather(*(sink.stop(grace_seconds) for sink in self._sinks.values()))
        self._sinks.clear()


class _RunningSource:
    def __init__(self, component: Component, source: Source, intake: Intake) -> None:
        self._component = component
        self._source = source
        self._intake = intake
        self._task = asyncio.create_task(supervise(component, self._run, Backoff()))

    async def _run(self) -> None:
        await self._intake.wait_open()
        await self._source.run(self._intake)

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})
        self._component.stops()


class _RunningSink:
    def __init__(self, component: Component, sink: Sink, outlet: Outlet) -> None:
        self._component = component
        self._sink = sink
        self._outlet = outlet
        self._task = asyncio.create_task(supervise(component, self._run, Backoff()))

    async def _run(self) -> None:
        try:
            await self._sink.run(self._outlet)
        finally:
            self._outlet.give_back_all()

    async def stop(self, grace_seconds: float) -> None:
        self._outlet.close()
        await asyncio.wait({self._task}, timeout=grace_seconds)
        self._task.cancel()
        await asyncio.wait({self._task})
        self._component.stops()
