"""Checks across the tables of a configuration: names of channels, and addresses; and a default across them."""

import difflib
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from pydantic import BaseModel

from millrace.setting_lines import SettingPath
from millrace.setting_problems import Problem, shown_path, shown_value
from millrace_server.agent.setting_types import ChannelReference, named_tables
from millrace_server.configuration.declared_texts import DeclaredText, declared_texts
from millrace_server.network import Address

_SHOWN_NAMES_MAX = 10
_SOURCE_DEPTH = 2
"""The depth of the table of a source: sources.NAME."""


def unknown_channels(tables: Mapping[str, Any], model: type[BaseModel]) -> list[Problem]:
    """Returns a problem for each reference to a channel that is unknown or not allowed there.

    Other errors of the tables hide none of them; the syntax of names is checked elsewhere.
    """
    channels = tables.get("channels", {})
    if not isinstance(channels, dict):
        return []
    known = _texts(list(channels))
    # Channels refer to none, and there may be thousands of them.
    referring = {name: table for name, table in tables.items() if name != "channels"}
    return [
        problem
        for text in declared_texts(referring, model)
        for said in text.metadata
        if isinstance(said, ChannelReference)
        for problem in _problems_of_reference(text, said, known, tables)
    ]


def _problems_of_reference(
    place: DeclaredText, reference: ChannelReference, known: list[str], tables: Mapping[str, Any]
) -> Iterator[Problem]:
    if reference.is_own:
        source = place.path[:_SOURCE_DEPTH]
        allowed = list(dict.fromkeys(_texts(named_tables(tables, "sources")[str(source[-1])].get("channels"))))
        what = f"one of {shown_path((*source, 'channels'))}"
    else:
        allowed, what = known, "a channel of the configuration"
    name = place.text
    if name in allowed:
        return
    close = difflib.get_close_matches(name, allowed, n=1)
    if close:
        yield Problem(place.path, f"is {shown_value(name)}; it must be {what}; did you mean {shown_value(close[0])}?")
        return
    shown = ", ".join(map(shown_value, allowed[:_SHOWN_NAMES_MAX])) or "none"
    more = f" and {len(allowed) - _SHOWN_NAMES_MAX} more" if len(allowed) > _SHOWN_NAMES_MAX else ""
    yield Problem(place.path, f"is {shown_value(name)}; it must be {what}, of which there are: {shown}{more}")


def _texts(value: object) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def anonymous_addresses(tables: Mapping[str, Any]) -> list[Problem]:
    """Returns a problem for each address that other machines can reach without authentication, unless that is allowed.

    Addresses that are not valid are reported elsewhere.
    """
    server = table if isinstance(table := tables.get("server"), dict) else {}
    if "auth" in tables or server.get("allow_anonymous") is True:
        return []
    return [
        Problem(
            ("server", field),
            f"is {shown_value(text)}, where anyone on other machines may do everything; there must be a table auth, or "
            "it must be a loopback address, or server.allow_anonymous must be true",
        )
        for field in ("listen", "http_listen")
        if isinstance(text := server.get(field), str) and _is_reachable(text)
    ]


def _is_reachable(text: str) -> bool:
    try:
        return not Address.parse(text).is_loopback
    except ValueError:
        return False


_ANY_HOST = {"0.0.0.0", "::"}  # noqa: S104 - compared with the settings, not listened on
_LOOPBACK_HOST = "127.0.0.1"


class _Place(NamedTuple):
    """An address that a setting listens on, with the path and the text of the setting."""

    path: SettingPath
    text: str
    transport: str
    address: Address

    def conflicts_with(self, other: "_Place") -> bool:
        """Whether both listen on the same address, judged by name."""
        return self.transport == other.transport and _is_same(self.address, other.address)


def address_conflicts(tables: Mapping[str, Any], listening: Mapping[str, str]) -> list[Problem]:
    """Returns a problem for each address that is used twice, and for each sink that would fill its own channel.

    Other errors of the tables hide none of them. By default the server listens on the addresses in `listening`.
    """
    server = {**listening, **table} if isinstance(table := tables.get("server"), dict) else listening
    grpc = list(_places(("server", "listen"), server["listen"]))
    http = list(_places(("server", "http_listen"), server["http_listen"]))
    of_sources = [
        place
        for name, source in named_tables(tables, "sources").items()
        # As text: any value may stand there.
        if str(source.get("type")) in {"http", "netcat", "syslog"}
        for place in _places(("sources", name, "listen"), source.get("listen"))
    ]
    conflicts = [
        Problem(
            later.path,
            f"is {shown_value(later.text)}, where {shown_path(earlier.path)} listens already; it must be another "
            "address",
        )
        for earlier, later in combinations([*grpc, *http, *of_sources], 2)
        # The settings of a part report duplicates within that part.
        if later.path[:2] != earlier.path[:2] and later.path[0] != "server" and later.conflicts_with(earlier)
    ]
    return [*conflicts, *_loops(tables, grpc)]


