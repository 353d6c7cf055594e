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
from millrace_server.agent.runners import MadeSource, RunningSink, RunningSource
from millrace_server.agent.settings import AnySinkConfig, AnySourceConfig
from millrace_server.agent.sink_group import GroupReader, SinkGroup
from millrace_server.agent.sink_group_config import SinkGroupConfig
from millrace_server.agent.sinks.sink import Sink, SinkPlace
from millrace_server.agent.sources.source import EmbeddedSources, SourcePlace
from millrace_server.channels.registry import ChannelRegistry

_log = structlog.stdlib.get_logger(__name__)


class Flows(NamedTuple):
    """What an agent runs."""

    sources: Mapping[str, AnySourceConfig]
    """Each source by its name."""
    sinks: Mapping[str, AnySinkConfig]
    """Each sink by its name, those of groups included."""
    sink_groups: Mapping[str, SinkGroupConfig] = {}
    """Each sink group by its name."""

    def channels(self) -> set[str]:
        """All channels that they fill, empty or set events aside in."""
        filled = {channel for source in self.sources.values() for channel in source.channels}
        parts = [*self.sources.values(), *self.sinks.values()]
        aside = {part.dead_letter_channel for part in parts if part.dead_letter_channel is not None}
        return filled | {sink.channel for sink in self.sinks.values()} | aside


class FlowChanges(NamedTuple):
    """What a change of flows came to; each part is told as `sources/NAME`, `sinks/NAME` or `sink_groups/NAME`."""

    started: list[str]
    """New ones."""
    changed: list[str]
    """Made anew."""
    stopped: list[str]
    """Gone."""
    stuck: list[str]
    """Those that were told to end and did not: what they were to become waits for the next change."""


class _PartKey(NamedTuple):
    kind: ComponentKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.key}s/{self.name}"


class _Plan(NamedTuple):
    made_from: object
    """The configuration; equal ones make the same."""
    start: Callable[[], RunningSource | RunningSink]


@dataclass(slots=True)
class _Part:
    """What is started and ended as a whole: a source, a sink, or a sink group with its sinks."""

    made_from: object
    running: RunningSource | RunningSink
    is_ending: bool = False
    """Whether it was told to end; it does not go on then, however long that takes."""

    def is_as_in(self, plan: _Plan | None) -> bool:
        """Whether it can go on; what has failed for good is tried again."""
        has_failed = self.running.component.state is ComponentState.FAILED
        return plan is not None and self.made_from == plan.made_from and not has_failed and not self.is_ending


