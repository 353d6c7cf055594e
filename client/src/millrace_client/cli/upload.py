"""Lines on their way into a channel: through producers that can be resumed, with an account of what is stored."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace_client import (
    MillraceError,
    Producer,
    ProducerClosedError,
    SendAttempt,
    SendFutures,
    SendSummary,
    UnavailableError,
)
from millrace_client.cli.failures import CommandError, exit_code_of, sentence_of
from millrace_client.cli.line_format import LineFormat
from millrace_client.cli.line_routing import LineRouting
from millrace_client.cli.put_account import PutAccount
from millrace_client.cli.put_progress import PutProgress
from millrace_client.producer import ProducerHooks

BATCHES_AHEAD_MAX = 2
"""Batches of lines that are read and not known to be stored: one under way, and one that follows at once."""

CLOSE_SECONDS = 1.0
"""How long what is under way may still be answered for where a put ends early."""

_LOOK_SECONDS = 0.2


class TroubleHooks(ProducerHooks):
    """Remembers why a producer tries again."""

    def __init__(self) -> None:
        self.trouble: SendAttempt | None = None

    def batch_stored(self, channel: str, server: str, event_count: int, seconds: float) -> None:  # noqa: ARG002 - as told
        self.trouble = None

    def attempt_failed(self, channel: str, attempt: SendAttempt, event_count: int, retry_seconds: float | None) -> None:  # noqa: ARG002 - as told
        self.trouble = None if retry_seconds is None else attempt


@dataclass(frozen=True)
class Destination:
    """One server's channel."""

    endpoint: str
    producer: Producer
    """Has the account's producer id, and the number of its next line at this server as first number. So each line is
    stored once, however often it is sent, also by a later run."""
    hooks: TroubleHooks = field(default_factory=TroubleHooks)
    """The producer's."""


class _Share(NamedTuple):
    """What one server gets of a batch."""

    destination: Destination
    places: Sequence[int]
    """Of its lines in the batch, in order."""
    futures: SendFutures

    def summary_before(self, place: int, summary: SendSummary) -> SendSummary:
        """What became of its lines before a place of the batch, all of which are stored, from what became of all."""
        count = bisect_left(self.places, place)
        if count == summary.stored_count:
            return summary
        results = [self.futures[index].settled(0.0) for index in range(count)]
        sequences = [result.sequence for result in results if result.sequence is not None]
        first, last = (sequences[0], sequences[-1]) if sequences else (None, None)
        return SendSummary(len(results), len(results) - len(sequences), first, last, None)


class _Part(NamedTuple):
    """A batch of lines that was sent."""

    lines: Sequence[bytes]
    shares: Sequence[_Share]

    def is_done(self) -> bool:
        """Whether it is known what became of all lines."""
        return all(share.futures[-1].done() for share in self.shares)


class Upload:
    """Sends lines to a channel of one or several servers, and keeps the account.

    Args:
        destinations: The servers, in the routing's order.
        line_format: How lines become events.
        routing: Which server gets which.
        account: What has been done.
        patience_seconds: How long producers try again, for telling.
    """

    def __init__(
        self,
        destinations: Sequence[Destination],
        line_format: LineFormat,
        routing: LineRouting,
        account: PutAccount,
        patience_seconds: float,
    ) -> None:
        self._destinations = destinations
        self._format = line_format
        self._routing = routing
        self.account = account
        self._patience_seconds = patience_seconds
        self._ahead: deque[_Part] = deque()

    def send(self, lines: list[bytes], progress: PutProgress) -> None:
        """Sends a batch, and waits until not too many are ahead.

        Raises:
            InputError: A line holds no event; those before it are sent.
            CommandError: A line is not stored, for longer than the patience where time could help; at its server none
                behind it is.
        """
        first_line = self.account.skipped_lines + self.account.lines_read
        events, error = self._format.events(lines, first_line)
        if events:
            self.account.lines_read += len(events)
            try:
                shares = [
                    _Share(destination, places, destination.producer.send_many([events[place] for place in places]))
                    for destination, places in zip(
                        self._destinations, self._routing.places(events, first_line), strict=True
                    )
                    if places
                ]
            except ProducerClosedError:
                # It has stopped at a line that is ahead: why, is told there.
                self._settle(progress, 0)
                raise
            self._ahead.append(_Part(lines[: len(events)], shares))
        self._settle(progress, BATCHES_AHEAD_MAX - 1)
        if error is not None:
            raise error

    def finish(self, progress: PutProgress) -> None:
        """Waits until all is stored.

        Raises:
            CommandError: As for `send`.
        """
        self._settle(progress, 0)

    def end(self) -> None:
        """Gives up what is not stored soon, and counts what was stored until then."""
        for destination in self._destinations:
            destination.producer.close(CLOSE_SECONDS)
        while self._ahead and self._ahead[0].is_done():
            shares = self._ahead.popleft().shares
            if self._count([(share, share.futures.summary(0.0)) for share in shares]) is not None:
                return

    def _settle(self, progress: PutProgress, ahead_max: int) -> None:
        while len(self._ahead) > ahead_max:
            part = self._ahead[0]
            summaries = [(share, self._summary(share, progress)) for share in part.shares]
            self._ahead.popleft()
            lines_before = self.account.lines_committed
            failed = self._count(summaries)
            line_count = self.account.lines_committed - lines_before
            progress.committed(line_count, sum(len(line) + 1 for line in part.lines[:line_count]))
            if failed is not None:
                # What is ahead lies behind the line that failed, whatever other servers have stored of it.
                self._ahead.clear()
                endpoint, error = failed
                raise CommandError(exit_code_of(error), sentence_of(error, endpoint)) from error

    def _summary(self, share: _Share, progress: PutProgress) -> SendSummary:
        while True:
            try:
                return share.futures.summary(_LOOK_SECONDS)
            except TimeoutError:
                self._tell_trouble(share.destination, progress)

    def _count(self, summaries: Sequence[tuple[_Share, SendSummary]]) -> tuple[str, MillraceError] | None:
        """Counts a batch's lines before the first that is not stored; gives its server, and why it is not."""
        failures = [
            (share.places[summary.stored_count], share.destination.endpoint, summary.failure.error)
            for share, summary in summaries
            if summary.failure is not None and summary.failure.error is not None
        ]
        first = min(failures, key=lambda failure: failure[0], default=None)
        for share, summary in summaries:
            self.account.add(summary if first is None else share.summary_before(first[0], summary))
        return None if first is None else first[1:]

    def _tell_trouble(self, destination: Destination, progress: PutProgress) -> None:
        servers = destination.producer.metrics().servers
        if servers and not any(server.is_connected for server in servers):
            error: MillraceError = UnavailableError(f"no server answers at {destination.endpoint}")
            progress.waiting(error, self._patience_seconds)
        elif (trouble := destination.hooks.trouble) is not None:
            progress.waiting(MillraceError(trouble.message, reason=trouble.reason), self._patience_seconds)
