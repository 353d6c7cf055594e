"""The metrics of channels and components, for Prometheus and in the layout of Flume's JSON."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from millrace_server.agent.components import Component, ComponentKind, ComponentState, EventOutcome
from millrace_server.channels.channel import Channel, ChannelGauges
from millrace_server.channels.channel_handle import ChannelHandle, ChannelState
from millrace_server.channels.file_store import FileStore

_CHANNEL_PREFIX = "millrace_channel_"
_STATE_NAMES = [(state.name.lower(), state) for state in ChannelState]
_MILLISECONDS = 1000


MeasuredT = TypeVar("MeasuredT")


@dataclass(frozen=True, slots=True)
class Measure(Generic[MeasuredT]):
    """A metric of a channel, or of its files."""

    key: str
    """Its name in JSON, which is Flume's if Flume has the metric."""
    name: str
    """Its name for Prometheus, after `millrace_channel_`; `_total` is appended to a counter's."""
    help: str
    read: Callable[[MeasuredT], float]
    is_flumes: bool = False
    """Whether Flume has the same metric under this key."""

    def describe(self) -> str:
        return f"{self.help} Flume: {self.key}." if self.is_flumes else self.help


class Reading(NamedTuple):
    """A channel, and its gauges, which are read once for all measures."""

    channel: Channel
    gauges: ChannelGauges


GAUGES: tuple[Measure[Reading], ...] = (
    Measure(
        "ChannelCapacity", "capacity_events", "Events that may be held.", lambda r: r.channel.config.capacity, True
    ),
    Measure("ChannelSize", "queued_events", "Events not taken.", lambda r: r.gauges.queued_events, True),
    Measure("TakenEvents", "taken_events", "Events that transactions have taken.", lambda r: r.gauges.taken_events),
    Measure("MemoryEvents", "memory_events", "Events a crash loses.", lambda r: r.gauges.memory_events),
    Measure("BodyBytes", "body_bytes", "Bytes of all bodies held.", lambda r: r.gauges.body_bytes),
    Measure(
        "BodyBytesMax", "body_bytes_max", "Bytes of bodies that may be held.", lambda r: r.channel.config.body_bytes_max
    ),
    Measure("OpenTransactions", "open_transactions", "Open transactions.", lambda r: r.gauges.open_transactions),
    Measure("WaitingTakes", "waiting_takes", "Takes that wait for an event.", lambda r: r.gauges.waiting_takes),
    Measure("WaitingCommits", "waiting_commits", "Commits waiting for room.", lambda r: r.gauges.waiting_commits),
    Measure("Producers", "producers", "Producers whose stamps are remembered.", lambda r: r.gauges.producers),
    Measure(
        "Claims", "claims", "1 while a reader's claim lives, else 0.", lambda r: int(r.channel.claims.claim is not None)
    ),
    Measure("FirstSequence", "first_sequence", "Oldest queued sequence.", lambda r: r.gauges.first_sequence),
    Measure("NextSequence", "next_sequence", "Sequence that comes next.", lambda r: r.gauges.next_sequence),
)

COUNTERS: tuple[Measure[Reading], ...] = (
    Measure("EventPutAttemptCount", "put_attempts", "Events offered.", lambda r: r.channel.counters.put_attempts, True),
    Measure(
        "EventPutSuccessCount", "put_successes", "Events stored.", lambda r: r.channel.counters.put_successes, True
    ),
    Measure(
        "EventTakeAttemptCount", "take_attempts", "Events asked for.", lambda r: r.channel.counters.take_attempts, True
    ),
    Measure(
        "EventTakeSuccessCount", "take_successes", "Events removed.", lambda r: r.channel.counters.take_successes, True
    ),
    Measure("CommitCount", "commits", "Transactions committed.", lambda r: r.channel.counters.commits),
    Measure("RollbackCount", "rollbacks", "Transactions rolled back.", lambda r: r.channel.counters.rollbacks),
    Measure(
        "LeaseExpiredCount",
        "leases_expired",
        "Rolled back by their lease.",
        lambda r: r.channel.counters.leases_expired,
    ),
    Measure(
        "DeduplicatedCount", "deduplicated", "Events dropped as repeats.", lambda r: r.channel.counters.deduplicated
    ),
    Measure("EventExpiredCount", "expired", "Events older than the retention.", lambda r: r.channel.counters.expired),
)
"""Counters start at 0 when the server opens the channel."""


STORE_GAUGES: tuple[Measure[FileStore], ...] = (
    Measure("LogBytes", "log_bytes", "Bytes that the log takes on the disk.", lambda store: store.log_bytes),
    Measure("Segments", "segments", "Files of the log.", lambda store: store.segment_count),
    Measure(
        "CheckpointTime",
        "checkpoint_time_seconds",
        "When the newest checkpoint was made, since 1970; 0 before the first.",
        lambda store: store.checkpoint_time or 0.0,
    ),
)


