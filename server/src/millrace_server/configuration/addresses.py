"""Checks of the addresses in a configuration: who can reach them, conflicts between them, and loops through sinks."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from millrace.setting_lines import SettingPath
from millrace.setting_problems import Problem, shown_path, shown_value
from millrace_server.agent.setting_types import named_tables, table_at
from millrace_server.configuration.declared_texts import texts_in
from millrace_server.network import Address


def anonymous_addresses(tables: Mapping[str, Any]) -> list[Problem]:
    """Returns a problem for each address that other machines can reach without authentication, unless that is allowed.

    Invalid addresses are reported elsewhere.
    """
    server = table_at(tables, "server")
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

    `listening` has the defaults of the server's addresses. Other errors of the tables do not prevent the check.
    """
    server = {**listening, **table_at(tables, "server")}
    grpc = list(_places(("server", "listen"), server["listen"]))
    http = list(_places(("server", "http_listen"), server["http_listen"]))
    of_sources = [
        place
        for name, source in named_tables(tables, "sources").items()
        # As text, since the value may be of any type.
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
        # Duplicates within a table are reported with the table.
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
    """Returns the addresses of this server at which a sink's events would enter the channel that the sink reads."""
    sources = named_tables(tables, "sources")
    target, channel = sink.get("target_channel"), sink.get("channel")
    if sink.get("type") == "avro":
        flume = [one for one in sources.values() if one.get("type") == "avro"]
        filling = [one for one in flume if channel in texts_in(one.get("channels"))]
        return [place for source in filling for place in _places((), source.get("listen"))]
    source = sources.get(target, {}) if isinstance(target, str) else {}
    is_filled = target == channel or (source.get("type") == "grpc" and channel in texts_in(source.get("channels")))
    return grpc if sink.get("type") == "millrace" and is_filled else []


def _places(path: SettingPath, value: object) -> Iterator[_Place]:
    """Yields the addresses of a setting; invalid ones are reported elsewhere."""
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
    """Returns a problem if servers share channels, and this one has no address that they can give to clients."""
    server = table_at(tables, "server")
    types = [table.get("type") for table in named_tables(tables, "channels").values()]
    if "advertise" in server or not ("engine" in server or "replicated" in types):
        return []
    listen = server.get("listen", default_listen)
    try:
        is_reachable = not Address.parse(listen).is_unspecified
    except (TypeError, ValueError, AttributeError):
        is_reachable = True  # Reported elsewhere.
    if is_reachable:
        return []
    return [
        Problem(
            ("server", "advertise"),
            f"is missing; it must be the address of this server, since other servers give it to clients of replicated "
            f"channels, and server.listen is {shown_value(listen)}",
        )
    ]
