"""The dashboard for Grafana, for tests."""

import json
from collections.abc import Iterator
from typing import Any

from tests.unit.repository.checkout import ROOT

Panel = dict[str, Any]

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy" / "grafana" / "millrace.json").read_text())

_SELECTED = {"$instance": ".*", "$channel": ".*", "$__rate_interval": "10s"}


def panels_of(*types: str) -> Iterator[Panel]:
    """The panels of these types, in order."""
    return (panel for panel in DASHBOARD["panels"] if panel["type"] in types)


def queries_of(panel: Panel) -> list[str]:
    """The queries of a panel as Grafana sends them, for all servers and channels."""
    queries = [str(target["expr"]) for target in panel["targets"]]
    for variable, value in _SELECTED.items():
        queries = [query.replace(variable, value) for query in queries]
    return queries
