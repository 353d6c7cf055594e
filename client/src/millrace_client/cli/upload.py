"""Sends lines through producers, and keeps an account of the stored lines so that a put can be resumed."""

import shlex
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from millrace.units import counted
from millrace_client import (
    MillraceError,
    Producer,
    ProducerClosedError,
    SendAttempt,
    SendFutures,
    SendSummary,
    UnavailableError,
)
from millrace_client.cli.exit_status import CommandError, exit_code_of, sentence_of
from millrace_client.cli.line_events import LineFormat, LineRouting
from millrace_client.cli.progress import PutProgress
from millrace_client.producer import ProducerHooks

BATCHES_AHEAD_MAX = 2
"""Batches of lines that are read and not yet stored: one in flight, and one that follows at once."""
CLOSE_SECONDS = 1.0
"""How long a put that ends early waits for the batches in flight."""
_POLL_SECONDS = 0.2


@dataclass(slots=True)
class PutAccount:
    """The outcome of a put so far. Lines are numbered from 0, including skipped ones."""

    channel: str
    producer_id: str
    skipped_lines: int = 0
    """Lines that `--skip-lines` left out."""
    lines_read: int = 0
    """Lines read after the skipped ones."""
    lines_committed: int = 0
    """Lines of these that are stored, by this run or by an earlier one with the same producer id."""
    events_committed: int = 0
    """Events that this run has stored."""
    first_sequence: int = field(default=0)
    """Sequence of the first of them; 0 if there is none."""
    last_sequence: int = field(default=0)
    """Sequence of the last of them. Events of other producers may be in between."""
    server_count: int = 1
    """Servers that the lines are distributed over; with several, sequences are not reported."""

    def add(self, summary: SendSummary) -> None:
        """Adds lines that a server has stored."""
        self.lines_committed += summary.stored_count
        self.events_committed += summary.stored_count - summary.repeated_count
        if self.server_count > 1:
            return
        self.first_sequence = self.first_sequence or summary.first_sequence or 0
        self.last_sequence = summary.last_sequence or self.last_sequence

    @property
    def next_line(self) -> int:
        """The number of the first line that is not known to be stored."""
        return self.skipped_lines + self.lines_committed

    def document(self, *, is_complete: bool) -> dict[str, object]:
        return {**asdict(self), "complete": is_complete, "resume_skip_lines": self.next_line}

    def sentence(self) -> str:
        parts = [counted(self.lines_read, "line") + " read", counted(self.events_committed, "event") + " committed"]
        if self.skipped_lines:
            parts.insert(0, counted(self.skipped_lines, "line") + " skipped")
        if repeats := self.lines_committed - self.events_committed:
            parts.append(f"{repeats:,} of the lines stored before")
        if self.first_sequence:
            parts.append(f"sequences {self.first_sequence:,} to {self.last_sequence:,}")
        return f"{self.channel}: {', '.join(parts)}"

    def resume_command(self, file: Path | None, options: list[str]) -> str:
        """Returns the command that stores the rest of the same input."""
        words = ["millrace", "put", self.channel, *([str(file)] if file else []), *options]
        words += ["--skip-lines", str(self.next_line), "--producer-id", self.producer_id]
        return shlex.join(words)


class TroubleHooks(ProducerHooks):
    """Remembers the error that a producer retries."""

    def __init__(self) -> None:
        self.trouble: SendAttempt | None = None

    def batch_stored(self, channel: str, server: str, event_count: int, seconds: float) -> None:  # noqa: ARG002 - the signature of the hook
        self.trouble = None

    def attempt_failed(self, channel: str, attempt: SendAttempt, event_count: int, retry_seconds: float | None) -> None:  # noqa: ARG002 - the signature of the hook
        self.trouble = None if retry_seconds is None else attempt


@dataclass(frozen=True)
class Destination:
    """One server's channel."""

    endpoint: str
    producer: Producer
    """Numbers its lines from the account's producer id and the next line of this server, so that each line is stored
    once even if a later run sends it again."""
    hooks: TroubleHooks = field(default_factory=TroubleHooks)


