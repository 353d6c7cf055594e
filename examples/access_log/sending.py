"""Sends the lines of a file into a channel, through crashes of its server."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import millrace_client as millrace
from examples.access_log.log_file import LogFile

BATCH_LINES_MAX = 1_000
BATCH_BYTES_MAX = 1 << 20

REPEATS_MAX = 30
"""How often a batch is sent again while the server is away. Since the client, too, tries for a while each time, this
bridges about a minute."""
_PAUSE_SECONDS = 0.2


@dataclass(frozen=True, kw_only=True)
class RoundLimits:
    """How much is in the channel at once. A larger file takes several rounds of sending and reading."""

    lines_max: int = 200_000
    bytes_max: int = 128 << 20


class Sender:
    """Sends a file, one round after the other.

    Args:
        channel: Where to.
        log: The file.
        limits: How large a round is.
        pause: Waits so many seconds before a batch is sent again.
    """

    def __init__(
        self,
        channel: millrace.Channel,
        log: LogFile,
        limits: RoundLimits,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._channel = channel
        self._pause = pause
        self._headers = {"file": log.path.name}
        self._limits = limits
        self._batches = _batches(log.lines(), line_count_max=min(BATCH_LINES_MAX, limits.lines_max))
        self._next = next(self._batches, None)

    @property
    def is_done(self) -> bool:
        """Whether the whole file was sent."""
        return self._next is None

    def send_round(self, on_sent: Callable[[int], None]) -> int:
        """Sends until the round is full or the file ends; returns how many lines were committed.

        Args:
            on_sent: Is called with the count of each batch.

        Raises:
            MillraceError: The server refuses, or did not come back in time.
        """
        committed = size_bytes = 0
        while (batch := self._next) is not None:
            if committed and not self._fits(committed + len(batch.lines), size_bytes + batch.size_bytes):
                break
            self._append(batch.lines)
            committed += len(batch.lines)
            size_bytes += batch.size_bytes
            on_sent(len(batch.lines))
            self._next = next(self._batches, None)
        return committed

    def _append(self, lines: list[bytes]) -> None:
        events = [millrace.Event(line, self._headers) for line in lines]
        # The same numbers in each repeat: where the answer was lost, and not the request, nothing is stored again.
        stamp = self._channel.next_stamp(len(events))
        repeat_count = 0
        while True:
            try:
                self._channel.append(events, stamp)
            except (millrace.UnavailableError, millrace.ReplayingError) as error:
                # The server is gone, or back and reading its log. Anything else a repeat cannot mend.
                if repeat_count == REPEATS_MAX:
                    raise
                repeat_count += 1
                self._pause(error.retry_delay_seconds or _PAUSE_SECONDS)
            else:
                return

    def _fits(self, line_count: int, size_bytes: int) -> bool:
        return line_count <= self._limits.lines_max and size_bytes <= self._limits.bytes_max


@dataclass
class _Batch:
    lines: list[bytes] = field(default_factory=list)
    size_bytes: int = 0


def _batches(lines: Iterator[bytes], line_count_max: int) -> Iterator[_Batch]:
    batch = _Batch()
    for line in lines:
        batch.lines.append(line)
        batch.size_bytes += len(line)
        if len(batch.lines) == line_count_max or batch.size_bytes >= BATCH_BYTES_MAX:
            yield batch
            batch = _Batch()
    if batch.lines:
        yield batch
