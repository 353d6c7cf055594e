"""Calls to servers: connections, retries, and the shards that match the options."""

import contextlib
import logging
import platform
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

import millrace_client as millrace
from millrace_client import MillraceError, RetryAdvice
from millrace_spark.errors import MillraceSparkError, OptionError
from millrace_spark.option_values import Security
from millrace_spark.shards import Shard, is_meant, is_pattern

TRANSIENT = frozenset({RetryAdvice.FULL, RetryAdvice.LATER, RetryAdvice.UNREACHABLE})
"""Errors that a retry may clear."""

STARTING = frozenset({RetryAdvice.FULL, RetryAdvice.LATER})
"""Errors of a server that responds but must finish something first."""

Response = TypeVar("Response")

_log = logging.getLogger("millrace_spark")

_PAUSE_SECONDS = 0.1
_PAUSE_SECONDS_MAX = 2.0


class RetryPolicy:
    """Retries calls with exponential back-off, until they have failed for `seconds_max` without a success."""

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

    def call(self, call: Callable[[], Response]) -> Response:
        """Returns the result of a call, repeated until it succeeds."""
        while True:
            try:
                return call()
            except MillraceError as error:
                self.wait(error)

    def reset(self) -> None:
        """Ends the current series of failures."""
        self._since = None
        self._pause_seconds = _PAUSE_SECONDS

    def wait(self, error: MillraceError) -> None:
        """Sleeps before the next attempt; raises an error that is not retried, or has lasted too long."""
        now = self._clock()
        if self._since is None:
            self._since = now
        remaining_seconds = self._since + self._seconds_max - now
        if error.advice not in self._retried or remaining_seconds <= 0:
            raise error
        self._pause(min(self._pause_seconds, remaining_seconds))
        if self._pause_seconds < _PAUSE_SECONDS_MAX <= self._pause_seconds * 2:
            # Once in a series, and not for what a short pause clears.
            _log.warning("%s; trying again for up to %g s", str(error).rstrip("."), self._seconds_max)
        self._pause_seconds = min(self._pause_seconds * 2, _PAUSE_SECONDS_MAX)


CALL_SECONDS_MAX = 10.0
"""The deadline of a call that does not wait for events."""


_ADVICE = {
    "CHANNEL_CLAIMED": (
        "in Spark, set the option takeover; if the reader is in this program, call release() on the result of "
        "claim_ranges(), or stop() on the query"
    ),
    "NOT_CLAIMED": "this read has lost its claim; load again",
    "STALE_EPOCH": "the claim of this read was taken over, or ended by an operator; load again",
    "QUOTA_EXCEEDED": "read with fewer tasks, or ask for a larger quota, in the server's configuration",
    "SEQUENCE_GONE": (
        "events that this read was planned for are gone: consumed, purged or expired; load again, or set the option "
        "failOnDataLoss to false to read those that remain"
    ),
}
"""Advice that follows the client's message, by the reason of the error."""


_TOKEN_REASONS = frozenset({"UNAUTHENTICATED", "TOKEN_EXPIRED"})


@contextlib.contextmanager
def translated_errors(
    endpoint: str,
    channel: str,
    but: tuple[type[MillraceError], ...] = (),
    advice_by_reason: Mapping[str, str] = _ADVICE,
) -> Iterator[None]:
    """Raises errors of the client, except `but`, as a sentence that names endpoint and channel and says what to do."""
    try:
        yield
    except but:
        raise
    except MillraceError as error:
        message = f"channel {channel} at {endpoint}: {str(error).rstrip('.')}"
        advice = advice_by_reason.get(error.reason)
        if error.reason in _TOKEN_REASONS:
            advice = "name the file of a valid token by the option token.file, on the driver and each executor"
        if str(error).startswith(("tls: ", "token_file: ")):
            # Of many executors, one may lack a file.
            advice = f"that is on {platform.node()}; the driver and each executor read the file by this path"
        raise MillraceSparkError(f"{message}; {advice}" if advice else message) from None


@contextlib.contextmanager
def connected(endpoints: Sequence[str], security: Security) -> Iterator[dict[str, millrace.Client]]:
    """Opens a connection to each endpoint, and closes them all at the end of the block."""
    with ExitStack() as stack:
        yield {
            endpoint: stack.enter_context(security.connect(endpoint, timeout_seconds=CALL_SECONDS_MAX))
            for endpoint in endpoints
        }


def is_shared(info: millrace.ChannelInfo) -> bool:
    """Whether several servers have the channel, each of which leads to the one that owns it."""
    return info.config.type is millrace.ChannelType.REPLICATED


def check_aliases(homes: dict[str, str], endpoint: str, channels: Iterable[millrace.ChannelInfo]) -> None:
    """Checks that no channel can be reached by two endpoints, such as by `localhost` and `127.0.0.1`.

    Raises:
        OptionError: Two endpoints have a channel with the same id, or share one.
    """
    for info in channels:
        key = info.name if is_shared(info) else info.channel_id
        if (home := homes.setdefault(key, endpoint)) != endpoint:
            raise OptionError(f"option endpoints: {home} and {endpoint} {_reached_twice(info)}")


def _reached_twice(info: millrace.ChannelInfo) -> str:
    if is_shared(info):
        return f"share the replicated channel {info.name}; write a slash between them, since they are one endpoint"
    return f"are the same server, since channel {info.name} has the same id on both; name the server once"


def find_shards(clients: Mapping[str, millrace.Client], wanted: Sequence[str]) -> list[Shard]:
    """Returns the shards that match these names and patterns. A channel need not be on every server.

    A replicated channel is one shard, of the first server that shares it.

    Raises:
        MillraceSparkError: A server is unreachable, or a name or pattern matches no channel on any server.
    """
    if len(clients) == 1 and not any(map(is_pattern, wanted)):
        # The claims fail if the channels do not exist.
        return [Shard(name, endpoint) for endpoint in clients for name in wanted]
    there: list[Shard] = []
    homes: dict[str, str] = {}
    for endpoint, client in clients.items():
        with translated_errors(endpoint, ", ".join(wanted)):
            infos = client.admin.list_channels()
        check_aliases(homes, endpoint, (info for info in infos if not is_shared(info)))
        # The shard of a replicated channel keeps its name when the channel moves to another server.
        known = {shard.channel for shard in there}
        there.extend(Shard(info.name, endpoint) for info in infos if not (is_shared(info) and info.name in known))
    for name in wanted:
        if not any(is_meant(shard.channel, (name,)) for shard in there):
            channels = ", ".join(sorted({shard.channel for shard in there})) or "no channels"
            what = "the pattern matches no channel" if is_pattern(name) else "there is no channel of that name"
            raise MillraceSparkError(f"channel {name}: {what} on {', '.join(clients)}, which have {channels}")
    return sorted(shard for shard in there if is_meant(shard.channel, tuple(wanted)))
