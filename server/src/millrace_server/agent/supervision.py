"""How long to wait before the next try."""

import asyncio
import random
from collections.abc import Awaitable, Callable

from millrace_server.agent.components import Component
from millrace_server.errors import MillraceError


class Backoff:
    """Delays that double up to a maximum, each with jitter, so that many who failed together come back apart.

    Args:
        first_seconds: About the first delay.
        max_seconds: No delay is longer.
    """

    def __init__(self, first_seconds: float = 0.5, max_seconds: float = 30.0) -> None:
        self._first_seconds = first_seconds
        self._max_seconds = max_seconds
        self._next_seconds = first_seconds

    def next_seconds(self, asked_seconds: float | None = None) -> float:
        """The next delay: between half of its nominal length and all of it.

        Args:
            asked_seconds: What the other side has asked for, if it did: then the delay is that or a little more, and
                the following ones are not longer for it.
        """
        if asked_seconds is not None:
            asked_seconds = max(asked_seconds, self._first_seconds / 2) * random.uniform(1.0, 1.25)  # noqa: S311 - as below
            return min(asked_seconds, self._max_seconds)
        delay = self._next_seconds
        self._next_seconds = min(2 * delay, self._max_seconds)
        return delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, guards no secret

    def reset(self) -> None:
        """Begins with the first delay again."""
        self._next_seconds = self._first_seconds


class EarnedBackoff(Backoff):
    """Begins with the first delay again where something was done since the last failure, and only there.

    A server that takes connections and never answers takes long to fail: how long a try lasted says nothing.

    Args:
        done_count: How much was done so far.
        first_seconds: About the first delay.
        max_seconds: No delay is longer.
    """

    def __init__(self, done_count: Callable[[], int], first_seconds: float = 0.5, max_seconds: float = 30.0) -> None:
        super().__init__(first_seconds, max_seconds)
        self._done_count = done_count
        self._seen_count = 0

    def next_seconds(self, asked_seconds: float | None = None) -> float:
        if (done_count := self._done_count()) > self._seen_count:
            self._seen_count = done_count
            super().reset()
        return super().next_seconds(asked_seconds)

    def reset(self) -> None:
        """Does nothing: that time has passed is no reason."""


_WELL_SECONDS = 10.0
"""Who has worked this long before a failure begins with the shortest delay again."""


class ComponentError(Exception):
    """Returned when a component cannot do its work now; the message says why, in a sentence for its state.

    Trying again may help.

    Attributes:
        retry_delay_seconds: After how long, where somebody has said so; None where the back-off decides.
    """

    def __init__(self, message: str, retry_delay_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_delay_seconds = retry_delay_seconds


class SilentError(ComponentError):
    """Returned when somebody has not answered.

    Attributes:
        seconds: For how long.
    """

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class ComponentFailedError(ComponentError):
    """Returned when a component cannot do its work until somebody changes something."""


async def supervise(component: Component, run: Callable[[], Awaitable[None]], backoff: Backoff) -> None:
    """Runs a component's work until it is done, with delays between failures.

    Args:
        component: Whose state tells how it goes.
        run: The work. It ends when it is done, or raises; it may be run again at once after it raised.
        backoff: The delays.
    """
    clock = asyncio.get_running_loop().time
    while True:
        began = clock()
        asked_seconds = None
        try:
            await run()
        except ComponentFailedError as error:
            component.fails(str(error))
            return
        except (ComponentError, MillraceError, OSError) as error:
            component.backs_off(describe(error))
            asked_seconds = error.retry_delay_seconds if isinstance(error, ComponentError) else None
        except Exception as error:  # noqa: BLE001 - a bug in one component, or in a user's own, must not end the others
            component.backs_off(f"{type(error).__name__}: {error}", unexpected=error)
        else:
            component.stops()
            return
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # It was told to end, and failed while it did; it must not begin again.
            return
        if clock() - began >= _WELL_SECONDS:
            backoff.reset()
        await asyncio.sleep(backoff.next_seconds(asked_seconds))


def describe(error: Exception) -> str:
    """An error as a component's state tells it."""
    if isinstance(error, MillraceError):
        return f"{error.reason}: {error}"
    return str(error)