def describe_channel(handle: ChannelHandle) -> dict[str, dict[str, str | float]]:
    """Returns a channel under `CHANNEL.name`, as Flume's JSON reporting does, but with numbers as numbers.

    Flume's keys have Flume's meanings; the other keys are Millrace's. A channel that is not open has few of them.
    """
    return {f"CHANNEL.{handle.name}": _describe_handle(handle)}


def _describe_handle(handle: ChannelHandle) -> dict[str, str | float]:
    description: dict[str, str | float] = {
        "Type": "CHANNEL",
        "ChannelType": handle.config.type,
        "State": handle.state.value,
        "Fault": handle.trouble,
        "ReplayedPercentage": 100.0 * handle.replayed_fraction,
    }
    if (channel := handle.channel_if_open) is not None:
        description |= _describe_open(channel)
    if (store := handle.store) is not None:
        description |= {measure.key: measure.read(store) for measure in STORE_GAUGES}
        description["DiskFreeBytes"] = store.disk_space.free_bytes
    return description


def _describe_open(channel: Channel) -> dict[str, str | float]:
    reading = Reading(channel, channel.gauges())
    return {
        "ChannelId": channel.channel_id,
        **{measure.key: measure.read(reading) for measure in (*GAUGES, *COUNTERS)},
        "ChannelFillPercentage": 100.0 * reading.gauges.queued_events / channel.config.capacity,
        "StartTime": int(channel.start_time * _MILLISECONDS),
        "StopTime": 0,
    }


_LABELS = ("channel",)
_STATE = GaugeMetricFamily(_CHANNEL_PREFIX + "state", "1 for the channel's state, 0 else.", labels=(*_LABELS, "state"))
_REPLAYED = GaugeMetricFamily(_CHANNEL_PREFIX + "replayed_fraction", "Of its log, 0 to 1.", labels=_LABELS)
_FREE = GaugeMetricFamily(
    _CHANNEL_PREFIX + "disk_free_bytes", "Free bytes of a directory.", labels=(*_LABELS, "directory")
)
_INFO = InfoMetricFamily(_CHANNEL_PREFIX.removesuffix("_"), "What a channel is.", labels=_LABELS)


_Family = type[GaugeMetricFamily] | type[CounterMetricFamily]


def _families(kind: _Family, measures: Iterable[Measure[Any]]) -> list[Metric]:
    return [kind(_CHANNEL_PREFIX + one.name, one.describe(), labels=_LABELS) for one in measures]


_STORE_FAMILIES = _families(GaugeMetricFamily, STORE_GAUGES)
_CHANNEL_FAMILIES = [*_families(GaugeMetricFamily, GAUGES), *_families(CounterMetricFamily, COUNTERS)]


class ChannelSamples:
    """The samples of channels as lines of text, which are the same in both of Prometheus' formats.

    With thousands of channels, the library's objects for each sample would take most of the time. Names of channels
    need no escape.
    """

    def __init__(self) -> None:
        self._lines = defaultdict[str, list[str]](list)  # By the name of the metric.
        # The lists under the measures that are read together, with what a line begins with.
        self._of_store = self._columns(_STORE_FAMILIES, STORE_GAUGES)
        self._of_channel = self._columns(_CHANNEL_FAMILIES, (*GAUGES, *COUNTERS))

    def _columns(
        self, families: Iterable[Metric], measures: Iterable[Measure[MeasuredT]]
    ) -> list[tuple[list[str], str, Callable[[MeasuredT], float]]]:
        return [
            (self._lines[family.name], family.name + "_total" * (family.type == "counter"), measure.read)
            for family, measure in zip(families, measures, strict=True)
        ]

    def add(self, handle: ChannelHandle) -> None:
        """Adds the samples of a channel as it is now."""
        label, state = f'channel="{handle.name}"', handle.state
        self._lines[_REPLAYED.name].append(f"{_REPLAYED.name}{{{label}}} {handle.replayed_fraction}\n")
        self._lines[_STATE.name] += [
            f'{_STATE.name}{{{label},state="{name}"}} {int(state is possible)}\n' for name, possible in _STATE_NAMES
        ]
        if (store := handle.store) is not None:
            for lines, name, read_store in self._of_store:
                lines.append(f"{name}{{{label}}} {read_store(store)}\n")
            for path, free_bytes in store.disk_space.directories.items():
                directory = json.dumps(str(path).encode(errors="replace").decode(), ensure_ascii=False)
                self._lines[_FREE.name].append(f"{_FREE.name}{{{label},directory={directory}}} {free_bytes}\n")
        if (channel := handle.channel_if_open) is not None:
            reading = Reading(channel, channel.gauges())
            for lines, name, read in self._of_channel:
                lines.append(f"{name}{{{label}}} {read(reading)}\n")
            what = f'channel_id="{channel.channel_id}",type="{channel.config.type}"'
            self._lines[_INFO.name].append(f"{_INFO.name}_info{{{label},{what}}} 1\n")

    def families(self) -> Iterator[tuple[Metric, list[str]]]:
        """Yields each metric, without samples, and the lines of its samples."""
        for family in (_STATE, _REPLAYED, _FREE, *_STORE_FAMILIES, *_CHANNEL_FAMILIES, _INFO):
            yield family, self._lines[family.name]


