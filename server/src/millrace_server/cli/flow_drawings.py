"""Drawings of a flow graph: text for a terminal, Mermaid and Graphviz."""

from collections.abc import Iterator

from millrace_server.configuration.flow_graph import FlowGraph, NodeKind

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
    """Yields the lines of trees, one for each root. A subtree is drawn once, in the first tree that has it."""
    drawn: set[str] = set()
    # A cycle without a root is drawn from any of its nodes.
    for key in (*graph.roots(), *graph.nodes):
        if key not in drawn:
            yield from _draw_tree(graph, key, drawn)


def _draw_tree(graph: FlowGraph, key: str, drawn: set[str]) -> Iterator[str]:
    edges = graph.edges_from(key)
    node = graph.nodes[key]
    title = _one_line(f"{node.title} ({node.details})" if node.details else node.title)
    if key in drawn and edges:
        yield f"{title}, as above"
        return
    drawn.add(key)
    yield title
    for number, edge in enumerate(edges, start=1):
        first, rest = ("└─ ", "   ") if number == len(edges) else ("├─ ", "│  ")
        head, *below = _draw_tree(graph, edge.head, drawn)
        label = f"{_one_line(edge.label)}: " if edge.label else ""
        yield f"{first}{label}{head}"
        yield from (f"{rest}{line}" for line in below)


def draw_mermaid(graph: FlowGraph) -> Iterator[str]:
    """Yields the lines of a Mermaid flowchart."""
    yield "flowchart LR"
    numbers = {key: f"n{number}" for number, key in enumerate(graph.nodes)}
    for key, node in graph.nodes.items():
        opening, closing = _MERMAID_SHAPES[node.kind]
        lines = "<br>".join(_mermaid_text(line) for line in (node.title, node.details) if line)
        yield f'    {numbers[key]}{opening}"{lines}"{closing}'
    for edge in graph.edges:
        arrow = "-.->" if edge.is_dead_letter else "-->"
        label = f'|"{_mermaid_text(edge.label)}"|' if edge.label else ""
        yield f"    {numbers[edge.tail]} {arrow}{label} {numbers[edge.head]}"


def _mermaid_text(text: str) -> str:
    """Escapes text for Mermaid's quotes, which interpret HTML and, after `#`, character names."""
    special = {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;"}
    return "".join(special.get(character, character) for character in _one_line(text))


def draw_dot(graph: FlowGraph) -> Iterator[str]:
    """Yields the lines of a Graphviz digraph."""
    yield "digraph flows {"
    yield "    rankdir=LR;"
    numbers = {key: f"n{number}" for number, key in enumerate(graph.nodes)}
    for key, node in graph.nodes.items():
        label = r"\n".join(_dot_text(line) for line in (node.title, node.details) if line)
        yield f'    {numbers[key]} [label="{label}", shape={_DOT_SHAPES[node.kind]}];'
    for edge in graph.edges:
        style = ", style=dashed" if edge.is_dead_letter else ""
        yield f'    {numbers[edge.tail]} -> {numbers[edge.head]} [label="{_dot_text(edge.label)}"{style}];'
    yield "}"


def _dot_text(text: str) -> str:
    return _one_line(text).replace("\\", "\\\\").replace('"', '\\"')


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
