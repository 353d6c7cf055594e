"""What a producer tells the log: trouble that a program which keeps no futures would not notice."""

import logging
import time
from collections.abc import Callable

from millrace_client.errors import MillraceError

LOG = logging.getLogger("millrace_client.producer")

AGAIN_SECONDS = 60.0
"""How long trouble of one kind is not told again."""

_KINDS_MAX = 1_000


class Teller:
    """Tells each kind of trouble once, and again after a while where it lasts. Not for several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._told_at: dict[tuple[str, str, str], float] = {}
        self._untold_events: dict[tuple[str, str, str], int] = {}
        self._is_cut_off = False

    def refused(self, server: str, channel: str, error: MillraceError, pause_seconds: float) -> None:
        """A batch was refused or not answered, and goes again."""
        if self._is_news(server, channel, error.reason):
            message = "a batch for %s at %s goes again, first in %.1f s: %s"
            LOG.warning(message, channel, server, pause_seconds, error.message)

    def failed(self, channel: str, event_count: int, error: MillraceError) -> None:
        """Events have failed for good."""
        kind = ("", channel, error.reason)
        event_count += self._untold_events.pop(kind, 0)
        if self._is_news(*kind):
            noun = "event" if event_count == 1 else "events"
            LOG.warning("%d %s for %s not stored: %s", event_count, noun, channel, error.message)
        else:
            self._untold_events[kind] = event_count

    def reached(self, *, is_any: bool, names: str) -> None:
        """Whether any server may be reached."""
        if not is_any and not self._is_cut_off:
            LOG.warning("cannot reach %s; what was sent waits", names)
        self._is_cut_off = not is_any

    def _is_news(self, server: str, channel: str, reason: str) -> bool:
        now = self._clock()
        if len(self._told_at) >= _KINDS_MAX:
            self._told_at.clear()
            self._untold_events.clear()
        if now < self._told_at.get((server, channel, reason), -AGAIN_SECONDS) + AGAIN_SECONDS:
            return False
        self._told_at[server, channel, reason] = now
        return True
