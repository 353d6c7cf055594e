"""Supervision of components: each is run again after a failure, with increasing delays."""

import asyncio
import math
import random
from collections.abc import Awaitable, Callable

from millrace_server.agent.components import Component
from millrace_server.errors import MillraceError, NotOwnerError

_HEALTHY_SECONDS = 10.0
"""If a component ran for this long before it failed, the delays start over."""


class Backoff:
    """Delays that double up to a maximum, with jitter, so that components that failed together do not retry together.

    Args:
        count_done: Returns how much work has been done so far. If given, the delays start over only after progress, not
            because time has passed: a server that accepts connections but never responds takes long to fail.
        can_shorten: Whether a requested delay may be shorter than the next regular one.
    """

    def __init__(
        self,
        first_seconds: float = 0.5,
        max_seconds: float = 30.0,
        count_done: Callable[[], int] | None = None,
        *,
        can_shorten: bool = True,
    ) -> None:
        self._first_seconds = first_seconds
        self._max_seconds = max_seconds
        self._next_seconds = first_seconds
        self._count_done = count_done
        self._done_count = 0
        self._can_shorten = can_shorten

    def next_seconds(self, requested_seconds: float | None = None) -> float:
        """Returns the next delay, between half of its nominal length and all of it.

        If the other side has requested a delay, the result is that or slightly more, and the following delays do not
        increase because of it.
        """
        if self._count_done is not None and (done_count := self._count_done()) > self._done_count:
            self._done_count = done_count
            self._next_seconds = self._first_seconds
        if requested_seconds is None:
            return self._due_seconds()
        jitter = random.uniform(1.0, 1.25)  # noqa: S311 - spreads load, guards no secret
        requested_seconds = min(max(requested_seconds, self._first_seconds / 2) * jitter, self._max_seconds)
        return requested_seconds if self._can_shorten else max(requested_seconds, self._due_seconds())

    def _due_seconds(self) -> float:
        delay = self._next_seconds
        self._next_seconds = min(2 * delay, self._max_seconds)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - see above

    def reset(self) -> None:
        """Starts over with the first delay, unless only progress has this effect."""
        if self._count_done is None:
            self._next_seconds = self._first_seconds


class ComponentError(Exception):
    """Raised when a component cannot work now, but a retry may help. The message is a sentence for its state.

    `retry_delay_seconds` is the delay that the other side requested; None leaves it to the back-off.
    """

    def __init__(self, message: str, retry_delay_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_delay_seconds = retry_delay_seconds


class ResponseTimeoutError(ComponentError):
    """Raised when a server has not responded in time."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class ComponentFailedError(ComponentError):
    """Raised when a component cannot work until an operator changes something."""


async def supervise(component: Component, run: Callable[[], Awaitable[None]], backoff: Backoff) -> None:
    """Runs a component until its work is done, with a delay after each failure, which `Component.retry` ends.

    `run` returns when the work is done; it can be called again after it has raised.
    """
    clock = asyncio.get_running_loop().time
    while True:
        began = clock()
        requested_seconds = None
        can_recover = True
        try:
            await run()
        except ComponentFailedError as error:
            component.mark_failed(str(error))
            can_recover = False
        except NotOwnerError as error:
            mark_not_owner(component, error, describe(error))
        except (ComponentError, MillraceError, OSError) as error:
            component.mark_backing_off(describe(error))
            requested_seconds = error.retry_delay_seconds if isinstance(error, ComponentError) else None
        except Exception as error:  # noqa: BLE001 - a bug in one component must not end the others
            component.mark_backing_off(f"{type(error).__name__}: {error}", unexpected=error)
        else:
            component.mark_stopped()
            return
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # The component failed while it was being cancelled, so it must not start again.
            return
        if clock() - began >= _HEALTHY_SECONDS:
            backoff.reset()
        await component.wait_for_retry(backoff.next_seconds(requested_seconds) if can_recover else math.inf)


def mark_not_owner(component: Component, error: NotOwnerError, reason: str) -> None:
    """Shows that another server owns the component's channel, and runs its component, or that there is no owner."""
    if error.metadata.get("address"):
        component.mark_standing_by(reason)
    else:
        component.mark_backing_off(reason)


def describe(error: Exception) -> str:
    """Returns an error as a component's state shows it."""
    if isinstance(error, MillraceError):
        return f"{error.reason}: {error}"
    return str(error) or type(error).__name__
