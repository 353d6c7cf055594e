"""The context of interceptors: the machine and its clocks."""

import os
import socket
import time
from collections.abc import Callable
from typing import NamedTuple

_DOCUMENTATION_ADDRESSES = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses that are reserved for documentation (RFC 5737, RFC 3849), one of each family."""

_ANY_PORT = 9


def outbound_address() -> str:
    """Returns the address from which this machine connects to others, or the loopback address if it has no network.

    This only consults the routing table: nothing is sent, and no name is resolved.
    """
    for family, address in _DOCUMENTATION_ADDRESSES:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, _ANY_PORT))
                return str(probe.getsockname()[0])
        except OSError:
            # No route for this address family.
            continue
    return "127.0.0.1"


class InterceptorContext(NamedTuple):
    """The machine and its clocks, which tests of flows replace."""

    clock: Callable[[], float] = time.time
    """Returns the seconds since 1970."""
    monotonic: Callable[[], float] = time.monotonic
    """Returns seconds on a clock that never goes back."""
    host_name: Callable[[], str] = socket.gethostname
    address: Callable[[], str] = outbound_address
    """Returns the address from which the machine connects to others."""
    random_bytes: Callable[[int], bytes] = os.urandom
    """Returns this many random bytes."""


THIS_MACHINE = InterceptorContext()
