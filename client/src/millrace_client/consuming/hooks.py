"""What a consumer tells while it works."""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import ParamSpec

from millrace_client._delivered import DeliveredEvents

_Arguments = ParamSpec("_Arguments")
_LOG = logging.getLogger("millrace_client.consumer")


class ConsumerHooks:
    """Is told what happens; override what is of interest.

    Hooks are called by whoever does the work, as soon as that is done, so they must be quick, and must not wait. One
    that raises is logged, and harms nobody.
    """

    def delivered(self, delivery: DeliveredEvents) -> None:
        """A delivery has come."""

    def settled(self, delivery: DeliveredEvents, work_seconds: float, *, is_ack: bool) -> None:
        """A delivery was acknowledged or returned, so long after it was handed out."""

    def lost(self, delivery: DeliveredEvents) -> None:
        """A delivery's stream broke before it was settled: it cannot be any more, and its events come again."""

    def handler_failed(self, delivery: DeliveredEvents, error: Exception, retry_seconds: float) -> None:
        """A handler raised; the delivery is tried again after so long."""

    def disconnected(self, endpoint: str, channel: str, error: Exception, retry_seconds: float) -> None:
        """A stream broke, or could not be begun; it is tried again after so long."""

    def failed(self, endpoint: str, channel: str, error: Exception) -> None:
        """A channel at a server was given up; the consumer's loop is told too."""


class Notes:
    """Calls of hooks and of the log that are to be made once no lock is held: they are strangers' code."""

    def __init__(self) -> None:
        self._calls: deque[Callable[[], None]] = deque()

    def add(self, call: Callable[_Arguments, None], *args: _Arguments.args, **named: _Arguments.kwargs) -> None:
        """Notes a call."""
        self._calls.append(partial(call, *args, **named))

    def pass_on(self) -> None:
        """Makes the calls; whatever they raise is logged. Threads may do so at once."""
        while self._calls:
            try:
                call = self._calls.popleft()
            except IndexError:
                # Another thread was quicker.
                return
            try:
                call()
            except Exception:  # noqa: BLE001 - strangers' code
                _LOG.exception("a hook of a consumer raised")
