"""Checks across the tables of a configuration: names of channels, and addresses."""

import difflib
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from millrace.setting_problems import choices_of, fields_of, shown_path, shown_value, unwrapped
from millrace_server.agent.setting_types import ChannelReference
from millrace_server.agent.sources.source import SourceConfig
from millrace_server.network.addresses import Address

_SHOWN_NAMES_MAX = 10


_Path = tuple[int | str, ...]


class _Names(NamedTuple):
    """The channels that may be named."""

    known: list[str]
    """Those of the configuration."""
    own: list[str]
    """What the source that is looked at has as its channels."""
    source: _Path
    """Where that is."""


def unknown_channels(tables: Mapping[str, Any], model: type[BaseModel]) -> list[str]:
    """A sentence for each name that is none of a channel that may stand there.

    What else may be wrong with the configuration hides none of them; whether a name is one at all is not looked at.

    Args:
        tables: The configuration, as TOML has it.
        model: What declares it.
    """
    channels = tables.get("channels", {})
    if not isinstance(channels, dict):
        return []
    return list(_problems((), tables, model, _Names(_texts(list(channels)), [], ())))


def _problems(path: _Path, value: object, declared: object, names: _Names) -> Iterator[str]:
    annotation, metadata = unwrapped(declared)
    field, choices = choices_of(declared)
    if isinstance(value, str):
        references = [said for said in metadata if isinstance(said, ChannelReference)]
        yield from (problem for reference in references for problem in _problems_of_name(path, value, reference, names))
    elif isinstance(value, list) and get_origin(annotation) is list:
        for index, entry in enumerate(value):
            yield from _problems((*path, index), entry, get_args(annotation)[0], names)
    elif not isinstance(value, dict):
        return
    elif choices:
        # Where nobody knows which type is meant, that is told elsewhere; here counts what is wrong with any.
        meant = [choice for tag, choice in choices.items() if tag == value.get(field)] or choices.values()
        found = [list(_problems_of_table(path, value, choice, names)) for choice in meant]
        yield from (problem for problem in found[0] if all(problem in problems for problems in found))
    elif get_origin(annotation) is dict:
        for key, entry in value.items():
            yield from _problems((*path, key), entry, get_args(annotation)[1], names)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _problems_of_table(path, value, annotation, names)


def _problems_of_table(path: _Path, table: dict[str, Any], model: type[BaseModel], names: _Names) -> Iterator[str]:
    if issubclass(model, SourceConfig):
        own = table.get("channels")
        names = _Names(names.known, list(dict.fromkeys(_texts(own))), path)
    for key, declared in fields_of(model).items():
        if key in table:
            yield from _problems((*path, key), table[key], declared, names)


def _problems_of_name(path: _Path, name: str, reference: ChannelReference, names: _Names) -> Iterator[str]:
    allowed = names.own if reference.is_own else names.known
    if name in allowed:
        return
    what = f"one of {shown_path((*names.source, 'channels'))}" if reference.is_own else "a channel of the configuration"
    close = difflib.get_close_matches(name, allowed, n=1)
    if close:
        yield f"{shown_path(path)}: is {shown_value(name)}; it must be {what}; did you mean {shown_value(close[0])}?"
        return
    shown = ", ".join(map(shown_value, allowed[:_SHOWN_NAMES_MAX])) or "none"
    more = f" and {len(allowed) - _SHOWN_NAMES_MAX} more" if len(allowed) > _SHOWN_NAMES_MAX else ""
    yield f"{shown_path(path)}: is {shown_value(name)}; it must be {what}, of which there are: {shown}{more}"


def _texts(value: object) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


_ANY_HOST = {"0.0.0.0", "::"}  # noqa: S104 - nobody listens there; it is what others may say
_LOOPBACK_HOST = "127.0.0.1"


class _Place(NamedTuple):
    """Where somebody listens."""

    path: _Path
    """The setting that says so."""
    text: str
    """What it says."""
    transport: str
    address: Address

    def takes_from(self, other: "_Place") -> bool:
        """Whether both listen at the same address, as far as names tell."""
        return self.transport == other.transport and _is_same(self.address, other.address)


def address_conflicts(tables: Mapping[str, Any], listening: Mapping[str, str]) -> list[str]:
    """A sentence for each part that listens where another one does, and for each sink that fills its own channel.

    What else may be wrong with the configuration hides none of them.

    Args:
        tables: The configuration, as TOML has it.
        listening: Where the server listens unless the configuration says something else, by field of `[server]`.
    """
    server = {**listening, **_table(tables, "server")}
    grpc = list(_places(("server", "listen"), server["listen"]))
    http = list(_places(("server", "http_listen"), server["http_listen"]))
    theirs = [
        place
        for name, source in _named(tables, "sources")
        if source.get("type") in {"http", "syslog"}
        for place in _places(("sources", name, "listen"), source.get("listen"))
    ]
    conflicts = [
        f"{shown_path(later.path)}: is {shown_value(later.text)}, where {shown_path(earlier.path)} listens already; it "
        "must be another address"
        for earlier, later in combinations([*grpc, *http, *theirs], 2)
        # Whoever says the same twice is told so by the settings of that part.
        if later.path[:2] != earlier.path[:2] and later.path[0] != "server" and later.takes_from(earlier)
    ]
    return [*conflicts, *_circles(tables, grpc)]


def _circles(tables: Mapping[str, Any], grpc: list[_Place]) -> Iterator[str]:
    for name, sink in _named(tables, "sinks"):
        if sink.get("type") != "millrace" or sink.get("target_channel") != sink.get("channel"):
            continue
        endpoints = sink.get("endpoints")
        for index, endpoint in enumerate(endpoints if isinstance(endpoints, list) else ()):
            path = ("sinks", name, "endpoints", index)
            for place in _places(path, endpoint):
                if any(place.takes_from(own) for own in grpc):
                    yield (
                        f"{shown_path(path)}: is {shown_value(endpoint)}, which is this server, whose channel "
                        f"{shown_value(sink['channel'])} the sink empties and would fill; it must be another server, "
                        "or target_channel another channel"
                    )


def _places(path: _Path, said: object) -> Iterator[_Place]:
    """The addresses that a setting names; what is none is told elsewhere."""
    if isinstance(said, list):
        for index, entry in enumerate(said):
            yield from _places((*path, index), entry)
    elif isinstance(said, str):
        transport, _, text = said.rpartition("://")
        try:
            yield _Place(path, said, transport or "tcp", Address.parse(text))
        except ValueError:
            return


def _is_same(one: Address, other: Address) -> bool:
    if one.port != other.port or one.port == 0:
        return False
    hosts = {_host(one), _host(other)}
    return len(hosts) == 1 or bool(hosts & _ANY_HOST)


def _host(address: Address) -> str:
    host = address.host.lower()
    return _LOOPBACK_HOST if host == "localhost" else host


def _table(tables: Mapping[str, Any], key: str) -> dict[str, Any]:
    table = tables.get(key)
    return table if isinstance(table, dict) else {}


def _named(tables: Mapping[str, Any], key: str) -> list[tuple[str, dict[str, Any]]]:
    return [(name, table) for name, table in _table(tables, key).items() if isinstance(table, dict)]
