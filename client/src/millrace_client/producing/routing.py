"""Which server a batch goes to."""

import random
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

from millrace_client.producing.config import Routing


class Candidate(Protocol):
    """A channel at one server, as far as the router needs it."""

    @property
    def address(self) -> str:
        """The server's address."""

    def is_healthy(self, now: float) -> bool:
        """Whether it is not known to fail."""

    def is_full(self, now: float) -> bool:
        """Whether it gets no batches only because the channel has no space."""

    def has_capacity(self, now: float) -> bool:
        """Whether a batch could be sent now."""


CandidateT = TypeVar("CandidateT", bound=Candidate)


def ranked(bucket_index: int, addresses: Iterable[str]) -> list[str]:
    """Returns the servers in the order in which they replace each other for the keys of a bucket, its home first.

    Each bucket ranks the servers by a hash of both (rendezvous hashing). So the buckets spread over the servers, those
    of a failing server spread over all others, and when a server comes or goes only its own buckets change their home.
    """
    return sorted(addresses, key=lambda address: blake2b(f"{bucket_index} {address}".encode(), digest_size=8).digest())


class Router:
    """Chooses among the servers of one channel, given by priority. For one thread."""

    def __init__(self, routing: Routing, draw: random.Random | None = None) -> None:
        self._routing = routing
        self._random = draw or random.Random()  # noqa: S311 - spreads load, keeps no secret
        self._next = 0

    def choose(self, servers: Sequence[CandidateT], home_order: Sequence[str], now: float) -> CandidateT | None:
        """Returns the server of the next batch, by-key in the order of the home; None if the batch must wait."""
        if self._routing is Routing.BY_KEY and home_order:
            by_name = {server.address: server for server in servers}
            ranked = [by_name[name] for name in home_order if name in by_name]
            # A full home is waited for: its keys could not return in order to a queue that empties slowly.
            first = next((server for server in ranked if server.is_healthy(now) or server.is_full(now)), None)
            return first if first is not None and first.has_capacity(now) else None
        if self._routing is Routing.FAILOVER:
            first = next((server for server in servers if server.is_healthy(now)), None)
            return first if first is not None and first.has_capacity(now) else None
        able = [server for server in servers if server.has_capacity(now)]
        if not able:
            return None
        if self._routing is Routing.RANDOM:
            return self._random.choice(able)
        return self._after_last(servers, now)

    def _after_last(self, servers: Sequence[CandidateT], now: float) -> CandidateT | None:
        for step in range(len(servers)):
            server = servers[(self._next + step) % len(servers)]
            if server.has_capacity(now):
                self._next = (self._next + step + 1) % len(servers)
                return server
        return None