class Agent:
    """Runs flows.

    Stopping goes with the data: first the sources, then, once what is in memory has left the channels, the sinks.

    Args:
        registry: The channels.
        data_dir: Below it each source and sink has a directory for what it must remember.
        embedded_sources: Where the program that the agent runs in hands over its events; None in a daemon.

    Attributes:
        components: All sources, sinks and sink groups, and how they are.
    """

    def __init__(
        self, registry: ChannelRegistry, data_dir: Path, embedded_sources: EmbeddedSources | None = None
    ) -> None:
        self._registry = registry
        self._data_dir = data_dir
        self._embedded_sources = embedded_sources
        self.components = Components()
        self._parts: dict[_PartKey, _Part] = {}

    def start(self, flows: Flows) -> None:
        """Starts everything that is not there yet, the sinks first."""
        for key, plan in self._plans(flows).items():
            if key not in self._parts:
                self._parts[key] = _Part(plan.made_from, plan.start())

    async def change(self, flows: Flows, grace_seconds: float) -> FlowChanges:
        """Goes over to other flows: ends what is not among them, and starts what is new.

        What was made from an equal configuration goes on untouched.

        Args:
            flows: What is to run from now on.
            grace_seconds: How long each part may take to end what it has begun.
        """
        plans = self._plans(flows)
        former = set(self._parts)
        leaving = {key for key, part in self._parts.items() if not part.is_as_in(plans.get(key))}
        components = [component for key in leaving for component in self._parts[key].running.components]
        await self._end((key for key in leaving if key.kind is ComponentKind.SOURCE), grace_seconds)
        await self._end((key for key in leaving if key.kind is not ComponentKind.SOURCE), grace_seconds)
        stuck = leaving & self._parts.keys()
        self.start(flows)
        for component in components:
            if component.state is ComponentState.STOPPED:
                self.components.remove(component)
        return FlowChanges(
            started=_told(self._parts.keys() - former),
            changed=_told((leaving - stuck) & plans.keys()),
            stopped=_told(leaving - stuck - plans.keys()),
            stuck=_told(stuck),
        )

    def _plans(self, flows: Flows) -> dict[_PartKey, _Plan]:
        """What is to be at work, the sinks first: what comes in finds its way out."""
        plans: dict[_PartKey, _Plan] = {}
        grouped = {name for group in flows.sink_groups.values() for name in group.sinks}
        for name, group in flows.sink_groups.items():
            plans[_PartKey(ComponentKind.SINK_GROUP, name)] = self._group_plan(name, group, flows.sinks)
        for name, sink in flows.sinks.items():
            if name not in grouped:
                plans[_PartKey(ComponentKind.SINK, name)] = self._sink_plan(name, sink)
        for name, source in flows.sources.items():
            plans[_PartKey(ComponentKind.SOURCE, name)] = self._source_plan(name, source)
        return plans

    def _source_plan(self, name: str, config: AnySourceConfig) -> _Plan:
        def start() -> RunningSource:
            component = self.components.add(ComponentKind.SOURCE, name, config.type)

            def make() -> MadeSource:
                interceptors = [each.make() for each in config.interceptors]
                writer = ChannelWriter(
                    self._registry,
                    config.channels,
                    interceptors,
                    component,
                    config.batch_events_max,
                    routing=Routing(
                        config.selector.make(config.channels),
                        config.selector.optional_channels,
                        config.dead_letter_channel,
                    ),
                )
                return MadeSource(
                    config.make(SourcePlace(name, self._data_dir / "sources" / name, self._embedded_sources)), writer
                )

            return RunningSource(component, make)

        return _Plan(config, start)

    def _sink_plan(self, name: str, config: AnySinkConfig) -> _Plan:
        def start() -> RunningSink:
            component = self.components.add(ComponentKind.SINK, name, config.type)
            reader = ChannelReader(self._registry, config.channel, _limits(config), component)
            return RunningSink(component, (), reader, self._maker(name, config))

        return _Plan(config, start)

    def _group_plan(self, name: str, config: SinkGroupConfig, sinks: Mapping[str, AnySinkConfig]) -> _Plan:
        members = {member: sinks[member] for member in config.sinks}

        def start() -> RunningSink:
            component = self.components.add(ComponentKind.SINK_GROUP, name, config.policy)
            reader = GroupReader(self._registry, members[config.sinks[0]].channel, component)
            for member, sink in members.items():
                reader.member(self.components.add(ComponentKind.SINK, member, sink.type), _limits(sink))
            make = [self._maker(member, sink) for member, sink in members.items()]
            components = [member.component for member in reader.members]
            return RunningSink(component, components, reader, lambda: SinkGroup(config, reader, make))

        return _Plan((config, members), start)

    def _maker(self, name: str, config: AnySinkConfig) -> Callable[[], Sink]:
        place = SinkPlace(name, self._data_dir / "sinks" / name)
        return lambda: config.make(place)

    @property
    def delivered_count(self) -> int:
        """Deliveries that sinks have in hand."""
        return sum(sink.reader.delivered_count for sink in self._sinks())

    def hurry_sinks(self) -> None:
        """Has sinks that hold events back, to make larger files of them, do so no longer."""
        for sink in self._sinks():
            sink.reader.hurry()

    def draining_channels(self) -> set[str]:
        """The channels that a sink may still empty by itself."""
        return {sink.reader.channel_name for sink in self._sinks() if sink.may_drain}

    def _sinks(self) -> Iterator[RunningSink]:
        return (part.running for part in self._parts.values() if isinstance(part.running, RunningSink))

    async def stop_sources(self, grace_seconds: float) -> None:
        """Ends all sources: nothing comes in any more by itself."""
        await self._end([key for key in self._parts if key.kind is ComponentKind.SOURCE], grace_seconds)

    async def stop_sinks(self, grace_seconds: float) -> None:
        """Ends all sinks, with what they have in hand delivered or given back."""
        await self._end([key for key in self._parts if key.kind is not ComponentKind.SOURCE], grace_seconds)

    async def _end(self, keys: Iterable[_PartKey], grace_seconds: float) -> None:
        await asyncio.gather(*(self._end_part(key, grace_seconds) for key in keys))

    async def _end_part(self, key: _PartKey, grace_seconds: float) -> None:
        part = self._parts[key]
        part.is_ending = True
        if not await part.running.stop(grace_seconds):
            # Another one beside it would do its work twice.
            _log.error("does not end although it was told to", part=str(key), grace_seconds=grace_seconds)
            return
        del self._parts[key]


def _limits(config: AnySinkConfig) -> ReaderLimits:
    return ReaderLimits(config.batch_events_max, config.deliveries_max, config.dead_letter_channel)


def _told(keys: Iterable[_PartKey]) -> list[str]:
    return sorted(map(str, keys))
