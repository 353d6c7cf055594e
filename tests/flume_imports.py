"""Imports of Flume agents, for tests."""

import tomllib
from pathlib import Path
from typing import Any

from millrace_server.configuration.settings import check_settings
from millrace_server.flume_import import ImportedAgent, ImportSettings, Outcome, import_agent, parse_properties

EXAMPLES = Path(__file__).parent / "flume_guide" / "examples"
"""The examples of Flume's user guide, with what they leave out."""

CHANNEL = """
a.channels = c
a.channels.c.type = memory
"""
"""An agent with a channel."""


def example(name: str) -> str:
    return (EXAMPLES / f"{name}.properties").read_text(encoding="utf-8")


def imported(text: str, agent: str | None = None, **settings: Any) -> ImportedAgent:
    return import_agent(parse_properties(text), agent, ImportSettings(**settings))


def tables_of(text: str, **settings: Any) -> dict[str, Any]:
    """The resulting configuration, which must be valid."""
    tables = tomllib.loads(imported(text, **settings).toml())
    check_settings(tables, "imported")
    return tables


def source_of(lines: str, **settings: Any) -> dict[str, Any]:
    """The valid table of a source `s` with these properties, each without `a.sources.s.`."""
    source: dict[str, Any] = tables_of(source_text(lines), **settings)["sources"]["s"]
    return source


def source_text(lines: str) -> str:
    """An agent with a channel `c` and a source `s` of these properties."""
    properties = "\n".join(f"a.sources.s.{line.strip()}" for line in lines.strip().splitlines())
    return f"{CHANNEL}a.sources = s\na.sources.s.channels = c\n{properties}\n"


def sink_text(lines: str) -> str:
    """An agent with a channel `c` and a sink `k` of these properties, each without `a.sinks.k.`."""
    properties = "\n".join(f"a.sinks.k.{line.strip()}" for line in lines.strip().splitlines())
    return f"{CHANNEL}a.sinks = k\na.sinks.k.channel = c\n{properties}\n"


def sink_of(lines: str, **settings: Any) -> dict[str, Any]:
    """The valid table of a sink `k` with these properties."""
    sink: dict[str, Any] = tables_of(sink_text(lines), **settings)["sinks"]["k"]
    return sink


def notes_of(text: str, **settings: Any) -> dict[str, str]:
    """The last sentence about each property."""
    return {note.key: note.sentence for note in imported(text, **settings).notes}


def outcomes_of(text: str, **settings: Any) -> dict[str, Outcome]:
    return dict(imported(text, **settings).ledger.outcomes)
