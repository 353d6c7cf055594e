"""The channels that dead letters return to, each letter exactly once."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol

from millrace.v1 import event_pb2
from millrace_client._calls import KEEP_ALIVE_SECONDS
from millrace_client.append_session import ThreadedAppendSession, append_request
from millrace_client.channel import Channel
from millrace_client.client import Client
from millrace_client.dead_letters import DeadLetter
from millrace_client.errors import (
    BadNameError,
    ChannelNotFoundError,
    DeadlineError,
    MillraceError,
    ReplayingError,
    RetryAdvice,
)
from millrace_client.events import Event, Stamp, columns_of

NUMBERS_OF_A_PRODUCER = 10_000
"""The sequences that are stamped under one producer id.

A channel accepts a limited number of gaps in a producer's numbers, and letters that go elsewhere or stay are gaps. So
few numbers cannot have too many gaps.
"""

PIPELINED_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of bodies that are sent without waiting for responses."""

_PAUSE_SECONDS = 0.2
_PAUSE_SECONDS_MAX = 1.0
_TARGETS_MAX = 1_000


class ReplayProgress(Protocol):
    """Informed while a replay runs."""

    def committed(self, event_count: int, body_bytes: int, /) -> None:
        """Called when this many more events have returned."""

    def waiting(self, error: MillraceError, patience_seconds: float, /) -> None:
        """Called when a channel refuses for now; the replay retries for at most this long."""


