"""Lines on their way into a channel: batch by batch, each exactly once, with patience where there is no room."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millrace_client import Channel, Event, MillraceError, Receipt, Stamp
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

    def __init__(self, channel: Channel, headers: Mapping[str, str], account: PutAccount, patience: Patience) -> None:
        self._channel = channel
        self._headers = headers
        self.account = account
        """What has been done."""
        self._patience = patience

    def send(self, lines: list[bytes], progress: PutProgress) -> None:
        """Stores one batch; once this returns it is committed.

        Raises:
            MillraceError: The server refused it, for longer than the patience where time could help.
        """
        self.account.lines_read += len(lines)
        receipt = self._append_patiently(lines, progress)
        self.account.add(len(lines), receipt)
        progress.committed(len(lines), sum(map(len, lines)) + len(lines))

    def _append_patiently(self, lines: list[bytes], progress: PutProgress) -> Receipt:
        gives_up_at = self._patience.clock() + self._patience.seconds
        while True:
            try:
                return self._append(lines)
            except MillraceError as error:
                remaining = gives_up_at - self._patience.clock()
                if error.reason not in RETRIED_REASONS or remaining <= 0:
                    raise
                progress.waiting(error, self._patience.seconds)
                pause = error.retry_delay_seconds or _PAUSE_SECONDS
                self._patience.sleep(min(pause, remaining, _PAUSE_SECONDS_MAX))

    def _append(self, lines: list[bytes]) -> Receipt:
        first = self.account.next_line
        stamp = Stamp(self.account.producer_id, first, first + len(lines) - 1)
        events = [Event(line, self._headers) for line in lines] if self._headers else lines
        return self._channel.append(events, stamp=stamp)
