"""SIGTERM ends a command as Ctrl-C does: what it has taken and not committed goes back first."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn


class TerminatedError(BaseException):
    """Raised in the main thread when the process is asked to end; no `except Exception` stops it."""


def obey_sigterm() -> None:
    """From now on SIGTERM raises `TerminatedError`, so that open transactions are rolled back on the way out."""
    signal.signal(signal.SIGTERM, _terminate)


@contextmanager
def undisguised_interrupts() -> Iterator[None]:
    """Raises interrupts as what they are.

    One that strikes while a lock is given back or taken comes out as the lock's complaint that nobody has it.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt | TerminatedError):
            raise error.__context__ from None
        raise


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise TerminatedError
