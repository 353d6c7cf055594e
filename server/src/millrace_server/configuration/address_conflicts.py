"""Whether a configuration has two parts listen at one address, or a server send to itself what it takes."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Any, NamedTuple

from millrace.setting_problems import shown_path, shown_value
from millrace_server.network.addresses import Address

_ANY_HOST = {"0.0.0.0", "::"}  # noqa: S104 - nobody listens there; it is what others may say
_LOOPBACK_HOST = "127.0.0.1"

_Path = tuple[int | str, ...]


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
