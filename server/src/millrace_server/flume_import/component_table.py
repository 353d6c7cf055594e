"""The table of Flume's components and their properties, from `components.toml`."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

OWN = "own"
"""The way of reading a property that is converted by the code of its component."""
CHOICE = "choice"
"""The way of reading a property that has one of a few values."""

_READ_BY_TABLE = ("text", "number", "seconds", "milliseconds", "flag")
_GROUPS, _KAFKA_CLIENT = "group", "kafka client"
"""The tables that do not contain components."""


class Row(NamedTuple):
    """A property of a component, and its conversion; exactly one of `to`, `unneeded` and `missing` is set."""

    name: str
    to: str = ""
    """The setting to which it is converted."""
    read_as: str = "text"
    choices: Mapping[str, str] = {}
    """The values that it may have, and those to which they are converted."""
    default: object = None
    """The value to which Flume's default is converted, if the setting's default differs."""
    unneeded: str = ""
    """Why nothing is lost without it."""
    missing: str = ""
    """What to do if it is used, since it has no counterpart."""


class Component(NamedTuple):
    """A type of component."""

    kind: str
    types: list[str]
    """Its names: the short one first, then those of its classes."""
    rows: list[Row]
    becomes: str = ""
    """The type of its counterpart; empty if there is none."""
    advice: str = ""
    """What to do if it has no counterpart."""
    changed: str = ""
    """What differs in every use."""

    @property
    def name(self) -> str:
        """The short name of the type."""
        return self.types[0]

    def row_of(self, key: str) -> Row | None:
        """Returns the row of a property; an exact name takes precedence over patterns."""
        exact = next((row for row in self.rows if row.name == key), None)
        return exact or next((row for row in self.rows if _pattern(row.name).fullmatch(key)), None)


@cache
def all_components() -> list[Component]:
    """Returns all components of the table."""
    kinds = [kind for kind in _table() if kind not in {_GROUPS, _KAFKA_CLIENT}]
    return [_component(kind, name, entry) for kind in kinds for name, entry in _table()[kind].items()]


def find_component(kind: str, type_name: str) -> Component:
    """Returns a component by the short name of its type, in any case, or its class; if unknown, a user-defined one."""
    known = _components_by_type().get((kind, type_name.lower()))
    return known or _component(kind, type_name, {"advice": _table()[_GROUPS][kind]["advice"]})


@cache
def _components_by_type() -> dict[tuple[str, str], Component]:
    return {(component.kind, name.lower()): component for component in all_components() for name in component.types}


@cache
def kafka_client() -> Component:
    """Returns the properties of Kafka's Java clients; all others have the same name in librdkafka."""
    return _component(_KAFKA_CLIENT, _KAFKA_CLIENT, _table()[_KAFKA_CLIENT])


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "components.toml").read_text(encoding="utf-8"))


def _component(kind: str, name: str, entry: Mapping[str, Any]) -> Component:
    groups = _table()[_GROUPS]
    # A component's own entries take precedence over those that it shares with others.
    parts = [groups.get(kind, {}), *(groups[group] for group in entry.get("includes", [])), entry]
    rows = {row.name: row for part in parts for row in _rows(part)}
    said = {key: entry.get(key, "") for key in ("becomes", "advice", "changed")}
    return Component(kind, [name, *entry.get("classes", [])], list(rows.values()), **said)


def _rows(entry: Mapping[str, Any]) -> Iterator[Row]:
    defaults = entry.get("default", {})
    for read_as in _READ_BY_TABLE:
        for name, setting in entry.get(read_as, {}).items():
            yield Row(name, setting, read_as, default=defaults.get(name))
    for name, choices in entry.get(CHOICE, {}).items():
        for setting, values in choices.items():
            yield Row(name, setting, CHOICE, values, defaults.get(name))
    for setting, names in entry.get(OWN, {}).items():
        yield from (Row(name, setting, OWN) for name in names.split())
    for why, names in entry.get("unneeded", {}).items():
        yield from (Row(name, unneeded=why) for name in names.split())
    for advice, names in entry.get("missing", {}).items():
        yield from (Row(name, missing=advice) for name in names.split())


@cache
def _pattern(name: str) -> re.Pattern[str]:
    pattern = re.sub(r"<\w+>", "[^.]+", re.escape(name))
    if pattern.endswith(r"\*"):
        pattern = pattern.removesuffix(r"\*") + ".+"
    return re.compile(pattern, re.DOTALL)
