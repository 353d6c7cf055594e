"""Lines on their way into a channel: batch by batch, each exactly once, with patience where there is no room."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from millrace_client import Channel, Event, MillraceError, Receipt, Stamp
from millrace_client.cli.json_lines import event_of_line
from millrace_client.cli.line_source import InputError
from millrace_client.cli.put_account import PutAccount
from millrace_client.cli.put_progress import PutProgress

RETRIED_REASONS = frozenset(
    {"CHANNEL_FULL", "BYTES_FULL", "DISK_FULL", "OVERLOADED", "TOO_MANY_TXNS", "REPLAYING", "DEADLINE"}
)
"""What time may lift while the server stays up. An answer may be late because the channel waits long for room."""

_PAUSE_SECONDS = 0.2
_PAUSE_SECONDS_MAX = 1.0


@dataclass(frozen=True)
class Patience:
    """How long one batch is tried again."""

    seconds: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Upload:
    """Appends lines to a channel and keeps the account.

    Each batch carries a stamp with the numbers of its lines. So a batch whose answer was lost is stored once, however
    often it is sent, also by a later run under the same producer id.
    """

    def __init__(
        self,
        channel: Channel,
        headers: Mapping[str, str],
        account: PutAccount,
        patience: Patience,
        *,
        is_json: bool = False,
    ) -> None:
        self._channel = channel
        self._headers = headers
        self._is_json = is_json
        self.account = account
        """What has been done."""
        self._patience = patience

    def send(self, lines: list[bytes], progress: PutProgress) -> None:
        """Stores one batch; once this returns it is committed.

        Raises:
            InputError: A line holds no event; those before it in the batch are stored.
            MillraceError: The server refused it, for longer than the patience where time could help.
        """
        events, error = self._events(lines)
        lines = lines[: len(events)]
        if events:
            self._send(lines, events, progress)
        if error is not None:
            raise error

    def _send(self, lines: list[bytes], events: Sequence[Event | bytes], progress: PutProgress) -> None:
        self.account.lines_read += len(lines)
        receipt = self._append_patiently(events, progress)
        self.account.add(len(lines), receipt)
        progress.committed(len(lines), sum(map(len, lines)) + len(lines))

    def _events(self, lines: list[bytes]) -> tuple[Sequence[Event | bytes], InputError | None]:
        """The events of all lines, or of those before the first that holds none, and what is wrong with that."""
        if not self._is_json:
            return ([Event(line, self._headers) for line in lines] if self._headers else lines), None
        events: list[Event] = []
        for line in lines:
            try:
                event = event_of_line(line)
            except ValueError as error:
                number = self.account.next_line + len(events) + 1
                return events, InputError(f"line {number:,} {error}")
            events.append(Event(event.body, {**self._headers, **event.headers}))
        return events, None

    def _append_patiently(self, events: Sequence[Event | bytes], progress: PutProgress) -> Receipt:
        gives_up_at = self._patience.clock() + self._patience.seconds
        while True:
            try:
                return self._append(events)
            except MillraceError as error:
                remaining = gives_up_at - self._patience.clock()
                if error.reason not in RETRIED_REASONS or remaining <= 0:
                    raise
                progress.waiting(error, self._patience.seconds)
                pause = error.retry_delay_seconds or _PAUSE_SECONDS
                self._patience.sleep(min(pause, remaining, _PAUSE_SECONDS_MAX))

    def _append(self, events: Sequence[Event | bytes]) -> Receipt:
        first = self.account.next_line
        stamp = Stamp(self.account.producer_id, first, first + len(events) - 1)
        return self._channel.append(events, stamp=stamp)
