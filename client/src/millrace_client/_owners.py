"""Which server owns a channel, as far as a client knows: a server that stands by for a channel's owner names it."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from millrace_client._endpoints import endpoint_problem
from millrace_client._retries import OWNER_SECONDS, OWNER_SECONDS_MAX, Backoff
from millrace_client._settings import ATTEMPTS_MAX
from millrace_client.errors import (
    ChannelNotFoundError,
    DeadlineError,
    DrainingError,
    MillraceError,
    NotOwnerError,
    ReplayingError,
    UnavailableError,
)

_NAMED_MAX = 16
"""The maximum number of servers that are remembered for a channel, besides the client's own."""


@dataclass(slots=True)
class _Route:
    endpoint: str
    """The server that gets the next call."""
    known: list[str]
    """The servers that have the channel, the client's own first."""


class Owners:
    """Where a client's calls go. Threads may share it.

    A call goes to the client's own server: of several, to the one that could be reached last. If that names another
    server as the owner of the call's channel, further calls on the channel go there. If the owner cannot be reached,
    one of the other servers that the client knows will know its successor. If it does not have the channel any more,
    the client's own server may.

    Args:
        homes: The client's own servers.
        is_patient: Whether calls wait for one of several servers until their time is over; otherwise all are asked as
            often as gRPC repeats the calls to a single one.
    """

    def __init__(self, homes: Sequence[str], *, is_patient: bool = False) -> None:
        self._homes = tuple(homes)
        self._home = self._homes[0]
        self._is_patient = is_patient
        self._routes: dict[str, _Route] = {}

    def endpoint_of(self, channel: str) -> str:
        """Returns the server that gets the next call on a channel; without one, of a call that concerns none."""
        route = self._routes.get(channel)
        return self._home if route is None else route.endpoint

    def is_awaited(self, channel: str) -> bool:
        """Whether a call repeats until its time is over: another server is going to own the channel."""
        return self._is_patient or channel in self._routes

    def note_failure(self, channel: str, endpoint: str, error: BaseException) -> str | None:
        """Returns the server that is to get the call next that failed there; None if no other server can help."""
        if channel and isinstance(error, NotOwnerError):
            return self._follow(channel, endpoint, error)
        route = self._routes.get(channel)
        if isinstance(error, (UnavailableError, DrainingError)):
            if route is not None:
                route.endpoint = _after(route.known, endpoint)
                return route.endpoint
            if len(self._homes) > 1:
                self._home = _after(self._homes, endpoint)
                return self._home
        if route is not None and isinstance(error, ReplayingError):
            # It is taking the channel over.
            return endpoint
        if route is not None and isinstance(error, ChannelNotFoundError):
            # It was removed from that server's configuration, or deleted there and created again elsewhere.
            self._routes.pop(channel, None)
            return None if endpoint == self._home else self._home
        return None

    def _follow(self, channel: str, endpoint: str, error: NotOwnerError) -> str:
        route = self._routes.setdefault(channel, _Route(self._home, list(self._homes)))
        is_named = bool(error.address) and not endpoint_problem(error.address)
        route.endpoint = error.address if is_named else _after(route.known, endpoint)
        if route.endpoint not in route.known:
            route.known.append(route.endpoint)
            # The oldest one goes, but never one of the client's own.
            del route.known[len(self._homes) : -_NAMED_MAX]
        return route.endpoint

    def next_endpoint(self, channel: str, error: BaseException | None) -> str:
        """Returns the server that gets the next stream of a channel whose last one ended with this error."""
        endpoint = self.endpoint_of(channel)
        return endpoint if error is None else self.note_failure(channel, endpoint, error) or endpoint

    def search(self, channel: str, seconds: float) -> "OwnerSearch":
        """Returns the way of one call, whose attempts may take this long in all, besides waits at the server.

        Without a channel the call concerns the client's own server.
        """
        return OwnerSearch(self, channel, seconds)


def _after(known: Sequence[str], endpoint: str) -> str:
    """Returns the known server that follows one, in a circle."""
    index = known.index(endpoint) if endpoint in known else -1
    return known[(index + 1) % len(known)]


class OwnerSearch:
    """The way of one call to a server that can be reached, and to the owner of its channel.

    A hop to a server that was not asked yet is immediate. Once the next one was asked before, there is a pause, which
    grows, and then each of them is asked again. So servers that name each other, or a dead one, are asked now and then,
    until another server takes over or the call's time is over. Servers of which none can be reached are asked as often
    as gRPC repeats the calls to a single one.

    Attributes:
        endpoint: The server that gets the next attempt.
    """

    def __init__(self, owners: Owners, channel: str, seconds: float) -> None:
        self.endpoint = owners.endpoint_of(channel)
        self._owners = owners
        self._channel = channel
        self._give_up = time.monotonic() + seconds
        self._backoff: Backoff | None = None
        self._asked: set[str] = set()
        """The servers that were asked since the last pause."""
        self._responses: dict[str, MillraceError] = {}
        """What each server, or gRPC, has responded last."""

    @property
    def left_seconds(self) -> float:
        """How long the next attempt may take, besides a wait at the server."""
        return self._give_up - time.monotonic()

    def pause_seconds(self, error: MillraceError) -> float | None:
        """Returns the pause before the next attempt, at `endpoint`; None if no other server can help.

        Raises:
            MillraceError: The error, if it was the last attempt; its message says what each server responded.
        """
        target = self._owners.note_failure(self._channel, self.endpoint, error)
        if not isinstance(error, DeadlineError):
            self._responses[self.endpoint] = error
        if target is None:
            if isinstance(error, (ChannelNotFoundError, DeadlineError)):
                # A server that was not reached may have the channel; or the time is over because of what others said.
                self._join_messages(error)
            return None
        self._asked.add(self.endpoint)
        seconds = self._next_seconds(error) if target in self._asked else 0.0
        if seconds >= self.left_seconds:
            self._join_messages(error)
            raise error
        if target in self._asked:
            self._asked.clear()
        self.endpoint = target
        return seconds

    def _next_seconds(self, error: MillraceError) -> float:
        if self._backoff is None:
            # Few calls need one.
            self._backoff = Backoff(OWNER_SECONDS, OWNER_SECONDS_MAX)
        seconds = self._backoff.next_seconds(error.retry_delay_seconds)
        is_last = self._backoff.failure_count >= ATTEMPTS_MAX and not self._owners.is_awaited(self._channel)
        return math.inf if is_last else seconds

    def _join_messages(self, error: MillraceError) -> None:
        """Makes the error say what each server responded."""
        messages = dict.fromkeys([error.message, *(response.message for response in self._responses.values())])
        error.message = "; ".join(messages)
        error.args = (error.message,)
