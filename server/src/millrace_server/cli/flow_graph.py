"""The flows of a configuration as a graph: what events come from, what they pass, and where they go."""

import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel

from millrace_server.agent.selectors import MultiplexingConfig
from millrace_server.agent.settings import AnySinkConfig, AnySourceConfig
from millrace_server.configuration.settings import Settings

_PLACE_FIELDS = ("paths", "path", "directory", "url", "endpoints")
"""Settings that say where a source's events are, or where a sink's go."""

_COMMAND_FIELD = "command"
_LISTEN_FIELD = "listen"
_TARGET_FIELD = "target_channel"


class NodeKind(enum.Enum):
    """What a node stands for."""

    CALLERS = "callers"
    """Programs, by gRPC."""
    SOURCE = "source"
    STEP = "step"
    """Interceptors, or a selector."""
    CHANNEL = "channel"
    GROUP = "sink group"
    SINK = "sink"
    PLACE = "place"
    """Where a sink's events go."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node."""

    key: str
    """Its own in the graph."""
    kind: NodeKind
    title: str
    """What it is, such as `channel orders`."""
    details: str = ""
    """What else is worth knowing, in a few words."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A way that events take."""

    tail: str
    """The key of the node that they leave."""
    head: str
    """The key of the node that they reach."""
    label: str = ""
    """Which events; empty for all of them."""
    is_detour: bool = False
    """Whether only those take it that cannot go the right way."""


@dataclass(slots=True)
class FlowGraph:
    """Nodes and the ways between them, in the order of the configuration."""

    nodes: dict[str, Node] = field(default_factory=dict)
    edges: list[Edge] = field(default_factory=list)

    def add(self, node: Node) -> str:
        """Adds a node where it is not there yet; returns its key."""
        self.nodes.setdefault(node.key, node)
        return node.key

    def connect(self, tail: str, head: str, label: str = "", *, is_detour: bool = False) -> None:
        """Adds a way."""
        self.edges.append(Edge(tail, head, label, is_detour))

    def ways_from(self, key: str) -> list[Edge]:
        """The ways that leave a node."""
        return [edge for edge in self.edges if edge.tail == key]

    def roots(self) -> list[str]:
        """The nodes that no way reaches."""
        reached = {edge.head for edge in self.edges}
        return [key for key in self.nodes if key not in reached]


def flow_graph(settings: Settings) -> FlowGraph:
    """The graph of a configuration; callers are in it where nothing else fills or empties a channel."""
    graph = FlowGraph()
    for name, source in settings.sources.items():
        _add_source(graph, name, source)
    for name, channel in settings.channels.items():
        graph.add(Node(_channel_key(name), NodeKind.CHANNEL, f"channel {name}", channel.type))
    groups = _add_groups(graph, settings)
    for name, sink in settings.sinks.items():
        _add_sink(graph, name, sink, groups.get(name))
    _add_callers(graph)
    return graph


def _channel_key(name: str) -> str:
    return f"channels/{name}"


def _add_source(graph: FlowGraph, name: str, config: AnySourceConfig) -> None:
    end = source = graph.add(Node(f"sources/{name}", NodeKind.SOURCE, f"source {name}", _details(config)))
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
        graph.connect(end, _channel_key(channel), _condition(config, channel))
    if config.dead_letter_channel is not None:
        graph.connect(source, _channel_key(config.dead_letter_channel), "what cannot be stored", is_detour=True)


def _condition(config: AnySourceConfig, channel: str) -> str:
    selector = config.selector
    conditions = list(_conditions(selector, channel)) if isinstance(selector, MultiplexingConfig) else []
    if channel in selector.optional_channels:
        conditions.append("optional")
    return ", ".join(conditions)


def _conditions(selector: MultiplexingConfig, channel: str) -> Iterator[str]:
    for ways in (selector.mapping, selector.optional):
        yield from (value for value, channels in ways.items() if channel in channels)
    if channel in selector.default:
        yield "all others"


def _add_groups(graph: FlowGraph, settings: Settings) -> dict[str, str]:
    """Adds all sink groups; returns the key of its group for each sink that is in one."""
    groups: dict[str, str] = {}
    for name, group in settings.sink_groups.items():
        key = graph.add(Node(f"sink_groups/{name}", NodeKind.GROUP, f"sink group {name}", group.policy))
        graph.connect(_channel_key(settings.sinks[group.sinks[0]].channel), key)
        groups |= dict.fromkeys(group.sinks, key)
    return groups


def _add_sink(graph: FlowGraph, name: str, config: AnySinkConfig, group: str | None) -> None:
    sink = graph.add(Node(f"sinks/{name}", NodeKind.SINK, f"sink {name}", config.type))
    graph.connect(group or _channel_key(config.channel), sink)
    if place := _place(config):
        graph.connect(sink, graph.add(Node(f"sinks/{name}/place", NodeKind.PLACE, place)))
    if config.dead_letter_channel is not None:
        label = f"rejected {config.deliveries_max} times"
        graph.connect(sink, _channel_key(config.dead_letter_channel), label, is_detour=True)


def _add_callers(graph: FlowGraph) -> None:
    filled = {edge.head for edge in graph.edges}
    emptied = {edge.tail for edge in graph.edges}
    channels = [node.key for node in graph.nodes.values() if node.kind is NodeKind.CHANNEL]
    for channel in channels:
        if channel not in filled:
            graph.connect(graph.add(Node("callers/in", NodeKind.CALLERS, "callers")), channel)
        if channel not in emptied:
            graph.connect(channel, graph.add(Node("callers/out", NodeKind.CALLERS, "callers")))


def _details(config: BaseModel) -> str:
    kind = str(getattr(config, "type", ""))
    return f"{kind}: {place}" if (place := _place(config)) else kind


def _place(config: BaseModel) -> str:
    """Where a source's events are, or a sink's go; empty where its settings do not say. Nothing secret is shown."""
    if command := _texts(getattr(config, _COMMAND_FIELD, None)):
        # Its arguments may hold secrets.
        return command[0]
    if listeners := _texts(getattr(config, _LISTEN_FIELD, None)):
        return ", ".join(listeners)
    places = [text for one in _PLACE_FIELDS for text in _texts(getattr(config, one, None))]
    place = ", ".join(map(_without_secrets, places))
    target = getattr(config, _TARGET_FIELD, None)
    return f"channel {target} of {place}" if target else place


def _texts(value: object) -> Sequence[str]:
    if value is None:
        return ()
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        return [str(item) for item in value]
    return [str(value)]


def _without_secrets(text: str) -> str:
    """A place without what a URL may hold beside it: a name and a password, a query, a fragment."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text
    host, slash, path = re.split(r"[?#]", rest, maxsplit=1)[0].partition("/")
    return f"{scheme}{separator}{host.rpartition('@')[2]}{slash}{path}"
