"""Calls to servers: connections, retries, and the shards that match the options."""

import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

import millrace_client as millrace
from millrace_client import MillraceError, RetryAdvice
from millrace_spark.errors import MillraceSparkError, OptionError
from millrace_spark.refusals import explained
from millrace_spark.shards import Shard, is_meant, is_pattern

TRANSIENT = frozenset({RetryAdvice.FULL, RetryAdvice.LATER, RetryAdvice.UNREACHABLE})
"""Errors that a retry may clear."""

STARTING = frozenset({RetryAdvice.FULL, RetryAdvice.LATER})
"""Errors of a server that answers, but must finish something first."""

Answer = TypeVar("Answer")

_PAUSE_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 2.0


class RetryPolicy:
    """Waits between attempts, longer each time, until they have failed for too long.

    Args:
        seconds_max: How long attempts may fail without success in between.
        retried: The errors after which another attempt is made.
        clock: Tells the time, in seconds.
        pause: Waits so many seconds.
    """

    def __init__(
        self,
        seconds_max: float,
        retried: Collection[RetryAdvice] = TRANSIENT,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._seconds_max = seconds_max
        self._retried = retried
        self._clock = clock
        self._pause = pause
        self._since: float | None = None
        self._pause_seconds = _PAUSE_SECONDS

    def call(self, call: Callable[[], Answer]) -> Answer:
        """Makes a call until it succeeds; gives its answer.

        Raises:
            MillraceError: What the call raised last.
        """
        while True:
            try:
                return call()
            except MillraceError as error:
                self.wait(error)

    def reset(self) -> None:
        """Begins to count anew."""
        self._since = None
        self._pause_seconds = _PAUSE_SECONDS

    def wait(self, error: MillraceError) -> None:
        """Waits for the next attempt.

        Raises:
            MillraceError: The same one: it does not pass, or has lasted for too long.
        """
        now = self._clock()
        if self._since is None:
            self._since = now
        remaining_seconds = self._since + self._seconds_max - now
        if error.advice not in self._retried or remaining_seconds <= 0:
            raise error
        self._pause(min(self._pause_seconds, remaining_seconds))
        self._pause_seconds = min(self._pause_seconds * 2, _PAUSE_SECONDS_MAX)


CALL_SECONDS_MAX = 10.0
"""How long a server may take to answer; there is nothing to wait for in what is asked of it."""


@contextlib.contextmanager
def connected(endpoints: Sequence[str]) -> Iterator[dict[str, millrace.Client]]:
    """A connection to each endpoint, closed in the end."""
    with ExitStack() as stack:
        yield {
            endpoint: stack.enter_context(millrace.connect(endpoint, timeout_seconds=CALL_SECONDS_MAX))
            for endpoint in endpoints
        }


def check_aliases(homes: dict[str, str], endpoint: str, channels: Sequence[millrace.ChannelInfo]) -> None:
    """Makes sure that no server is named twice, as `localhost` and `127.0.0.1`: a channel's id is its own.

    Raises:
        OptionError: One is.
    """
    for info in channels:
        if (home := homes.setdefault(info.channel_id, endpoint)) != endpoint:
            raise OptionError(
                f"option endpoints: {home} and {endpoint} are the same server, since channel {info.name} is one and "
                "the same there; name it once"
            )


def find_shards(clients: Mapping[str, millrace.Client], wanted: Sequence[str]) -> list[Shard]:
    """The channels of these names and patterns on each server; a channel need not be on all of them.

    Raises:
        MillraceSparkError: A server cannot be reached, or a name or pattern fits no channel on any.
    """
    if len(clients) == 1 and not any(map(is_pattern, wanted)):
        # Claiming them tells whether they are there.
        return [Shard(name, endpoint) for endpoint in clients for name in wanted]
    there: list[Shard] = []
    homes: dict[str, str] = {}
    for endpoint, client in clients.items():
        with explained(endpoint, ", ".join(wanted)):
            infos = client.admin.list_channels()
        check_aliases(homes, endpoint, infos)
        there.extend(Shard(info.name, endpoint) for info in infos)
    for name in wanted:
        if not any(is_meant(shard.channel, (name,)) for shard in there):
            channels = ", ".join(sorted({shard.channel for shard in there})) or "no channels"
            what = "the pattern fits no channel" if is_pattern(name) else "there is none of that name"
            raise MillraceSparkError(f"channel {name}: {what} on {', '.join(clients)}, which have {channels}")
    return sorted(shard for shard in there if is_meant(shard.channel, tuple(wanted)))
