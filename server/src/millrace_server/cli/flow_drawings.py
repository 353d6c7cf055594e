"""A graph of flows as text for a terminal, for Mermaid and for Graphviz."""

from collections.abc import Iterator

from millrace_server.cli.flow_graph import Edge, FlowGraph, Node, NodeKind

_MERMAID_SHAPES = {
    NodeKind.CALLERS: ("([", "])"),
    NodeKind.SOURCE: ("[/", "/]"),
    NodeKind.STEP: ("[", "]"),
    NodeKind.CHANNEL: ("[(", ")]"),
    NodeKind.GROUP: ("{{", "}}"),
    NodeKind.SINK: ("[\\", "\\]"),
    NodeKind.PLACE: ("([", "])"),
}
_DOT_SHAPES = {
    NodeKind.CALLERS: "ellipse",
    NodeKind.SOURCE: "cds",
    NodeKind.STEP: "box",
    NodeKind.CHANNEL: "cylinder",
    NodeKind.GROUP: "hexagon",
    NodeKind.SINK: "cds",
    NodeKind.PLACE: "ellipse",
}


def draw_text(graph: FlowGraph) -> Iterator[str]:
    """The lines of trees, one for each beginning of a flow. What a tree shares with one above it is drawn there."""
    drawn: set[str] = set()
    # Flows that only go around have no beginning; they are drawn from anywhere.
    for key in (*graph.roots(), *graph.nodes):
        if key not in drawn:
            yield from _draw_tree(graph, key, drawn)


def _draw_tree(graph: FlowGraph, key: str, drawn: set[str]) -> Iterator[str]:
    ways = graph.ways_from(key)
    title = _title_of(graph.nodes[key])
    if key in drawn and ways:
        yield f"{title}, as above"
        return
    drawn.add(key)
    yield title
    for number, way in enumerate(ways, start=1):
        first, rest = ("└─ ", "   ") if number == len(ways) else ("├─ ", "│  ")
        head, *below = _draw_tree(graph, way.head, drawn)
        yield f"{first}{_prefix_of(way)}{head}"
        yield from (f"{rest}{line}" for line in below)


def _title_of(node: Node) -> str:
    return _one_line(f"{node.title} ({node.details})" if node.details else node.title)


def _prefix_of(way: Edge) -> str:
    return f"{_one_line(way.label)}: " if way.label else ""


def draw_mermaid(graph: FlowGraph) -> Iterator[str]:
    """The lines of a Mermaid flowchart."""
    yield "flowchart LR"
    numbers = {key: f"n{number}" for number, key in enumerate(graph.nodes)}
    for key, node in graph.nodes.items():
        opening, closing = _MERMAID_SHAPES[node.kind]
        lines = "<br>".join(_mermaid_text(line) for line in (node.title, node.details) if line)
        yield f'    {numbers[key]}{opening}"{lines}"{closing}'
    for way in graph.edges:
        arrow = "-.->" if way.is_detour else "-->"
        label = f'|"{_mermaid_text(way.label)}"|' if way.label else ""
        yield f"    {numbers[way.tail]} {arrow}{label} {numbers[way.head]}"


def _mermaid_text(text: str) -> str:
    """Text between quotes, where Mermaid reads HTML and, behind a `#`, names of characters."""
    special = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"}
    return "".join(special.get(character, character) for character in _one_line(text))


def draw_dot(graph: FlowGraph) -> Iterator[str]:
    """The lines of a Graphviz digraph."""
    yield "digraph flows {"
    yield "    rankdir=LR;"
    numbers = {key: f"n{number}" for number, key in enumerate(graph.nodes)}
    for key, node in graph.nodes.items():
        label = r"\n".join(_dot_text(line) for line in (node.title, node.details) if line)
        yield f'    {numbers[key]} [label="{label}", shape={_DOT_SHAPES[node.kind]}];'
    for way in graph.edges:
        style = ", style=dashed" if way.is_detour else ""
        yield f'    {numbers[way.tail]} -> {numbers[way.head]} [label="{_dot_text(way.label)}"{style}];'
    yield "}"


def _dot_text(text: str) -> str:
    return _one_line(text).replace("\\", "\\\\").replace('"', '\\"')


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