@dataclass(frozen=True)
class RetryPolicy:
    """How long to retry a channel that has no space."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Refusal(NamedTuple):
    """A letter that its channel will never accept."""

    letter: DeadLetter
    reason: str
    """Why, in a sentence."""


class StampedEvents(NamedTuple):
    """The events of one append."""

    events: Sequence[Event]
    stamp: Stamp


class _Target(NamedTuple):
    channel: Channel
    transaction_capacity: int


class Targets:
    """The channels that dead letters return to.

    Args:
        channel_id: The dead-letter channel's id. With an event's sequence it identifies the event forever, so that
            each channel stores it once, however often it is sent.
        keep_headers: Whether events keep the headers about their rejection.
    """

    def __init__(
        self, client: Client, channel_id: str, retry: RetryPolicy, progress: ReplayProgress, *, keep_headers: bool
    ) -> None:
        self._client = client
        self._channel_id = channel_id
        self._retry = retry
        self._progress = progress
        self._keep_headers = keep_headers
        self._targets: dict[str, _Target | None] = {}

    def exists(self, name: str) -> bool:
        """Whether the server has a channel of this name."""
        if name not in self._targets:
            if len(self._targets) >= _TARGETS_MAX:
                self._targets.clear()
            self._targets[name] = self._find(name)
        return self._targets[name] is not None

    def store(self, name: str, letters: Sequence[DeadLetter], before_try: Callable[[], None]) -> list[Refusal]:
        """Stores letters in a channel that exists; returns those that it will never accept."""
        target = self._targets[name]
        assert target is not None, "the caller has checked that it exists"
        refusals: list[Refusal] = []
        try:
            runs = _runs(letters, target.transaction_capacity)
            for _, runs_of_producer in groupby(runs, lambda run: run[0].sequence // NUMBERS_OF_A_PRODUCER):
                refusals += self._store_runs(target.channel, list(runs_of_producer), before_try)
        except ChannelNotFoundError as error:
            if error.channel not in ("", name):
                # The dead-letter channel itself is gone.
                raise
            # The channel was deleted just now.
            self._targets[name] = None
            return [Refusal(letter, gone_reason(name)) for letter in letters]
        return refusals

    def _find(self, name: str) -> _Target | None:
        try:
            capacity = self._client.admin.append_capacity(name)
        except (ChannelNotFoundError, BadNameError):
            return None
        return _Target(self._client.channel(name), capacity)

    def _store_runs(
        self, channel: Channel, runs: Sequence[Sequence[DeadLetter]], before_try: Callable[[], None]
    ) -> list[Refusal]:
        stored_count = 0
        body_bytes = sum(len(letter.event.body) for run in runs for letter in run)
        if len(runs) > 1 and body_bytes <= PIPELINED_BYTES_MAX:
            # Where letters of several channels alternate, each run is short.
            stored_count = append_pipelined(channel, [self._stamped(run) for run in runs], before_try)
        return [refusal for run in runs[stored_count:] for refusal in self._store_run(channel, run, before_try)]

    def _store_run(self, channel: Channel, run: Sequence[DeadLetter], before_try: Callable[[], None]) -> list[Refusal]:
        try:
            self._append_with_retries(channel, run, before_try)
        except MillraceError as error:
            if error.advice not in (RetryAdvice.CORRECT, RetryAdvice.SMALLER):
                raise
            if len(run) == 1:
                return [Refusal(run[0], f"{channel.name} does not accept them: {error.message.strip().rstrip('.')}")]
            middle = len(run) // 2
            halves = (run[:middle], run[middle:])
            return [refusal for half in halves for refusal in self._store_run(channel, half, before_try)]
        return []

    def _append_with_retries(self, channel: Channel, run: Sequence[DeadLetter], before_try: Callable[[], None]) -> None:
        events, stamp = self._stamped(run)
        deadline = self._retry.clock() + self._retry.seconds
        while True:
            before_try()
            try:
                channel.append(events, stamp=stamp)
            except MillraceError as error:
                remaining = deadline - self._retry.clock()
                # The replay waits for a slow server, but not for one that is gone.
                passes = error.advice is RetryAdvice.FULL or isinstance(error, (ReplayingError, DeadlineError))
                if not passes or remaining <= 0:
                    raise
                self._progress.waiting(error, self._retry.seconds)
                pause = error.retry_delay_seconds or _PAUSE_SECONDS
                self._retry.sleep(min(pause, remaining, _PAUSE_SECONDS_MAX))
            else:
                return

    def _stamped(self, run: Sequence[DeadLetter]) -> StampedEvents:
        first, last = run[0].sequence, run[-1].sequence
        producer_id = f"replay/{self._channel_id}/{first // NUMBERS_OF_A_PRODUCER}"
        events = [letter.restored(keep_headers=self._keep_headers) for letter in run]
        return StampedEvents(events, Stamp(producer_id, first, last))


def gone_reason(name: str) -> str:
    """Returns why letters stay whose channel does not exist."""
    return f"the server has no channel {name}; create it, or name another with --to"


def _runs(letters: Sequence[DeadLetter], count_max: int) -> Iterator[Sequence[DeadLetter]]:
    """Splits letters into runs that one stamp can cover: consecutive sequences under one producer id."""
    start = 0
    for stop in range(1, len(letters) + 1):
        if stop == len(letters) or stop - start == count_max or not _is_next(letters[stop - 1], letters[stop]):
            yield letters[start:stop]
            start = stop


def _is_next(one: DeadLetter, other: DeadLetter) -> bool:
    return other.sequence == one.sequence + 1 and other.sequence % NUMBERS_OF_A_PRODUCER != 0


def append_pipelined(channel: Channel, appends: Sequence[StampedEvents], after_each: Callable[[], None]) -> int:
    """Stores small appends of one producer, in order, without waiting between them; returns how many are stored.

    Each is stored only if all before it are. Does not report why an append is refused: the caller repeats the rest one
    by one and learns the reason; the stamps keep events that were stored without a response from being stored twice.
    """
    connection = channel._connection  # noqa: SLF001 - of this package; the public API has no call for many appends
    timeout_seconds = connection.settings.timeout_seconds + KEEP_ALIVE_SECONDS
    at_owner = connection.at(connection.owners.endpoint_of(channel.name))
    session: ThreadedAppendSession[StampedEvents]
    session = ThreadedAppendSession(at_owner.opened().channel, at_owner.errors, channel.name, timeout_seconds)
    stored_count = 0
    try:
        for append, encoded in _requests(channel.name, appends):
            session.send(append, encoded, now=0.0)
        session.half_close()
        with suppress(MillraceError):
            for response in session.responses():
                _, error = session.match(response, now=0.0)
                if error is not None:
                    break
                stored_count += 1
                after_each()
    finally:
        session.cancel()
    return stored_count


def _requests(channel: str, appends: Sequence[StampedEvents]) -> Iterator[tuple[StampedEvents, bytes]]:
    after: int | None = None
    for append in appends:
        batches = columns_of(append.events)
        if len(batches) != 1:
            # The events have too many different headers for one message.
            return
        stamp = event_pb2.ProducerStamp(
            producer_id=append.stamp.producer_id,
            first_sequence=append.stamp.first_sequence,
            last_sequence=append.stamp.last_sequence,
            after_sequence=after,
        )
        columns = batches[0].SerializeToString()
        yield append, append_request(channel, stamp, (columns,), len(columns))
        after = append.stamp.last_sequence
