"""Where dead letters go back to, each exactly once."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol

from millrace_client.channel import Channel
from millrace_client.client import Client
from millrace_client.dead_letters.letters import DeadLetter
from millrace_client.dead_letters.pipelining import StampedEvents, append_pipelined
from millrace_client.errors import BadNameError, ChannelNotFoundError, DeadlineError, MillraceError, RetryAdvice
from millrace_client.events import Stamp

NUMBERS_OF_A_PRODUCER = 10_000
"""So many sequences are stamped under one name.

A channel bears only so many gaps in a producer's numbers, and what goes elsewhere or stays is a gap. Of so few numbers
there cannot be as many gaps as it bears.
"""

PIPELINED_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of bodies that are sent without waiting for answers."""

_PAUSE_SECONDS = 0.2
_PAUSE_SECONDS_MAX = 1.0
_TARGETS_MAX = 1_000


class ReplayProgress(Protocol):
    """What a replay tells while it runs."""

    def committed(self, event_count: int, body_bytes: int, /) -> None:
        """So many more events have gone back."""

    def waiting(self, error: MillraceError, patience_seconds: float, /) -> None:
        """A channel refuses for now; the replay tries again for at most so long."""


@dataclass(frozen=True)
class ReplayPatience:
    """How long events are offered again to a channel that has no room for them."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Refusal(NamedTuple):
    """A letter that its channel does not take, whatever time may bring."""

    letter: DeadLetter
    reason: str
    """In a sentence."""


class _Target(NamedTuple):
    channel: Channel
    transaction_capacity: int


class Targets:
    """The channels that dead letters go back to.

    Args:
        client: The server.
        channel_id: The dead-letter channel's. With an event's sequence there it names the event for ever, so that
            each channel stores it once, however often it is brought.
        patience: For channels that are full.
        keep_headers: Whether what tells of the rejection stays with the event.
        progress: Told when there is something to wait for.
    """

    def __init__(
        self, client: Client, channel_id: str, patience: ReplayPatience, progress: ReplayProgress, *, keep_headers: bool
    ) -> None:
        self._client = client
        self._channel_id = channel_id
        self._patience = patience
        self._progress = progress
        self._keep_headers = keep_headers
        self._targets: dict[str, _Target | None] = {}

    def is_there(self, name: str) -> bool:
        """Whether the server has such a channel."""
        if name not in self._targets:
            if len(self._targets) >= _TARGETS_MAX:
                self._targets.clear()
            self._targets[name] = self._find(name)
        return self._targets[name] is not None

    def store(self, name: str, letters: Sequence[DeadLetter], before_try: Callable[[], None]) -> list[Refusal]:
        """Brings letters to a channel that is there.

        Args:
            name: The channel.
            letters: In order.
            before_try: Called before each call to the server.

        Returns:
            Those that the channel will not take; all others are stored.

        Raises:
            MillraceError: The channel does not take them now.
        """
        target = self._targets[name]
        assert target is not None, "asked before"
        refusals: list[Refusal] = []
        try:
            runs = _runs(letters, target.transaction_capacity)
            for _, runs_of_producer in groupby(runs, lambda run: run[0].sequence // NUMBERS_OF_A_PRODUCER):
                refusals += self._store_runs(target.channel, list(runs_of_producer), before_try)
        except ChannelNotFoundError as error:
            if error.channel not in ("", name):
                # The letters' own channel has gone.
                raise
            # It was deleted just now.
            self._targets[name] = None
            return [Refusal(letter, gone_reason(name)) for letter in letters]
        return refusals

    def _find(self, name: str) -> _Target | None:
        try:
            info = self._client.admin.get_channel(name)
        except (ChannelNotFoundError, BadNameError):
            return None
        return _Target(self._client.channel(name), info.config.transaction_capacity)

    def _store_runs(
        self, channel: Channel, runs: Sequence[Sequence[DeadLetter]], before_try: Callable[[], None]
    ) -> list[Refusal]:
        stored_count = 0
        body_bytes = sum(len(letter.event.body) for run in runs for letter in run)
        if len(runs) > 1 and body_bytes <= PIPELINED_BYTES_MAX:
            # Where letters of several channels lie among each other, each run is short.
            stored_count = append_pipelined(channel, [self._stamped(run) for run in runs], before_try)
        return [refusal for run in runs[stored_count:] for refusal in self._store_run(channel, run, before_try)]

    def _store_run(self, channel: Channel, run: Sequence[DeadLetter], before_try: Callable[[], None]) -> list[Refusal]:
        try:
            self._append_patiently(channel, run, before_try)
        except MillraceError as error:
            if error.advice not in (RetryAdvice.CORRECT, RetryAdvice.SMALLER):
                raise
            if len(run) == 1:
                return [Refusal(run[0], f"{channel.name} does not take them: {error.message.strip().rstrip('.')}")]
            middle = len(run) // 2
            halves = (run[:middle], run[middle:])
            return [refusal for half in halves for refusal in self._store_run(channel, half, before_try)]
        return []

    def _append_patiently(self, channel: Channel, run: Sequence[DeadLetter], before_try: Callable[[], None]) -> None:
        events, stamp = self._stamped(run)
        gives_up_at = self._patience.clock() + self._patience.seconds
        while True:
            before_try()
            try:
                channel.append(events, stamp=stamp)
            except MillraceError as error:
                remaining = gives_up_at - self._patience.clock()
                # A server that has gone is not waited for; one that is slow is.
                passes = error.advice in (RetryAdvice.FULL, RetryAdvice.LATER) or isinstance(error, DeadlineError)
                if not passes or remaining <= 0:
                    raise
                self._progress.waiting(error, self._patience.seconds)
                pause = error.retry_delay_seconds or _PAUSE_SECONDS
                self._patience.sleep(min(pause, remaining, _PAUSE_SECONDS_MAX))
            else:
                return

    def _stamped(self, run: Sequence[DeadLetter]) -> StampedEvents:
        first, last = run[0].sequence, run[-1].sequence
        producer_id = f"replay/{self._channel_id}/{first // NUMBERS_OF_A_PRODUCER}"
        events = [letter.restored(keep_headers=self._keep_headers) for letter in run]
        return StampedEvents(events, Stamp(producer_id, first, last))


def gone_reason(name: str) -> str:
    """Why the letters of a channel stay that is not there."""
    return f"the server has no channel {name}; make it, or name another with --to"


def _runs(letters: Sequence[DeadLetter], count_max: int) -> Iterator[Sequence[DeadLetter]]:
    """Cuts where one stamp cannot name all: their numbers must follow each other and be one producer's."""
    start = 0
    for stop in range(1, len(letters) + 1):
        if stop == len(letters) or stop - start == count_max or not _is_next(letters[stop - 1], letters[stop]):
            yield letters[start:stop]
            start = stop


def _is_next(one: DeadLetter, other: DeadLetter) -> bool:
    return other.sequence == one.sequence + 1 and other.sequence % NUMBERS_OF_A_PRODUCER != 0