_COMPONENT_PREFIX = "millrace_component_"
_COMPONENT_LABELS = ("kind", "component")

_FLUMES_KEYS = {
    ComponentKind.SOURCE: ("EventAcceptedCount", "AppendBatchAcceptedCount"),
    ComponentKind.SINK: ("EventDrainSuccessCount", "BatchCompleteCount"),
    ComponentKind.SINK_GROUP: ("EventDrainSuccessCount", "BatchCompleteCount"),
}
"""Flume's keys of the events and the batches of each kind."""

_OUTCOME_KEYS = {
    EventOutcome.FILTERED: "FilteredCount",
    EventOutcome.UNROUTED: "UnroutedCount",
    EventOutcome.DEAD_LETTERED: "DeadLetteredCount",
    EventOutcome.DROPPED: "DroppedCount",
    EventOutcome.MISSED: "MissedCount",
}


@dataclass(frozen=True, slots=True)
class _Count:
    name: str
    """Its name for Prometheus, after `millrace_component_` and before `_total`."""
    help: str
    read: Callable[[Component], int]


_COUNTS = (
    _Count("events", "Events that a source has stored, or that have left by a sink.", lambda one: one.event_count),
    _Count("batches", "Batches of these.", lambda one: one.batch_count),
    _Count("body_bytes", "Bytes of their bodies.", lambda one: one.byte_count),
    _Count("failures", "Times that it could not do its work.", lambda one: one.failure_count),
)


def describe_components(components: Iterable[Component]) -> dict[str, dict[str, str | float | None]]:
    """Returns each component under `SOURCE.name`, `SINK.name` or `SINK_GROUP.name`, as Flume's JSON reporting does.

    Flume's keys have Flume's meanings, but numbers are numbers; the other keys are Millrace's.
    """
    return {f"{one.kind.key.upper()}.{one.name}": _describe_component(one) for one in components}


def _describe_component(component: Component) -> dict[str, str | float | None]:
    events_key, batches_key = _FLUMES_KEYS[component.kind]
    return {
        "Type": component.kind.key.upper(),
        "ComponentType": component.type_name,
        "State": component.state.value,
        "Reason": component.reason,
        "Since": int(component.since * _MILLISECONDS),
        events_key: component.event_count,
        batches_key: component.batch_count,
        "BodyBytes": component.byte_count,
        "FailureCount": component.failure_count,
        "SecondsSinceProgress": component.progress_age_seconds,
        **{key: component.outcome_counts[fate] for fate, key in _OUTCOME_KEYS.items()},
    }


class ComponentCollector(Collector):
    """Reads the components at each scrape."""

    def __init__(self, components: Iterable[Component]) -> None:
        self._components = components

    def collect(self) -> Iterator[Metric]:
        components = list(self._components)
        state = GaugeMetricFamily(
            _COMPONENT_PREFIX + "state",
            "1 for the component's state, 0 else.",
            labels=[*_COMPONENT_LABELS, "type", "state"],
        )
        age = GaugeMetricFamily(
            _COMPONENT_PREFIX + "progress_age_seconds",
            "Time since it last did a batch; absent before the first.",
            labels=_COMPONENT_LABELS,
        )
        for component in components:
            for possible in ComponentState:
                is_state = float(component.state is possible)
                state.add_metric([*_labels_of(component), component.type_name, possible.key], is_state)
            if (seconds := component.progress_age_seconds) is not None:
                age.add_metric(_labels_of(component), seconds)
        yield state
        yield age
        for count in _COUNTS:
            counter = CounterMetricFamily(_COMPONENT_PREFIX + count.name, count.help, labels=_COMPONENT_LABELS)
            for component in components:
                counter.add_metric(_labels_of(component), count.read(component))
            yield counter
        fates = CounterMetricFamily(
            _COMPONENT_PREFIX + "event_fates",
            "Events that were not stored where they were meant to be.",
            labels=[*_COMPONENT_LABELS, "fate"],
        )
        for component in components:
            for fate, event_count in component.outcome_counts.items():
                fates.add_metric([*_labels_of(component), fate.value], event_count)
        yield fates


def _labels_of(component: Component) -> list[str]:
    return [component.kind.key, component.name]
