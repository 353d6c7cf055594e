"""The flows of a configuration as a graph: sources, interceptors, selectors, channels and sinks."""

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel

from millrace_server.agent.selectors import MultiplexingConfig
from millrace_server.agent.settings import AnySinkConfig, AnySourceConfig
from millrace_server.configuration.settings import Settings

_PLACE_FIELDS = ("paths", "path", "directory", "url", "endpoints")
"""Settings with the place where a source reads events, or a sink writes them."""


class NodeKind(enum.Enum):
    """The kind of a node."""

    CALLERS = "callers"
    """Clients of the gRPC service."""
    SOURCE = "source"
    STEP = "step"
    """The interceptors or the selector of a source."""
    CHANNEL = "channel"
    GROUP = "sink group"
    SINK = "sink"
    PLACE = "place"
    """The destination of a sink."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the graph; its key is unique there."""

    key: str
    kind: NodeKind
    title: str
    """Its label, such as `channel orders`."""
    details: str = ""


_CALLERS_IN = Node("callers/in", NodeKind.CALLERS, "callers")


@dataclass(frozen=True, slots=True)
class Edge:
    """A path of events between the nodes with these keys."""

    tail: str
    head: str
    label: str = ""
    """Which events take it; empty for all."""
    is_dead_letter: bool = False


@dataclass(slots=True)
class FlowGraph:
    """Nodes and edges, in the order of the configuration."""

    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    def add(self, node: Node) -> str:
        """Adds a node unless it exists; returns its key."""
        self.nodes.setdefault(node.key, node)
        return node.key

    def connect(self, tail: str, head: str, label: str = "", *, is_dead_letter: bool = False) -> None:
        self.edges.append(Edge(tail, head, label, is_dead_letter))

    def edges_from(self, key: str) -> list[Edge]:
        return [edge for edge in self.edges if edge.tail == key]

    def roots(self) -> list[str]:
        reached = {edge.head for edge in self.edges}
        return [key for key in self.nodes if key not in reached]


def flow_graph(settings: Settings, others: Mapping[str, str] = {}) -> FlowGraph:
    """Returns the graph of a configuration; callers fill and empty the channels that no component does.

    `others` are the types of channels outside the configuration, by name.
    """
    graph = FlowGraph()
    for name, source in settings.sources.items():
        _add_source(graph, name, source)
    types = {name: channel.type for name, channel in settings.channels.items()}
    for name, type_name in {**others, **types}.items():
        graph.add(Node(channel_key(name), NodeKind.CHANNEL, f"channel {name}", type_name))
    groups = _add_groups(graph, settings)
    for name, sink in settings.sinks.items():
        _add_sink(graph, name, sink, groups.get(name))
    _add_callers(graph)
    return graph


def channel_key(name: str) -> str:
    """Returns the key of a channel's node; components have keys such as `sinks/NAME`."""
    return f"channels/{name}"


def _add_source(graph: FlowGraph, name: str, config: AnySourceConfig) -> None:
    end = source = graph.add(Node(f"sources/{name}", NodeKind.SOURCE, f"source {name}", _details(config)))
    if config.type == "grpc":
        graph.connect(graph.add(_CALLERS_IN), source)
    if config.interceptors:
        chain = ", ".join(interceptor.type for interceptor in config.interceptors)
        step = graph.add(Node(f"sources/{name}/interceptors", NodeKind.STEP, f"interceptors {chain}"))
        graph.connect(end, step)
        end = step
    selector = config.selector
    if selector.type != "replicating":
        by = f" by header {selector.header}" if isinstance(selector, MultiplexingConfig) else ""
        step = graph.add(Node(f"sources/{name}/selector", NodeKind.STEP, f"selector {selector.type}{by}"))
        graph.connect(end, step)
        end = step
    for channel in config.channels:
        graph.connect(end, channel_key(channel), _condition(config, channel))
    if config.dead_letter_channel is not None:
        graph.connect(source, channel_key(config.dead_letter_channel), "what cannot be stored", is_dead_letter=True)


def _condition(config: AnySourceConfig, channel: str) -> str:
    selector = config.selector
    conditions: list[str] = []
    if isinstance(selector, MultiplexingConfig):
        for ways in (selector.mapping, selector.optional):
            conditions.extend(value for value, channels in ways.items() if channel in channels)
        if channel in selector.default:
            conditions.append("all others")
    if channel in selector.optional_channels:
        conditions.append("optional")
    return ", ".join(conditions)


def _add_groups(graph: FlowGraph, settings: Settings) -> dict[str, str]:
    """Adds all sink groups; returns the key of the group of each sink in a group."""
    groups: dict[str, str] = {}
    for name, group in settings.sink_groups.items():
        key = graph.add(Node(f"sink_groups/{name}", NodeKind.GROUP, f"sink group {name}", group.policy))
        graph.connect(channel_key(settings.sinks[group.sinks[0]].channel), key)
        groups |= dict.fromkeys(group.sinks, key)
    return groups


def _add_sink(graph: FlowGraph, name: str, config: AnySinkConfig, group: str | None) -> None:
    sink = graph.add(Node(f"sinks/{name}", NodeKind.SINK, f"sink {name}", config.type))
    graph.connect(group or channel_key(config.channel), sink)
    if place := _place(config):
        graph.connect(sink, graph.add(Node(f"sinks/{name}/place", NodeKind.PLACE, place)))
    if config.dead_letter_channel is not None:
        label = f"rejected {config.deliveries_max} times"
        graph.connect(sink, channel_key(config.dead_letter_channel), label, is_dead_letter=True)


def _add_callers(graph: FlowGraph) -> None:
    filled = {edge.head for edge in graph.edges}
    emptied = {edge.tail for edge in graph.edges}
    channels = [node.key for node in graph.nodes.values() if node.kind is NodeKind.CHANNEL]
    for channel in channels:
        if channel not in filled:
            graph.connect(graph.add(_CALLERS_IN), channel)
        if channel not in emptied:
            graph.connect(channel, graph.add(Node("callers/out", NodeKind.CALLERS, "callers")))


def _details(config: BaseModel) -> str:
    kind = str(getattr(config, "type", ""))
    return f"{kind}: {place}" if (place := _place(config)) else kind


def _place(config: BaseModel) -> str:
    """Returns where a source reads or a sink writes, without secrets; empty if no setting states it."""
    if command := _texts(getattr(config, "command", None)):
        # Its arguments may hold secrets.
        return command[0]
    if listeners := _texts(getattr(config, "listen", None)):
        return ", ".join(listeners)
    places = [text for one in _PLACE_FIELDS for text in _texts(getattr(config, one, None))]
    place = ", ".join(map(_without_secrets, places))
    target = getattr(config, "target_channel", None)
    return f"channel {target} of {place}" if target else place


def _texts(value: object) -> Sequence[str]:
    if value is None:
        return ()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [str(item) for item in value]
    return [str(value)]


def _without_secrets(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    host, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"
