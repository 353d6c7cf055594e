"""The agent: runs the sources, sinks and sink groups of a configuration on the server's channels."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog

from millrace_server.agent.batch_router import Routing
from millrace_server.agent.channel_reader import ChannelReader, ReaderLimits
from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.components import ComponentKind, Components, ComponentState
from millrace_server.agent.runners import SinkRunner, SourceRunner
from millrace_server.agent.settings import AgentConfig, AnySinkConfig, AnySourceConfig
from millrace_server.agent.sink_group import GroupReader, SinkGroup
from millrace_server.agent.sink_group_config import SinkGroupConfig
from millrace_server.agent.sinks.sink import Sink, SinkContext
from millrace_server.agent.sources.source import EmbeddedSources, Source, SourceContext
from millrace_server.channels.registry import ChannelRegistry

_log = structlog.stdlib.get_logger(__name__)


class AgentChanges(NamedTuple):
    """The result of a configuration change; parts are named `sources/NAME`, `sinks/NAME` and `sink_groups/NAME`."""

    started: list[str]
    changed: list[str]
    """Restarted with a new configuration, or because they had failed."""
    stopped: list[str]
    stuck: list[str]
    """Did not stop in time; the next configuration change applies theirs."""


class _RunnerKey(NamedTuple):
    kind: ComponentKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.key}s/{self.name}"


class _RunnerPlan(NamedTuple):
    config: object
    """Equal configurations need no restart."""
    start: Callable[[], SourceRunner | SinkRunner]


@dataclass(slots=True)
class _RunnerEntry:
    config: object
    runner: SourceRunner | SinkRunner
    is_stopping: bool = False
    """Whether it was asked to stop. It must then be replaced, even if stopping takes long."""

    def fits(self, plan: _RunnerPlan | None) -> bool:
        """Whether it can continue unchanged. A part that has failed is restarted."""
        has_failed = self.runner.component.state is ComponentState.FAILED
        return plan is not None and self.config == plan.config and not has_failed and not self.is_stopping


class Agent:
    """Runs sources, sinks and sink groups.

    Stopping follows the data: first the sources, then, once the channels in memory are empty, the sinks.

    Args:
        data_dir: Contains a directory for the state of each source and sink.
        embedded_sources: The writers of sources of type `embedded`, for the embedding program; None in a daemon.

    Attributes:
        components: All sources, sinks and sink groups with their states.
    """

    def __init__(
        self, registry: ChannelRegistry, data_dir: Path, embedded_sources: EmbeddedSources | None = None
    ) -> None:
        self._registry = registry
        self._data_dir = data_dir
        self._embedded_sources = embedded_sources
        self.components = Components()
        self._entries: dict[_RunnerKey, _RunnerEntry] = {}
        registry.watch(self._wake)

    def _wake(self, channel: str) -> None:
        if channel in self._registry and self._registry.find(channel).channel_if_open is not None:
            self.components.wake(channel)

    def start(self, config: AgentConfig) -> None:
        """Starts all parts that are not running yet, the sinks first."""
        for key, plan in self._plans(config).items():
            if key not in self._entries:
                self._entries[key] = _RunnerEntry(plan.config, plan.start())

    async def change(self, config: AgentConfig, grace_seconds: float) -> AgentChanges:
        """Applies another configuration: stops the parts that it does not contain, and starts the new ones.

        A part whose configuration is equal keeps running; each of the others has `grace_seconds` to finish.
        """
        plans = self._plans(config)
        former = set(self._entries)
        leaving = {key for key, entry in self._entries.items() if not entry.fits(plans.get(key))}
        components = [component for key in leaving for component in self._entries[key].runner.components]
        await self._stop((key for key in leaving if key.kind is ComponentKind.SOURCE), grace_seconds)
        await self._stop((key for key in leaving if key.kind is not ComponentKind.SOURCE), grace_seconds)
        stuck = leaving & self._entries.keys()
        self.start(config)
        for component in components:
            if component.state is ComponentState.STOPPED:
                self.components.remove(component)
        return AgentChanges(
            started=_sorted_names(self._entries.keys() - former),
            changed=_sorted_names((leaving - stuck) & plans.keys()),
            stopped=_sorted_names(leaving - stuck - plans.keys()),
            stuck=_sorted_names(stuck),
        )

    def _plans(self, config: AgentConfig) -> dict[_RunnerKey, _RunnerPlan]:
        """Returns what to run, the sinks first, so that they are ready when the first events arrive."""
        plans: dict[_RunnerKey, _RunnerPlan] = {}
        grouped = {name for group in config.sink_groups.values() for name in group.sinks}
        for name, group in config.sink_groups.items():
            plans[_RunnerKey(ComponentKind.SINK_GROUP, name)] = self._group_plan(name, group, config.sinks)
        for name, sink in config.sinks.items():
            if name not in grouped:
                plans[_RunnerKey(ComponentKind.SINK, name)] = self._sink_plan(name, sink)
        for name, source in config.sources.items():
            plans[_RunnerKey(ComponentKind.SOURCE, name)] = self._source_plan(name, source)
        return plans

    def _source_plan(self, name: str, config: AnySourceConfig) -> _RunnerPlan:
        def start() -> SourceRunner:
            component = self.components.add(ComponentKind.SOURCE, name, config.type, config.channels)

            def make() -> tuple[Source, ChannelWriter]:
                interceptors = [each.make() for each in config.interceptors]
                selector = config.selector.make(config.channels)
                routing = Routing(
                    selector,
                    config.selector.optional_channels,
                    config.dead_letter_channel,
                    has_callers=config.type == "grpc",
                )
                writer = ChannelWriter(
                    self._registry, config.channels, interceptors, component, config.batch_events_max, routing=routing
                )
                directory = self._data_dir / "sources" / name
                entrance = None if self._embedded_sources is not None else self._registry.entrance(name)
                return config.make(SourceContext(name, directory, self._embedded_sources, entrance)), writer

            return SourceRunner(component, make)

        return _RunnerPlan(config, start)

    def _sink_plan(self, name: str, config: AnySinkConfig) -> _RunnerPlan:
        def start() -> SinkRunner:
            component = self.components.add(ComponentKind.SINK, name, config.type, [config.channel])
            reader = ChannelReader(self._registry, config.channel, _limits(config), component)
            return SinkRunner(component, (), reader, self._sink_factory(name, config))

        return _RunnerPlan(config, start)

    def _group_plan(self, name: str, config: SinkGroupConfig, sinks: Mapping[str, AnySinkConfig]) -> _RunnerPlan:
        members = {member: sinks[member] for member in config.sinks}

        def start() -> SinkRunner:
            channel = members[config.sinks[0]].channel
            component = self.components.add(ComponentKind.SINK_GROUP, name, config.policy, [channel])
            reader = GroupReader(self._registry, channel, component)
            for member, sink in members.items():
                reader.add_member(self.components.add(ComponentKind.SINK, member, sink.type, [channel]), _limits(sink))
            factories = [self._sink_factory(member, sink) for member, sink in members.items()]
            components = [member.component for member in reader.members]
            return SinkRunner(component, components, reader, lambda: SinkGroup(config, reader, factories))

        return _RunnerPlan((config, members), start)

    def _sink_factory(self, name: str, config: AnySinkConfig) -> Callable[[], Sink]:
        context = SinkContext(name, self._data_dir / "sinks" / name)
        return lambda: config.make(context)

    @property
    def unsettled_count(self) -> int:
        return sum(sink.reader.unsettled_count for sink in self._sinks())

    def flush_sinks(self) -> None:
        """Asks sinks that delay settling, in order to write larger files, to settle as soon as possible."""
        for sink in self._sinks():
            sink.reader.request_flush()

    def draining_channels(self) -> set[str]:
        return {sink.reader.channel_name for sink in self._sinks() if sink.may_drain}

    def _sinks(self) -> Iterator[SinkRunner]:
        return (entry.runner for entry in self._entries.values() if isinstance(entry.runner, SinkRunner))

    async def stop_sources(self, grace_seconds: float) -> None:
        await self._stop([key for key in self._entries if key.kind is ComponentKind.SOURCE], grace_seconds)

    async def stop_sinks(self, grace_seconds: float) -> None:
        """Stops all sinks; the deliveries that they hold are settled or nacked."""
        await self._stop([key for key in self._entries if key.kind is not ComponentKind.SOURCE], grace_seconds)

    async def _stop(self, keys: Iterable[_RunnerKey], grace_seconds: float) -> None:
        await asyncio.gather(*(self._stop_one(key, grace_seconds) for key in keys))

    async def _stop_one(self, key: _RunnerKey, grace_seconds: float) -> None:
        entry = self._entries[key]
        entry.is_stopping = True
        if await entry.runner.stop(grace_seconds):
            del self._entries[key]
        else:
            # It keeps its entry: a second runner would do the same work at the same time.
            _log.error("did not stop in time", part=str(key), grace_seconds=grace_seconds)


def _limits(config: AnySinkConfig) -> ReaderLimits:
    return ReaderLimits(config.batch_events_max, config.deliveries_max, config.dead_letter_channel)


def _sorted_names(keys: Iterable[_RunnerKey]) -> list[str]:
    return sorted(map(str, keys))
