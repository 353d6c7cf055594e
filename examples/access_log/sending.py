"""Sends the lines of a file into a channel."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import millrace_client as millrace
from examples.access_log.log_file import LogFile

BATCH_LINES_MAX = 1_000
BATCH_BYTES_MAX = 1 << 20


@dataclass(frozen=True, kw_only=True)
class RoundLimits:
    """How much is in the channel at once. A larger file takes several rounds of sending and reading."""

    lines_max: int = 200_000
    bytes_max: int = 128 << 20


class Sender:
    """Sends a file, one round after the other."""

    def __init__(self, channel: millrace.Channel, log: LogFile, limits: RoundLimits) -> None:
        self.sent_count = 0
        self._channel = channel
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
        """
        committed = size_bytes = 0
        while (batch := self._next) is not None:
            if committed and not self._fits(committed + len(batch.lines), size_bytes + batch.size_bytes):
                break
            # All or none; of a repeat whose first answer was lost the receipt says that nothing was stored again.
            self._channel.append(millrace.Event(line, self._headers) for line in batch.lines)
            committed += len(batch.lines)
            size_bytes += batch.size_bytes
            on_sent(len(batch.lines))
            self._next = next(self._batches, None)
        self.sent_count += committed
        return committed

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
