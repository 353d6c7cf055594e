"""What is told about sources, sinks and sink groups over HTTP: for Prometheus, and in the shape of Flume's JSON."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from millrace_server.agent.components import Component, ComponentKind, ComponentState, EventOutcome

_PREFIX = "millrace_component_"
_LABELS = ("kind", "component")
_MILLISECONDS = 1000

_FLUMES_KEYS = {
    ComponentKind.SOURCE: ("EventAcceptedCount", "AppendBatchAcceptedCount"),
    ComponentKind.SINK: ("EventDrainSuccessCount", "BatchCompleteCount"),
    ComponentKind.SINK_GROUP: ("EventDrainSuccessCount", "BatchCompleteCount"),
}
"""What Flume calls the events and the batches of each kind."""

_FATE_KEYS = {
    EventOutcome.FILTERED: "FilteredCount",
    EventOutcome.UNROUTED: "UnroutedCount",
    EventOutcome.DEAD_LETTERED: "DeadLetteredCount",
    EventOutcome.DROPPED: "DroppedCount",
    EventOutcome.MISSED: "MissedCount",
}


@dataclass(frozen=True, slots=True)
class _Count:
    name: str
    """Its name for Prometheus, behind `millrace_component_`; `_total` is added there."""
    help: str
    """What it is."""
    read: Callable[[Component], int]
    """Its value now."""


_COUNTS = (
    _Count("events", "Events that a source has stored, or that have left by a sink.", lambda one: one.event_count),
    _Count("batches", "Batches of these.", lambda one: one.batch_count),
    _Count("body_bytes", "Bytes of their bodies.", lambda one: one.byte_count),
    _Count("failures", "Times that it could not do its work.", lambda one: one.failure_count),
)


def describe_components(components: Iterable[Component]) -> dict[str, dict[str, str | float | None]]:
    """Each component under `SOURCE.name`, `SINK.name` or `SINK_GROUP.name`, as Flume's JSON reporting has it.

    Flume's keys have Flume's meanings, but numbers are numbers; the other keys are ours.
    """
    return {f"{one.kind.key.upper()}.{one.name}": _describe(one) for one in components}


def _describe(component: Component) -> dict[str, str | float | None]:
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
        **{key: component.fates[fate] for fate, key in _FATE_KEYS.items()},
    }


class ComponentCollector(Collector):
    """Reads the components anew at each scrape."""

    def __init__(self, components: Iterable[Component]) -> None:
        self._components = components

    def collect(self) -> Iterator[Metric]:
        """Each measure with one sample a component."""
        components = list(self._components)
        state = GaugeMetricFamily(
            _PREFIX + "state", "1 for the component's state, 0 else.", labels=[*_LABELS, "type", "state"]
        )
        age = GaugeMetricFamily(
            _PREFIX + "progress_age_seconds", "Time since it last did a batch; absent before the first.", labels=_LABELS
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
            counter = CounterMetricFamily(_PREFIX + count.name, count.help, labels=_LABELS)
            for component in components:
                counter.add_metric(_labels_of(component), count.read(component))
            yield counter
        fates = CounterMetricFamily(
            _PREFIX + "event_fates",
            "Events that were not stored where they were meant to be.",
            labels=[*_LABELS, "fate"],
        )
        for component in components:
            for fate, event_count in component.fates.items():
                fates.add_metric([*_labels_of(component), fate.value], event_count)
        yield fates


def _labels_of(component: Component) -> list[str]:
    return [component.kind.key, component.name]
