"""The flow graph with current rates, from sources through channels to sinks, and where it is stalled."""

from collections.abc import Mapping
from typing import Any

from millrace_server.agent.components import Component
from millrace_server.configuration.flow_graph import Edge, channel_key, flow_graph
from millrace_server.console.history import rate_of_component
from millrace_server.console.readings import ChannelReading, ShownServer
from millrace_server.console.troubles import Severity, Trouble, trouble_of_channel, trouble_of_component

OTHER_CHANNELS_MAX = 200
"""Maximum number of channels outside the configuration that are shown."""

_UNKNOWN = dict.fromkeys(("name", "state", "rate", "severity", "reason"))

Live = dict[str, Any]
"""The current state of a node."""


class LiveFlow:
    """Describes the graph of the configuration in force."""

    def __init__(self, shown: ShownServer) -> None:
        self._shown = shown

    def document(self) -> dict[str, Any]:
        settings, registry = self._shown.settings(), self._shown.registry
        dead_letter_channels = self._shown.dead_letter_channels()
        others = {one.name: one.config.type for one in registry.handles() if one.name not in settings.channels}
        shown_others = dict(list(others.items())[:OTHER_CHANNELS_MAX])
        graph = flow_graph(settings, shown_others)
        live = {f"{one.kind.key}s/{one.name}": self._component(one) for one in self._shown.components}
        for name in (*settings.channels, *shown_others):
            if name in registry:
                reading = self._shown.read(registry.find(name))
                live[channel_key(name)] = _channel(reading, dead_letter_channels)
        nodes = [
            {"key": node.key, "kind": node.kind.value.replace(" ", "_"), "title": node.title, "details": node.details}
            | _UNKNOWN
            | live.get(node.key, {})
            for node in graph.nodes.values()
        ]
        return {
            "nodes": nodes,
            "edges": [_edge(edge, live) for edge in graph.edges],
            "left_out_count": len(others) - len(shown_others),
        }

    def _component(self, component: Component) -> Live:
        rate = rate_of_component(self._shown.history, component)
        return {"name": component.name, "state": component.state.key, "rate": rate} | _trouble(
            trouble_of_component(component)
        )


def _channel(reading: ChannelReading, dead_letter_channels: set[str]) -> Live:
    return {
        "name": reading.name,
        "state": reading.handle.state.name.lower(),
        "rate": reading.rates.put,
        "take_rate": reading.rates.take,
        "queued_events": reading.gauges and reading.gauges.queued_events,
        "taken_events": reading.gauges and reading.gauges.taken_events,
        "fill": reading.fill,
    } | _trouble(trouble_of_channel(reading, dead_letter_channels))


def _trouble(trouble: Trouble | None) -> Live:
    return {} if trouble is None else {"severity": trouble.severity.value, "reason": trouble.reason}


def _edge(edge: Edge, live: Mapping[str, Live]) -> dict[str, Any]:
    tail, head = (live.get(_whole(key), {}) for key in (edge.tail, edge.head))
    return {
        "from": edge.tail,
        "to": edge.head,
        "label": edge.label,
        "is_dead_letter": edge.is_dead_letter,
        "rate": None if edge.is_dead_letter else _rate(tail, head),
        "is_stalled": not edge.is_dead_letter and Severity.ERROR.value in (tail.get("severity"), head.get("severity")),
    }


def _whole(key: str) -> str:
    """Returns the key of the component that a step or a place belongs to; other keys stay as they are."""
    return "/".join(key.split("/")[:2])


def _rate(tail: Live, head: Live) -> float | None:
    """Returns the rate of the component at one end; if neither end is one, that of the channel."""
    for end in (tail, head):
        if end and "take_rate" not in end:
            return end["rate"]  # type: ignore[no-any-return] # it is a number or None
    return tail.get("take_rate") if tail else head.get("rate")
