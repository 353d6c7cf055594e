"""Has a component do its work, and do it again where it fails."""

import asyncio
from collections.abc import Awaitable, Callable

from millrace_server.agent.backoff import Backoff
from millrace_server.agent.components import Component
from millrace_server.errors import MillraceError

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
