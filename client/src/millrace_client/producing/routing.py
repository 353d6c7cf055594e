"""Which server a batch goes to."""

import random
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

from millrace_client.producing.config import Routing


class Choosable(Protocol):
    """A server for one channel, as far as choosing goes."""

    @property
    def name(self) -> str:
        """Tells it from the others."""

    def is_well(self, now: float) -> bool:
        """Whether it is not known to be sick."""

    def is_well_but_full(self, now: float) -> bool:
        """Whether nothing but want of room keeps it from taking a batch."""

    def has_capacity(self, now: float) -> bool:
        """Whether it could take a batch now."""


ChoosableT = TypeVar("ChoosableT", bound=Choosable)


def ranked(lane_index: int, names: Iterable[str]) -> list[str]:
    """Servers in the order in which they stand in for each other for the keys of a lane, its home first.

    Each lane ranks each server by a hash of both. So the lanes spread over the servers, those of a sick one over all
    others, and where a server comes or goes no lane changes its home but to it or from it.
    """
    return sorted(names, key=lambda name: blake2b(f"{lane_index} {name}".encode(), digest_size=8).digest())


class Router:
    """Chooses among the servers of one channel, in the order in which they were given. Not for several threads."""

    def __init__(self, routing: Routing, draw: random.Random | None = None) -> None:
        self._routing = routing
        self._random = draw or random.Random()  # noqa: S311 - spreads attempts and load
        self._next = 0

    def choose(self, servers: Sequence[ChoosableT], home_order: Sequence[str], now: float) -> ChoosableT | None:
        """The server that gets the next batch; None where it has to wait.

        Args:
            servers: All of them, by priority.
            home_order: With by-key routing, the home of the batch's keys and its stand-ins; empty where it has no keys.
            now: The time.
        """
        if self._routing is Routing.BY_KEY and home_order:
            by_name = {server.name: server for server in servers}
            ranked = [by_name[name] for name in home_order if name in by_name]
            # A home that is full is waited for: its keys would not find back in order to a queue that empties slowly.
            first = next((server for server in ranked if server.is_well(now) or server.is_well_but_full(now)), None)
            return first if first is not None and first.has_capacity(now) else None
        if self._routing is Routing.FAILOVER:
            first = next((server for server in servers if server.is_well(now)), None)
            return first if first is not None and first.has_capacity(now) else None
        able = [server for server in servers if server.has_capacity(now)]
        if not able:
            return None
        if self._routing is Routing.RANDOM:
            return self._random.choice(able)
        return self._after_last(servers, now)

    def _after_last(self, servers: Sequence[ChoosableT], now: float) -> ChoosableT | None:
        for step in range(len(servers)):
            server = servers[(self._next + step) % len(servers)]
            if server.has_capacity(now):
                self._next = (self._next + step + 1) % len(servers)
                return server
        return None
