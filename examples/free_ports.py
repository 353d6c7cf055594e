"""Ports reserved for this process, so that its servers can listen on the same ports after a restart."""

import random
import socket
from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice

_HOST = "127.0.0.1"
# Not from the range that the system hands out, so that no other program gets one while its owner is down.
_PORTS = range(20_000, 32_000)
_PORTS_OF_A_PROCESS = 120


def free_ports(count: int) -> list[int]:
    """Returns free ports on loopback that neither the system nor this function in another process gives to anyone."""
    found: list[int] = []
    for port in islice(_ports_of_this_process(), _PORTS_OF_A_PROCESS):
        with socket.socket() as probe:
            # As servers do: connections that have ended keep their ports for a minute.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise OSError("no ports are free")


@cache
def _ports_of_this_process() -> Iterator[int]:
    """Reserves some ports until the process ends, and returns them over and over again."""
    firsts = _PORTS[::_PORTS_OF_A_PROCESS]
    for first in random.sample(firsts, len(firsts)):
        mark = socket.socket(type=socket.SOCK_DGRAM)
        try:
            mark.bind((_HOST, first))
        except OSError:
            mark.close()
            continue
        # It stays open, and the others see it.
        mark.detach()
        return cycle(range(first, first + _PORTS_OF_A_PROCESS))
    raise OSError("no ports are free")
