"""Has a component do its work, and do it again where it fails."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from millrace_server.agent.backoff import Backoff
from millrace_server.agent.components import Component
from millrace_server.errors import MillraceError

_log = structlog.stdlib.get_logger(__name__)

_WELL_SECONDS = 10.0
"""Who has worked this long before a failure begins with the shortest delay again."""


class ComponentError(Exception):
    """Returned when a component cannot do its work now; the message says why, in a sentence for its state.

    Trying again may help.
    """


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
        try:
            await run()
        except ComponentFailedError as error:
            component.fails(str(error))
            return
        except (ComponentError, MillraceError, OSError) as error:
            component.backs_off(describe(error))
        except Exception as error:  # noqa: BLE001 - a bug in one component, or in a user's own, must not end the others
            _log.exception("a component raised an error that it should not", component=component.name)
            component.backs_off(f"{type(error).__name__}: {error}")
        else:
            component.stops()
            return
        if clock() - began >= _WELL_SECONDS:
            backoff.reset()
        await asyncio.sleep(backoff.next_seconds())


def describe(error: Exception) -> str:
    """An error as a component's state tells it."""
    if isinstance(error, MillraceError):
        return f"{error.reason}: {error}"
    return str(error)