def _loops(tables: Mapping[str, Any], grpc: list[_Place]) -> Iterator[Problem]:
    for name, sink in named_tables(tables, "sinks").items():
        receivers = _own_receivers(tables, sink, grpc)
        endpoints = sink.get("endpoints")
        for index, endpoint in enumerate(endpoints if isinstance(endpoints, list) else ()):
            path = ("sinks", name, "endpoints", index)
            for place in _places(path, endpoint):
                if any(place.conflicts_with(own) for own in receivers):
                    advice = ", or target_channel another channel" if sink["type"] == "millrace" else ""
                    yield Problem(
                        path,
                        f"is {shown_value(endpoint)}, which is this server, whose channel "
                        f"{shown_value(sink['channel'])} the sink both reads and would fill; it must be another "
                        f"server{advice}",
                    )


def _own_receivers(tables: Mapping[str, Any], sink: Mapping[str, Any], grpc: list[_Place]) -> list[_Place]:
    """Returns this server's addresses where a sink's events would come into the channel that the sink reads."""
    sources = named_tables(tables, "sources")
    target, channel = sink.get("target_channel"), sink.get("channel")
    if sink.get("type") == "avro":
        flume = [one for one in sources.values() if one.get("type") == "avro"]
        filling = [one for one in flume if channel in _texts(one.get("channels"))]
        return [place for source in filling for place in _places((), source.get("listen"))]
    source = sources.get(target, {}) if isinstance(target, str) else {}
    is_filled = target == channel or (source.get("type") == "grpc" and channel in _texts(source.get("channels")))
    return grpc if sink.get("type") == "millrace" and is_filled else []


def _places(path: SettingPath, value: object) -> Iterator[_Place]:
    """Yields the addresses of a setting; malformed ones are reported elsewhere."""
    if isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _places((*path, index), entry)
    elif isinstance(value, str):
        transport, _, text = value.rpartition("://")
        try:
            yield _Place(path, value, transport or "tcp", Address.parse(text))
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


def unreachable_owner(tables: Mapping[str, Any], default_listen: str) -> list[Problem]:
    """Returns a problem where servers share channels and clients could not be told where this server is."""
    server, channels = tables.get("server", {}), tables.get("channels", {})
    if not isinstance(server, dict) or not isinstance(channels, dict) or "advertise" in server:
        return []
    types = [table.get("type") for table in channels.values() if isinstance(table, dict)]
    listen = server.get("listen", default_listen)
    try:
        is_reachable = not Address.parse(listen).is_unspecified
    except (TypeError, ValueError, AttributeError):
        is_reachable = True  # Told elsewhere.
    if is_reachable or not ("engine" in server or "replicated" in types):
        return []
    return [
        Problem(
            ("server", "advertise"),
            f"is missing; it must be the address of this server, since other servers give it to clients of replicated "
            f"channels, and server.listen is {shown_value(listen)}",
        )
    ]


def with_engine(tables: Mapping[str, Any]) -> tuple[Mapping[str, Any], set[SettingPath]]:
    """Gives the server's `engine`, if there is one, to replicated channels without one.

    Returns both the tables and the paths of the lacking engines: what is wrong with an engine is informed of the
    server's table alone.
    """
    server, lacking = tables.get("server"), _channels_without_engine(tables)
    if lacking and isinstance(server, dict) and "engine" in server:
        completed = {name: {**tables["channels"][name], "engine": server["engine"]} for name in lacking}
        tables = {**tables, "channels": {**tables["channels"], **completed}}
    return tables, {("channels", name, "engine") for name in lacking}


def missing_engines(tables: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields the replicated channels to which `with_engine` could not give an engine."""
    for name in _channels_without_engine(tables):
        yield Problem(("channels", name), "is replicated, but has no engine; add a table server.engine")


def _channels_without_engine(tables: Mapping[str, Any]) -> list[str]:
    channels = tables.get("channels")
    if not isinstance(channels, dict):
        return []
    tables_of_channels = ((name, table) for name, table in channels.items() if isinstance(table, dict))
    return [name for name, table in tables_of_channels if table.get("type") == "replicated" and "engine" not in table]