class _Share(NamedTuple):
    """One server's lines of a batch."""

    destination: Destination
    indexes: Sequence[int]
    """The indexes of its lines in the batch, in order."""
    futures: SendFutures

    def summary_before(self, index: int, summary: SendSummary) -> SendSummary:
        """Returns the summary of the lines before an index of the batch, all of which are stored."""
        count = bisect_left(self.indexes, index)
        if count == summary.stored_count:
            return summary
        results = [self.futures[number].settled(0.0) for number in range(count)]
        sequences = [result.sequence for result in results if result.sequence is not None]
        first, last = (sequences[0], sequences[-1]) if sequences else (None, None)
        return SendSummary(len(results), len(results) - len(sequences), first, last, None)


class _SentBatch(NamedTuple):
    """A batch of lines in flight."""

    lines: Sequence[bytes]
    shares: Sequence[_Share]

    def is_done(self) -> bool:
        return all(share.futures[-1].done() for share in self.shares)


class Upload:
    """Sends lines to a channel of one or several servers, and keeps the account.

    The destinations are in the routing's order. Messages say the patience, which is how long the producers retry.
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
        self._ahead: deque[_SentBatch] = deque()

    def send(self, lines: list[bytes], progress: PutProgress) -> None:
        """Sends a batch, and waits while too many are in flight.

        Raises:
            InputError: A line is not an event; the lines before it are sent.
            CommandError: A line could not be stored within the patience; no later line of its server is stored.
        """
        first_line = self.account.skipped_lines + self.account.lines_read
        events, error = self._format.events(lines, first_line)
        if events:
            self.account.lines_read += len(events)
            try:
                shares = [
                    _Share(destination, indexes, destination.producer.send_many([events[index] for index in indexes]))
                    for destination, indexes in zip(
                        self._destinations, self._routing.indexes_by_server(events, first_line), strict=True
                    )
                    if indexes
                ]
            except ProducerClosedError:
                # It has stopped at an earlier line; settling that line raises the error.
                self._settle(progress, 0)
                raise
            self._ahead.append(_SentBatch(lines[: len(events)], shares))
        self._settle(progress, BATCHES_AHEAD_MAX - 1)
        if error is not None:
            raise error

    def finish(self, progress: PutProgress) -> None:
        """Waits until all lines are stored."""
        self._settle(progress, 0)

    def close(self) -> None:
        """Closes the producers, and counts the lines that are stored by then."""
        try:
            for destination in self._destinations:
                destination.producer.close(CLOSE_SECONDS)
        except BaseException:
            # Ctrl-C for the second time, for example: the program ends at once.
            for destination in self._destinations:
                destination.producer.close(0.0)
            raise
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
                # Later batches come after the failed line, even if other servers have stored parts of them.
                self._ahead.clear()
                endpoint, error = failed
                raise CommandError(exit_code_of(error), sentence_of(error, endpoint)) from error

    def _summary(self, share: _Share, progress: PutProgress) -> SendSummary:
        while True:
            try:
                return share.futures.summary(_POLL_SECONDS)
            except TimeoutError:
                self._report_trouble(share.destination, progress)

    def _count(self, summaries: Sequence[tuple[_Share, SendSummary]]) -> tuple[str, MillraceError] | None:
        """Counts a batch's lines before the first failed one; returns the server and the error of that line."""
        failures = [
            (share.indexes[summary.stored_count], share.destination.endpoint, summary.failure.error)
            for share, summary in summaries
            if summary.failure is not None and summary.failure.error is not None
        ]
        first = min(failures, key=lambda failure: failure[0], default=None)
        for share, summary in summaries:
            self.account.add(summary if first is None else share.summary_before(first[0], summary))
        return None if first is None else first[1:]

    def _report_trouble(self, destination: Destination, progress: PutProgress) -> None:
        servers = destination.producer.metrics().servers
        if servers and not any(server.is_connected for server in servers):
            error: MillraceError = UnavailableError(f"no server responds at {destination.endpoint}")
            progress.waiting(error, self._patience_seconds)
        elif (trouble := destination.hooks.trouble) is not None:
            progress.waiting(MillraceError(trouble.message, reason=trouble.reason), self._patience_seconds)
