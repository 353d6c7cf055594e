"""The metrics of sources, sinks and sink groups, for Prometheus and in the layout of Flume's JSON."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from millrace_server.agent.components import Component, ComponentKind, ComponentState

_MILLISECONDS = 1000
_COMPONENT_PREFIX = "millrace_component_"

FamilyT = TypeVar("FamilyT", GaugeMetricFamily, CounterMetricFamily, InfoMetricFamily)

_FLUMES_KEYS = {
    ComponentKind.SOURCE: ("EventAcceptedCount", "AppendBatchAcceptedCount"),
    ComponentKind.SINK: ("EventDrainSuccessCount", "BatchCompleteCount"),
    ComponentKind.SINK_GROUP: ("EventDrainSuccessCount", "BatchCompleteCount"),
}
"""Flume's keys of the events and the batches of each kind."""


@dataclass(frozen=True, slots=True)
class _Count:
    name: str
    """Its name for Prometheus, after `millrace_component_` and before `_total`."""
    help: str
    read: Callable[[Component], int]


_COUNTS = (
    _Count(
        "events",
        "Events of the batches that a source has completed, regardless of their fates, or that a sink has delivered.",
        lambda one: one.event_count,
    ),
    _Count(
        "batches",
        "Batches that a source has completed, or that a sink has delivered or set aside.",
        lambda one: one.batch_count,
    ),
    _Count("body_bytes", "Bytes of the bodies of these events.", lambda one: one.byte_count),
    _Count("failures", "Attempts that failed.", lambda one: one.failure_count),
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
        **{f"{fate.value.title().replace('_', '')}Count": count for fate, count in component.outcome_counts.items()},
        **{f"Incident.{name}": count for name, count in component.incident_counts.items()},
    }


class ComponentCollector(Collector):
    """Reads the components at each scrape."""

    def __init__(self, components: Iterable[Component]) -> None:
        self._components = components

    def collect(self) -> Iterator[Metric]:
        state = _family(GaugeMetricFamily, "state", "1 for the component's state, 0 for the others.", "type", "state")
        progress = _family(
            GaugeMetricFamily,
            "last_progress_timestamp_seconds",
            "When it last completed a batch, since 1970; absent before the first.",
        )
        channels = _family(InfoMetricFamily, "channel", "A channel that it writes or reads.", "channel")
        dead_letters = _family(
            InfoMetricFamily, "dead_letter_channel", "The channel for events that it sets aside.", "channel"
        )
        counts = [(_family(CounterMetricFamily, count.name, count.help), count.read) for count in _COUNTS]
        fates = _family(CounterMetricFamily, "event_fates", "Events that did not reach all their destinations.", "fate")
        incidents = _family(CounterMetricFamily, "incidents", "Incidents that are not failures, by name.", "incident")
        for component in self._components:
            labels = [component.kind.key, component.name]
            for possible in ComponentState:
                state.add_metric([*labels, component.type_name, possible.key], float(component.state is possible))
            if component.progress_time is not None:
                progress.add_metric(labels, component.progress_time)
            for channel in component.channels:
                channels.add_metric([*labels, channel], {})
            if component.dead_letter_channel is not None:
                dead_letters.add_metric([*labels, component.dead_letter_channel], {})
            for counter, read in counts:
                counter.add_metric(labels, read(component))
            for fate, event_count in component.outcome_counts.items():
                fates.add_metric([*labels, fate.value], event_count)
            for incident, count in component.incident_counts.items():
                incidents.add_metric([*labels, incident], count)
        return iter([state, progress, channels, dead_letters, *(counter for counter, _ in counts), fates, incidents])


def _family(kind: type[FamilyT], name: str, description: str, *labels: str) -> FamilyT:
    return kind(_COMPONENT_PREFIX + name, description, labels=("kind", "component", *labels))
