from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace_server.cli import app
from millrace_server.cli.flow_drawings import draw_dot, draw_mermaid, draw_text
from millrace_server.cli.reporting import EXIT_USAGE
from millrace_server.configuration.flow_graph import FlowGraph, Node, NodeKind, _without_secrets, flow_graph
from millrace_server.configuration.settings import load_settings

FLOWS = """
[channels.orders]
type = "memory"
[channels.alerts]
type = "memory"
[channels.dead]
type = "file"
[channels.idle]
type = "file"

[sources.access]
type = "exec"
command = ["tail", "--password=secret", "/var/log/access.log"]
channels = ["orders", "alerts"]
interceptors = [{ type = "timestamp" }, { type = "static", key = "site", value = "a" }]
selector = { type = "multiplexing", header = "level", mapping = { ERROR = ["alerts"] }, default = ["orders"] }
dead_letter_channel = "dead"

[sources.app]
type = "embedded"
channels = ["orders"]

[sinks.collector]
type = "millrace"
channel = "orders"
endpoints = ["collector-1:7070", "collector-2:7070"]
target_channel = "orders"
dead_letter_channel = "dead"

[sinks.nowhere]
type = "null"
channel = "alerts"
"""

DRAWN = """\
source access (exec: tail)
├─ interceptors timestamp, static
│  └─ selector multiplexing by header level
│     ├─ all others: channel orders (memory)
│     │  └─ sink collector (millrace)
│     │     ├─ channel orders of collector-1:7070, collector-2:7070
│     │     └─ rejected 5 times: channel dead (file)
│     │        └─ callers
│     └─ ERROR: channel alerts (memory)
│        └─ sink nowhere (null)
└─ what cannot be stored: channel dead (file), as above
source app (embedded)
└─ channel orders (memory), as above
callers
└─ channel idle (file)
   └─ callers
"""

GROUP = """
[channels.orders]
type = "file"
[sinks.first]
type = "millrace"
channel = "orders"
endpoints = ["collector-1:7070"]
target_channel = "in"
[sinks.second]
type = "null"
channel = "orders"
[sink_groups.out]
sinks = ["first", "second"]
"""


def graph_of(directory: Path, toml: str) -> FlowGraph:
    path = directory / "millrace.toml"
    path.write_text(toml)
    return flow_graph(load_settings(path))


def test_draw_text_shows_each_flow_as_a_tree(tmp_path: Path) -> None:
    """The tree leads from the sources to the sinks; shared parts are drawn once; no secret is shown."""
    assert "\n".join(draw_text(graph_of(tmp_path, FLOWS))) + "\n" == DRAWN


def test_draw_text_of_a_sink_group_shows_its_sinks_behind_it(tmp_path: Path) -> None:
    """The group empties the channel for its sinks."""
    assert list(draw_text(graph_of(tmp_path, GROUP))) == [
        "callers",
        "└─ channel orders (file)",
        "   └─ sink group out (failover)",
        "      ├─ sink first (millrace)",
        "      │  └─ channel in of collector-1:7070",
        "      └─ sink second (null)",
    ]


def test_draw_text_of_flows_that_go_around_ends(tmp_path: Path) -> None:
    """Two channels that are each other's dead-letter channel do not make the drawing endless."""
    toml = """
        [channels.a]
        type = "memory"
        [channels.b]
        type = "memory"
        [sinks.a]
        type = "http"
        url = "http://127.0.0.1:9/"
        channel = "a"
        dead_letter_channel = "b"
        [sinks.b]
        type = "http"
        url = "http://127.0.0.1:9/"
        channel = "b"
        dead_letter_channel = "a"
    """
    assert list(draw_text(graph_of(tmp_path, toml))) == [
        "channel a (memory)",
        "└─ sink a (http)",
        "   ├─ http://127.0.0.1:9/",
        "   └─ rejected 5 times: channel b (memory)",
        "      └─ sink b (http)",
        "         ├─ http://127.0.0.1:9/",
        "         └─ rejected 5 times: channel a (memory), as above",
    ]


