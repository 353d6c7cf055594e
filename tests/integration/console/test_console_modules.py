"""The modules of the console's page that only calculate, in the browser that runs them."""

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.integration.browser import Console
from tests.millraced import Millraced


@pytest.fixture(scope="module")
def config_toml() -> str:
    return ""


@pytest.fixture(scope="module")
def page(chromium: Browser, server: Millraced) -> Iterator[Page]:
    """One tab for all tests."""
    opened = Console(chromium, server.http)
    opened.page.goto("/")
    yield opened.page
    opened.close()


def call(page: Page, module: str, function: str, *arguments: object) -> Any:
    """What a function of a module returns."""
    script = "async ([path, name, args]) => (await import(path))[name](...args)"
    return page.evaluate(script, [f"/console/{module}.js", function, list(arguments)])


@pytest.mark.parametrize(
    ("function", "value", "shown"),
    [
        ("count", 1234567, "1,234,567"),
        ("count", None, "\N{EN DASH}"),
        ("compact", 1234567, "1.23M"),
        ("percent", 0, "0%"),
        ("percent", 0.00001, "< 0.1%"),
        ("percent", 0.0512, "5.1%"),
        ("percent", 1, "100%"),
        ("rate", 0, "0/s"),
        ("rate", 0.01, "< 0.1/s"),
        ("rate", 9.96, "10.0/s"),
        ("rate", 1234, "1.23K/s"),
        ("bytes", 0, "0 B"),
        ("bytes", 1536, "1.5 KiB"),
        ("bytes", 2**63, "8192 PiB"),
        ("duration", -1, "0 s"),
        ("duration", 0.42, "0.4 s"),
        ("duration", 59.7, "1 min"),
        ("duration", 3 * 86_400 + 7_265, "3 d 2 h"),
        ("duration", 1e12, "over a year"),
        ("ago", 0.5, "just now"),
        ("ago", 90, "1 min 30 s ago"),
    ],
)
def test_figure_formatted_for_people_is_short(page: Page, function: str, value: float | None, shown: str) -> None:
    """Figures have a unit, few digits, and a dash where nothing is known."""
    assert call(page, "format", function, value) == shown


@pytest.mark.parametrize(
    ("text", "indented"),
    [
        ('{"a":12345678901234567890,"b":[]}', '{\n  "a": 12345678901234567890,\n  "b": []\n}'),
        ('[1.0, {"x\\"{[": "},:"}]', '[\n  1.0,\n  {\n    "x\\"{[": "},:"\n  }\n]'),
        ("{} ", "{}"),
        ('{"a":1', None),
        ("17", None),
    ],
)
def test_json_of_a_body_is_indented_and_not_changed(page: Page, text: str, indented: str | None) -> None:
    """Every token stays as it was sent; what is no object and no array is no JSON worth a form of its own."""
    assert call(page, "body", "indentedJson", text) == indented


def test_flow_with_cycles_and_long_edges_is_laid_out_without_overlaps(page: Page) -> None:
    """Each node has a place of its own, and a line that passes columns a free place in each of them."""
    kinds = {"channel": "cd", "callers": "i", "sink": "kl", "sink_group": "g", "source": "s"}
    nodes = [{"key": key, "kind": kind, "title": key, "name": key} for kind, keys in kinds.items() for key in keys]
    # k sends its dead letters back to d, and there is no x.
    pairs = ["ic", "sc", "sd", "cg", "gk", "dl", "kd", "cx"]
    edges = [{"from": pair[0], "to": pair[1], "is_dead_letter": pair == "kd"} for pair in pairs]
    # Nodes know each other, which makes the response a graph that only the browser can hold.
    script = """async (graph) => {
        const { nodes, edges } = (await import("/console/flow_layout.js")).layOut(graph);
        return [nodes.map(({ x, y }) => [x, y]), edges.map(({ way }) => way.map(({ x, y }) => [x, y]))];
    }"""
    places, ways = page.evaluate(script, {"nodes": nodes, "edges": edges})
    assert len({(x, y) for x, y in places}) == len(nodes)
    assert len(ways) == len(edges) - 1
    between = [(x, y) for way in ways for x, y in way[1:-1]]
    assert between
    assert not {(x, y) for x, y in places} & set(between)


def _channel(key: str, severity: str | None = None, rate: float | None = None) -> dict[str, object]:
    return {"key": key, "kind": "channel", "severity": severity, "rate": rate, "take_rate": None}


def test_flow_of_many_channels_keeps_those_that_matter(page: Page) -> None:
    """Of the channels that only clients use it shows those in trouble, then the busy ones; and all with components."""
    quiet = [_channel(f"q{number}") for number in range(100)]
    channels = [*quiet, _channel("busy", rate=5.0), _channel("troubled", severity="error"), _channel("fed")]
    others = [{"key": "clients", "kind": "callers"}, {"key": "source", "kind": "source"}]
    edges = [{"from": "clients", "to": one["key"]} for one in channels] + [{"from": "source", "to": "fed"}]
    kept = call(page, "flow_layout", "withoutQuiet", {"nodes": [*others, *channels], "edges": edges})
    assert {"troubled", "busy", "fed", "source", "clients"} < {node["key"] for node in kept["nodes"]}
    assert len(kept["nodes"]) + kept["quietCount"] == len(channels) + len(others)
    assert kept["quietCount"] == len(quiet) + 2 - 20
    assert {edge["to"] for edge in kept["edges"]} <= {node["key"] for node in kept["nodes"]}
