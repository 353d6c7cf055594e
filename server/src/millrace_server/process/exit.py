"""The end of the process, once all is done that must be done."""

import os
import threading

import structlog

LEAVING_SECONDS = 3.0
"""How long threads may go on after the last channel was closed."""

_log = structlog.stdlib.get_logger(__name__)


def leave_soon() -> None:
    """Ends the process in a few seconds at the latest, even where a thread never ends.

    Python waits for threads at its end, and one that writes to a file system that is gone waits for ever. To be called
    when nothing is left to lose.
    """
    timer = threading.Timer(LEAVING_SECONDS, _leave)
    timer.daemon = True
    timer.start()


def _leave() -> None:
    stuck = [thread.name for thread in threading.enumerate() if not thread.daemon and thread.is_alive()]
    _log.warning("threads do not end; the process ends without them", threads=stuck)
    os._exit(0)
