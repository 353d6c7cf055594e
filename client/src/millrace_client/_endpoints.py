"""Addresses of servers, checked before anything is sent: gRPC itself would try for a while, and name another cause."""

import re

_RESOLVER_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")
"""Beginnings of gRPC's own forms, which are passed on as they are."""

_HOST_AND_PORT = re.compile(r"(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.%]+\])(?::(?P<port>[0-9]+))?")
_PORT_MAX = 65_535


def servers_of(endpoint: str) -> tuple[str, ...]:
    """Returns the servers that an endpoint names: one, or several that share replicated channels, between commas.

    What begins with one of gRPC's own forms is one, since these have commas of their own.
    """
    if endpoint.startswith(_RESOLVER_SCHEMES):
        return (endpoint,)
    return tuple(dict.fromkeys(server.strip() for server in endpoint.split(",")))


def endpoint_problem(endpoint: str) -> str:
    """Returns what is wrong with an address, for a sentence that begins with it; an empty string if nothing is."""
    if endpoint.startswith(_RESOLVER_SCHEMES):
        return ""
    scheme, mark, rest = endpoint.partition("://")
    if mark:
        tls = ", and connect over TLS by its own option" if scheme == "https" else ""
        return f"has the scheme {scheme}, which gRPC does not use; write {rest.partition('/')[0] or 'host:port'}{tls}"
    match = _HOST_AND_PORT.fullmatch(endpoint)
    if match and match["port"] is None:
        return f"has no port; write host:port, such as {endpoint}:7070"
    if not match or not 0 < int(match["port"]) <= _PORT_MAX:
        return "is not an address; write host:port, such as 127.0.0.1:7070 or [::1]:7070"
    return ""
