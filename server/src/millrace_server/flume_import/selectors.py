"""Conversion of Flume's channel selectors."""

from collections.abc import Iterable
from functools import partial

from millrace_server.flume_import.component_table import find_component
from millrace_server.flume_import.conversion import convert
from millrace_server.flume_import.options import Options, Table

_Channels = dict[str, list[str]]


def convert_selector(source: Options, channels: list[str]) -> Table | None:
    """Returns the table of a source's selector; None for the default, which sends every event to every channel."""
    options = source.subset("selector", "selector")
    component = find_component("selector", options.text("type", "replicating"))
    own = {"replicating": _replicating, "multiplexing": _multiplexing}.get(component.name)
    table = convert(component, options, own and partial(own, channels))
    return None if table == {"type": "replicating"} else table


def _replicating(channels: list[str], options: Options, table: Table) -> None:
    optional = _known(options, "optional", channels)
    if optional:
        table["optional"] = optional


def _multiplexing(channels: list[str], options: Options, table: Table) -> None:
    default = _known(options, "default", channels)
    mapping = _by_value(options, "mapping", channels)
    optional = _by_value(options, "optional", channels)
    # An event whose value has only optional channels goes to the default channels too.
    required = set().union(default, *mapping.values())
    for value, names in list(optional.items()):
        _resolve_overlap(options, value, names, mapping, (default, required))
    table["mapping"] = mapping
    if default:
        table["default"] = default
    else:
        options.advise("default", "there is none: events that match nothing are dropped, and counted", "selector")
    if optional := {value: left for value, names in optional.items() if (left := _without(names, required))}:
        table["optional"] = optional


def _resolve_overlap(
    options: Options, value: str, names: list[str], mapping: _Channels, default_and_required: tuple[list[str], set[str]]
) -> None:
    """Makes channels required that are optional for one value but required for another, since they cannot be both.

    So no event is lost that Flume would have stored, but while such a channel is full, the source waits.
    """
    default, required = default_and_required
    own = mapping.get(value, default)
    moved = [name for name in names if name in required and name not in own]
    if moved:
        mapping[value] = [*own, *moved]
        sentence = f"{' and '.join(moved)} is required here, as it is for other events: the source waits for it"
        options.changed(f"optional.{value}", sentence, "selector")


def _by_value(options: Options, key: str, channels: list[str]) -> _Channels:
    subset = options.subset(key, "selector")
    named = {value: _known(subset, value, channels) for value in subset.unread()}
    return {value: names for value, names in named.items() if names}


def _known(options: Options, key: str, channels: list[str]) -> list[str]:
    """Returns the channels that a property lists, without those that the source does not have."""
    named = options.channels(key)
    if unknown := _without(named, channels):
        options.left_out(key, f"lists {' and '.join(unknown)}, which is not a channel of the source")
    return [name for name in named if name in channels]


def _without(names: Iterable[str], others: Iterable[str]) -> list[str]:
    excluded = set(others)
    return [name for name in names if name not in excluded]
