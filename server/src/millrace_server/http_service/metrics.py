"""The metrics of channels and components, for Prometheus and in the layout of Flume's JSON."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from millrace_server.agent.components import Component, ComponentKind, ComponentState, EventOutcome
from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_handle import ChannelHandle, ChannelState
from millrace_server.channels.file_store import FileStore
from millrace_server.channels.registry import ChannelRegistry

_CHANNEL_PREFIX = "millrace_channel_"
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


GAUGES: tuple[Measure[Channel], ...] = (
    Measure("ChannelCapacity", "capacity_events", "Events that may be held.", lambda c: c.config.capacity, True),
    Measure("ChannelSize", "queued_events", "Events not taken.", lambda c: c.gauges().queued_events, True),
    Measure("TakenEvents", "taken_events", "Events that transactions have taken.", lambda c: c.gauges().taken_events),
    Measure("MemoryEvents", "memory_events", "Events a crash loses.", lambda c: c.gauges().memory_events),
    Measure("BodyBytes", "body_bytes", "Bytes of all bodies held.", lambda c: c.gauges().body_bytes),
    Measure("BodyBytesMax", "body_bytes_max", "Bytes of bodies that may be held.", lambda c: c.config.body_bytes_max),
    Measure("OpenTransactions", "open_transactions", "Open transactions.", lambda c: c.open_transactions),
    Measure("WaitingTakes", "waiting_takes", "Takes that wait for an event.", lambda c: c.gauges().waiting_takes),
    Measure("WaitingCommits", "waiting_commits", "Commits waiting for room.", lambda c: c.gauges().waiting_commits),
    Measure("Producers", "producers", "Producers whose stamps are remembered.", lambda c: c.gauges().producers),
    Measure("Claims", "claims", "1 while a reader's claim lives, else 0.", lambda c: int(c.claims.claim is not None)),
    Measure("FirstSequence", "first_sequence", "Oldest queued sequence.", lambda c: c.first_sequence),
    Measure("NextSequence", "next_sequence", "Sequence that comes next.", lambda c: c.next_sequence),
)

COUNTERS: tuple[Measure[Channel], ...] = (
    Measure("EventPutAttemptCount", "put_attempts", "Events offered.", lambda c: c.counters.put_attempts, True),
    Measure("EventPutSuccessCount", "put_successes", "Events stored.", lambda c: c.counters.put_successes, True),
    Measure("EventTakeAttemptCount", "take_attempts", "Events asked for.", lambda c: c.counters.take_attempts, True),
    Measure("EventTakeSuccessCount", "take_successes", "Events removed.", lambda c: c.counters.take_successes, True),
    Measure("CommitCount", "commits", "Transactions committed.", lambda c: c.counters.commits),
    Measure("RollbackCount", "rollbacks", "Transactions rolled back.", lambda c: c.counters.rollbacks),
    Measure("LeaseExpiredCount", "leases_expired", "Rolled back by their lease.", lambda c: c.counters.leases_expired),
    Measure("DeduplicatedCount", "deduplicated", "Events dropped as repeats.", lambda c: c.counters.deduplicated),
)
"""Counters start at 0 when the server opens the channel."""


STORE_GAUGES: tuple[Measure[FileStore], ...] = (
    Measure("LogBytes", "log_bytes", "Bytes that the log takes on the disk.", lambda store: store.log_bytes),
    Measure("Segments", "segments", "Files of the log.", lambda store: store.segment_count),
)


def describe_channels(handles: Iterable[ChannelHandle]) -> dict[str, dict[str, str | float]]:
    """Returns each channel under `CHANNEL.name`, as Flume's JSON reporting does, but with numbers as numbers.

    Flume's keys have Flume's meanings; the other keys are Millrace's. A channel that is not open has few of them.
    """
    return {f"CHANNEL.{one.name}": _describe_handle(one) for one in handles}


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
    return description


def _describe_open(channel: Channel) -> dict[str, str | float]:
    return {
        "ChannelId": channel.channel_id,
        **{measure.key: measure.read(channel) for measure in (*GAUGES, *COUNTERS)},
        "ChannelFillPercentage": 100.0 * channel.gauges().queued_events / channel.config.capacity,
        "StartTime": int(channel.start_time * _MILLISECONDS),
        "StopTime": 0,
    }


class ChannelCollector(Collector):
    """Reads the channels at each scrape, so that a deleted channel has no metrics."""

    def __init__(self, registry: ChannelRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Metric]:
        yield from self._collect_hosted()
        channels = self._registry.channels()
        measures = [(GaugeMetricFamily, one) for one in GAUGES] + [(CounterMetricFamily, one) for one in COUNTERS]
        for family, measure in measures:
            metric = family(_CHANNEL_PREFIX + measure.name, measure.describe(), labels=["channel"])
            for channel in channels:
                metric.add_metric([channel.name], measure.read(channel))
            yield metric
        info = InfoMetricFamily(_CHANNEL_PREFIX.removesuffix("_"), "What a channel is.", labels=["channel"])
        for channel in channels:
            info.add_metric([channel.name], {"channel_id": channel.channel_id, "type": channel.config.type})
        yield info

    def _collect_hosted(self) -> Iterator[Metric]:
        handle = self._registry.handles()
        state = GaugeMetricFamily(
            _CHANNEL_PREFIX + "state", "1 for the channel's state, 0 else.", labels=["channel", "state"]
        )
        replayed = GaugeMetricFamily(_CHANNEL_PREFIX + "replayed_fraction", "Of its log, 0 to 1.", labels=["channel"])
        for one in handle:
            replayed.add_metric([one.name], one.replayed_fraction)
            for possible in ChannelState:
                state.add_metric([one.name, possible.name.lower()], float(one.state is possible))
        yield state
        yield replayed
        for measure in STORE_GAUGES:
            gauge = GaugeMetricFamily(_CHANNEL_PREFIX + measure.name, measure.help, labels=["channel"])
            for one in handle:
                if one.store is not None:
                    gauge.add_metric([one.name], measure.read(one.store))
            yield gauge


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
