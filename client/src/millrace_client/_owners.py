"""Which server owns a channel, as far as a client knows: a server that stands by for a channel's owner names it."""

import time
from dataclasses import dataclass

from millrace_client._endpoints import endpoint_problem
from millrace_client._retries import OWNER_SECONDS, OWNER_SECONDS_MAX, Backoff
from millrace_client.errors import DrainingError, MillraceError, NotOwnerError, ReplayingError, UnavailableError

_SERVERS_MAX = 16
"""The most servers that are remembered for a channel."""


@dataclass(slots=True)
class _Route:
    endpoint: str
    """The server that gets the next call."""
    known: list[str]
    """The servers that have the channel, the client's own first."""


class Owners:
    """Where a client's calls on each channel go. Threads may share it.

    A channel goes to the client's own server, `home`, until that names another owner; from then on to the owner. If the
    owner cannot be reached, one of the other servers that the client has met will know its successor.
    """

    def __init__(self, home: str) -> None:
        self._home = home
        self._routes: dict[str, _Route] = {}

    def endpoint_of(self, channel: str) -> str:
        """Returns the server that gets the next call on a channel."""
        route = self._routes.get(channel)
        return self._home if route is None else route.endpoint

    def note_failure(self, channel: str, endpoint: str, error: BaseException) -> str | None:
        """Returns the server that is to get the call next that failed there; None if no other server can help."""
        if not channel:
            return None
        route = self._routes.get(channel)
        if isinstance(error, NotOwnerError):
            if route is None:
                route = self._routes[channel] = _Route(self._home, [self._home])
            is_named = bool(error.address) and not endpoint_problem(error.address)
            route.endpoint = error.address if is_named else self._after(route, endpoint)
            if route.endpoint not in route.known:
                # The oldest one goes, but never the client's own.
                del route.known[1 : len(route.known) - _SERVERS_MAX + 2]
                route.known.append(route.endpoint)
            return route.endpoint
        if route is not None and isinstance(error, (UnavailableError, DrainingError)):
            route.endpoint = self._after(route, endpoint)
            return route.endpoint
        if route is not None and isinstance(error, ReplayingError):
            # It is taking the channel over.
            return endpoint
        return None

    def next_endpoint(self, channel: str, error: BaseException | None) -> str:
        """Returns the server that gets the next stream of a channel whose last one ended with this error."""
        endpoint = self.endpoint_of(channel)
        return endpoint if error is None else self.note_failure(channel, endpoint, error) or endpoint

    @staticmethod
    def _after(route: _Route, endpoint: str) -> str:
        """Returns the known server that follows one, in a circle."""
        index = route.known.index(endpoint) if endpoint in route.known else -1
        return route.known[(index + 1) % len(route.known)]

    def search(self, channel: str, seconds: float) -> "OwnerSearch":
        """Returns the way of one call on a channel, whose attempts may take so long in all, beside waits at the server.

        Without a channel the call concerns the client's own server.
        """
        return OwnerSearch(self, channel, seconds)


class OwnerSearch:
    """The way of one call to the owner of its channel.

    A hop to another server is immediate, unless the one before it was; then there is a pause, which grows. So servers
    that name each other, or a dead one, are asked now and then, until another server takes over or the call's time is
    over.

    Attributes:
        endpoint: The server that gets the next attempt.
    """

    def __init__(self, owners: Owners, channel: str, seconds: float) -> None:
        self.endpoint = owners.endpoint_of(channel)
        self._owners = owners
        self._channel = channel
        self._give_up = time.monotonic() + seconds
        self._backoff: Backoff | None = None
        self._has_just_hopped = False

    @property
    def left_seconds(self) -> float:
        """How long the next attempt may take, beside a wait at the server."""
        return self._give_up - time.monotonic()

    def pause_seconds(self, error: MillraceError) -> float | None:
        """Returns the pause before the next attempt, at `endpoint`; None if the error is the call's result."""
        target = self._owners.note_failure(self._channel, self.endpoint, error)
        if target is None:
            return None
        self._has_just_hopped = target != self.endpoint and not self._has_just_hopped
        seconds = 0.0 if self._has_just_hopped else self._next_seconds(error)
        if seconds >= self.left_seconds:
            return None
        self.endpoint = target
        return seconds

    def _next_seconds(self, error: MillraceError) -> float:
        if self._backoff is None:
            # Few calls need one.
            self._backoff = Backoff(OWNER_SECONDS, OWNER_SECONDS_MAX)
        return self._backoff.next_seconds(error.retry_delay_seconds)
