"""The table of Flume's components and their properties, from `components.toml`."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

OWN = "own"
"""How a property is read that the code of its component converts."""


class Row(NamedTuple):
    """A property of a component, and what becomes of it; exactly one of `to`, `unneeded` and `missing` is set."""

    name: str
    pattern: re.Pattern[str]
    to: str = ""
    """The setting that it is converted to."""
    read_as: str = "text"
    choices: Mapping[str, str] | None = None
    """The values that it may have, and what they become."""
    default: object = None
    """Flume's default, where it is written since the default here is another one."""
    changed: str = ""
    """How the meaning differs."""
    unneeded: str = ""
    missing: str = ""


class Component(NamedTuple):
    """A type of components."""

    kind: str
    types: list[str]
    becomes: str
    """The type here; empty if it has no counterpart."""
    advice: str
    """What to do if it has none."""
    changed: str
    """What differs for all of its users."""
    rows: list[Row]

    @property
    def name(self) -> str:
        """The short name of the type."""
        return self.types[0]

    def row_of(self, key: str) -> Row | None:
        """Returns the row of a property; one whose name is exactly this precedes patterns."""
        exact = next((row for row in self.rows if row.name == key), None)
        return exact or next((row for row in self.rows if row.pattern.fullmatch(key)), None)


@cache
def all_components() -> list[Component]:
    """Returns all components of the table."""
    return [_component(entry, _table()["groups"]) for entry in _table()["component"]]


def find_component(kind: str, type_name: str) -> Component:
    """Returns the component of a type, by its short name in any case or its class; if unknown one of a user's own."""
    wanted = type_name.lower()
    for component in all_components():
        if component.kind == kind and wanted in map(str.lower, component.types):
            return component
    return _unknown(kind, type_name)


_CUSTOM_GROUPS = {"source": "source", "sink": "sink", "selector": "type", "interceptor": "type", "channel": "channel"}
"""The properties of components of a user's own, by kind."""

_ADVICE = {
    "channel": "there are channels of type memory, file, spillable and replicated",
    "serializer": "bodies are written as lines of text; parse them where the files are read",
    "sink processor": "each of its sinks empties the channel",
    "configuration filter": "fill in the values by hand",
}


def _unknown(kind: str, type_name: str) -> Component:
    article = "an" if kind.startswith("i") else "a"
    advice = _ADVICE.get(kind, f"write {article} {kind} of type custom in Python")
    group = _table()["groups"].get(_CUSTOM_GROUPS.get(kind, ""), {})
    return Component(kind, [type_name], "", advice, "", [_row(name, entry) for name, entry in group.items()])


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "components.toml").read_text(encoding="utf-8"))


class KafkaProperties(NamedTuple):
    """What becomes of the properties of Kafka's Java clients; those of none of these keep their names."""

    renamed: Mapping[str, str]
    unneeded: Mapping[str, str]
    """Why, by property."""
    missing: Mapping[str, str]
    """What to do, by property."""


def kafka_properties() -> KafkaProperties:
    """Returns what becomes of the properties of Kafka's Java clients."""
    return KafkaProperties(*(_table()[f"kafka_{part}"] for part in ("names", "unneeded", "missing")))


def _component(entry: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]) -> Component:
    # What a component says of itself precedes what it shares with others.
    properties = dict(entry.get("properties", {}))
    for group in entry.get("includes", []):
        properties = {**groups[group], **properties}
    rows = [_row(name, row) for name, row in properties.items()]
    becomes, advice, changed = (entry.get(key, "") for key in ("becomes", "advice", "changed"))
    return Component(entry["kind"], entry["types"], becomes, advice, changed, rows)


def _row(name: str, entry: Mapping[str, Any]) -> Row:
    values = dict(entry)
    return Row(name, _pattern(name), read_as=values.pop("as", "text"), **values)


def _pattern(name: str) -> re.Pattern[str]:
    pattern = re.sub(r"<\w+>", "[^.]+", re.escape(name))
    if pattern.endswith(r"\*"):
        pattern = pattern.removesuffix(r"\*") + ".+"
    return re.compile(pattern, re.DOTALL)
