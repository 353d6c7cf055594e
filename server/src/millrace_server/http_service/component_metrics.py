"""The metrics of sources, sinks and sink groups, for Prometheus and in the layout of Flume's JSON."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from millrace_server.agent.components import Component, ComponentKind, ComponentState, EventOutcome

_MILLISECONDS = 1000
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
    _Count(
        "events",
        "Events of the batches that a source has completed, whatever their fates, or that a sink has delivered.",
        lambda one: one.event_count,
    ),
    _Count(
        "batches",
        "Batches that a source has completed, or that a sink has delivered or set aside.",
        lambda one: one.batch_count,
    ),
    _Count("body_bytes", "Bytes of the bodies of these events.", lambda one: one.byte_count),
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
        progress = GaugeMetricFamily(
            _COMPONENT_PREFIX + "last_progress_timestamp_seconds",
            "When it last did a batch, since 1970; absent before the first.",
            labels=_COMPONENT_LABELS,
        )
        channels = InfoMetricFamily(
            _COMPONENT_PREFIX + "channel", "A channel that it writes or reads.", labels=(*_COMPONENT_LABELS, "channel")
        )
        dead_letters = InfoMetricFamily(
            _COMPONENT_PREFIX + "dead_letter_channel",
            "The channel for events that it sets aside.",
            labels=(*_COMPONENT_LABELS, "channel"),
        )
        for component in components:
            for possible in ComponentState:
                is_state = float(component.state is possible)
                state.add_metric([*_labels_of(component), component.type_name, possible.key], is_state)
            if component.progress_time is not None:
                progress.add_metric(_labels_of(component), component.progress_time)
            for channel in component.channels:
                channels.add_metric([*_labels_of(component), channel], {})
            if component.dead_letter_channel is not None:
                dead_letters.add_metric([*_labels_of(component), component.dead_letter_channel], {})
        yield from (state, progress, channels, dead_letters)
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