def test_draw_text_of_places_shows_where_and_nothing_secret(tmp_path: Path) -> None:
    """The targets of sinks and sources are shown without user names, passwords and queries."""
    toml = """
        [channels.orders]
        type = "file"
        [sources.web]
        type = "http"
        listen = "127.0.0.1:8080"
        path = "/events"
        channels = ["orders"]
        [sources.files]
        type = "taildir"
        paths = ["/var/log/*.log"]
        channels = ["orders"]
        [sinks.post]
        type = "http"
        channel = "orders"
        url = "https://collector/in?token=secret"
    """
    drawn = list(draw_text(graph_of(tmp_path, toml)))
    assert drawn[0] == "source web (http: 127.0.0.1:8080)"
    assert drawn[-2:] == ["source files (taildir: /var/log/*.log)", "└─ channel orders (file), as above"]
    assert drawn[3] == "      └─ https://collector/in"


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("s3://name:word@bucket/{header:host}", "s3://bucket/{header:host}"),
        ("ftp://name:w@rd@host/a?b@c#d", "ftp://host/a"),
        ("/var/log/a?b#c@d", "/var/log/a?b#c@d"),
    ],
)
def test_flow_graph_of_a_place_with_secrets_leaves_them_out(place: str, shown: str) -> None:
    """Drawings may be published."""
    assert _without_secrets(place) == shown


def test_draw_mermaid_draws_every_node_and_way(tmp_path: Path) -> None:
    """Each node and each edge is one line; edges of dead letters are dashed."""
    graph = graph_of(tmp_path, FLOWS)
    first, *lines = draw_mermaid(graph)
    assert first == "flowchart LR"
    assert len(lines) == len(graph.nodes) + len(graph.edges)
    assert '    n0[/"source access<br>exec: tail"/]' in lines
    assert '    n2 -->|"ERROR"| n5' in lines
    assert '    n0 -.->|"what cannot be stored"| n6' in lines


def test_draw_dot_draws_every_node_and_way(tmp_path: Path) -> None:
    """Each node and each edge is one line of a digraph."""
    graph = graph_of(tmp_path, FLOWS)
    first, second, *lines, last = draw_dot(graph)
    assert (first, second, last) == ("digraph flows {", "    rankdir=LR;", "}")
    assert len(lines) == len(graph.nodes) + len(graph.edges)
    assert r'    n0 [label="source access\nexec: tail", shape=cds];' in lines
    assert '    n0 -> n6 [label="what cannot be stored", style=dashed];' in lines


def test_drawings_of_hostile_names_stay_drawings() -> None:
    """Names cannot break out of a label or control a terminal."""
    graph = FlowGraph()
    graph.add(Node("a", NodeKind.SOURCE, 'x"]; <b> `&`\n\x1b[2J\\'))
    [text] = draw_text(graph)
    assert text.isprintable()
    _, mermaid = draw_mermaid(graph)
    assert mermaid == '    n0[/"x#quot;]; #lt;b#gt; #96;#amp;#96;\ufffd\ufffd[2J\\"/]'
    dot = list(draw_dot(graph))[2]
    assert dot == '    n0 [label="x\\"]; <b> `&`\ufffd\ufffd[2J\\\\", shape=cds];'


@pytest.mark.parametrize(
    ("arguments", "first"),
    [((), "source access"), (("--format", "mermaid"), "flowchart"), (("--format", "dot"), "digr")],
)
def test_graph_of_a_good_file_draws_it(tmp_path: Path, arguments: tuple[str, ...], first: str) -> None:
    """The default format is for a terminal; nothing is created."""
    path = tmp_path / "millrace.toml"
    path.write_text(FLOWS)
    result = CliRunner().invoke(app, ["graph", str(path), *arguments])
    assert result.exit_code == 0
    assert result.stdout.startswith(first)
    assert list(tmp_path.iterdir()) == [path]


def test_graph_of_a_bad_file_shows_its_problems(tmp_path: Path) -> None:
    """The output is that of `check`."""
    path = tmp_path / "millrace.toml"
    path.write_text("[sources.x]\ntype = 'nothing'\n")
    result = CliRunner().invoke(app, ["graph", str(path)])
    assert result.exit_code == EXIT_USAGE
    assert "sources.x.type" in result.stderr


def test_check_of_a_file_with_flows_sums_them_up(tmp_path: Path) -> None:
    """The sources and sinks of the channels are listed after them."""
    path = tmp_path / "millrace.toml"
    path.write_text(FLOWS)
    result = CliRunner().invoke(app, ["check", str(path)])
    assert result.stdout.splitlines()[-4:] == [
        "Source access: exec, fills orders and alerts through timestamp, static.",
        "Source app: embedded, fills orders.",
        "Sink collector: millrace, empties orders; after 5 rejections an event goes to dead.",
        "Sink nowhere: null, empties alerts.",
    ]


def test_check_of_a_file_with_a_sink_group_tells_its_sinks(tmp_path: Path) -> None:
    """Groups come last, after their sinks."""
    path = tmp_path / "millrace.toml"
    path.write_text(GROUP)
    result = CliRunner().invoke(app, ["check", str(path)])
    assert result.stdout.splitlines()[-1] == "Sink group out: failover, of first and second."
