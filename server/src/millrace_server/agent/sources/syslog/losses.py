"""What a syslog source could not take, counted, and told without floods."""

import time
from collections import Counter
from collections.abc import Callable
from enum import Enum

import structlog

TELL_SECONDS = 60.0
"""Each kind of loss is told at once, then so often at most, with how much it was meanwhile."""

_log = structlog.stdlib.get_logger(__name__)


class Loss(Enum):
    """What was lost, and what to do about it."""

    DATAGRAMS = "datagrams came faster than they could be stored; raise udp_receive_buffer_bytes, or use TCP"
    LONG_MESSAGES = "messages were longer than message_bytes_max, and long_messages says that these are dropped"
    FRAMING = "a TCP stream was not of counted messages although framing says so, and was closed"
    CONNECTIONS = "TCP connections were above connections_max, and were closed"
    UNSTORED = "messages had come, but could not be stored before the source had to end"

    @property
    def is_of_messages(self) -> bool:
        """Whether it counts messages that are gone, and not what keeps them from coming."""
        return self in {Loss.DATAGRAMS, Loss.LONG_MESSAGES, Loss.UNSTORED}


class Losses:
    """Counts what was lost.

    Attributes:
        counts: How much was lost of each kind since the source was made.
        on_lost_messages: Called with how many messages are gone, each time that some are.
    """

    def __init__(self, source: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._source = source
        self._clock = clock
        self._told_at: dict[Loss, float] = {}
        self._told: Counter[Loss] = Counter()
        self.counts: Counter[Loss] = Counter()
        self.on_lost_messages: Callable[[int], None] = lambda _count: None

    def note(self, loss: Loss, count: int = 1) -> None:
        """Counts a loss; tells it now, or with the next of its kind, or in the end."""
        self.counts[loss] += count
        if loss.is_of_messages:
            self.on_lost_messages(count)
        now = self._clock()
        if loss not in self._told_at or now - self._told_at[loss] >= TELL_SECONDS:
            self._tell(loss)
            self._told_at[loss] = now

    def tell_rest(self) -> None:
        """Tells what was not told yet."""
        for loss in self.counts:
            if self.counts[loss] > self._told[loss]:
                self._tell(loss)

    def _tell(self, loss: Loss) -> None:
        count = self.counts[loss] - self._told[loss]
        self._told[loss] = self.counts[loss]
        _log.warning("syslog was lost", source=self._source, count=count, total=self.counts[loss], reason=loss.value)
