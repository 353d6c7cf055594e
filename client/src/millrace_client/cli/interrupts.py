"""SIGTERM ends a command as Ctrl-C does: what it has taken and not committed goes back first."""

import signal
from types import FrameType
from typing import NoReturn


class TerminatedError(BaseException):
    """Raised in the main thread when the process is asked to end; no `except Exception` stops it."""


def obey_sigterm() -> None:
    """From now on SIGTERM raises `TerminatedError`, so that open transactions are rolled back on the way out."""
    signal.signal(signal.SIGTERM, _terminate)


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise TerminatedError
