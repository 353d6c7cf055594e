"""The dashboard for Grafana, as a file."""

import itertools
import json
import re

from tests.dashboard import DASHBOARD, Panel, panels_of, queries_of

VARIABLES = {"datasource", "instance", "channel"}
GRID_COLUMNS = 24


def test_dashboard_names_only_variables_that_it_has() -> None:
    """Each panel and variable uses the selected data source, and Grafana's own interval besides."""
    assert [one["name"] for one in DASHBOARD["templating"]["list"]] == ["datasource", "instance", "channel"]
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) == {*VARIABLES, "__rate_interval", "__all"}
    for panel in panels_of("stat", "timeseries", "table"):
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]


def test_dashboard_read_by_grafana_is_complete() -> None:
    """Each panel has its own number, a title and queries with names of their own; descriptions are sentences."""
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(numbers) == len(set(numbers))
    assert DASHBOARD["schemaVersion"] >= 36
    rows = [panel["title"] for panel in panels_of("row")]
    assert rows == ["Overview", "Channels", "Log and disk", "RPC latency", "Components", "Clients and quotas"]
    for panel in panels_of("stat", "timeseries", "table"):
        references = [target["refId"] for target in panel["targets"]]
        assert len(references) == len(set(references)) > 0, panel["title"]
        assert panel["description"] == "" or panel["description"].endswith("."), panel["title"]


def test_columns_of_tables_are_joined_by_the_same_labels() -> None:
    """Grafana makes one row of values whose labels are alike, and a metric's name is a label unless it is summed."""
    for panel in panels_of("table"):
        queries = queries_of(panel)
        assert len(queries) == 1 or all(query.startswith("sum by (instance, ") for query in queries), panel["title"]


def _cells(panel: Panel) -> set[tuple[int, int]]:
    place = panel["gridPos"]
    columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
    return set(itertools.product(columns, rows))


def test_panels_on_the_grid_do_not_overlap() -> None:
    """Each has its place within the width of the dashboard."""
    used: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        cells = _cells(panel)
        assert not cells & used, panel["title"]
        assert max(column for column, _ in cells) < GRID_COLUMNS
        used |= cells
