"""Ctrl-C and SIGTERM: the first one asks a program to end, a second Ctrl-C ends it at once."""

import os
import signal
import threading
from contextlib import suppress
from types import FrameType

_STANDARD_ERROR = 2
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BY_SIGNAL = 128
_AT_ONCE = "millrace-spark: ended at once by Ctrl-C; nothing is lost, and the next start goes on from here\n"
_BEFORE = "\r\x1b[K"
_AFTER = "\x1b[?25h"
"""Of a terminal: wipes the screen's line that changes, and shows the cursor, which that line had hidden."""


class StopSignals:
    """What the process was asked.

    Attributes:
        is_stopping: Set where it was asked to end.
        number: By which signal; None where by none.
    """

    def __init__(self) -> None:
        self.is_stopping = threading.Event()
        self.number: signal.Signals | None = None
        # The terminal's, also while Spark's start writes its own talk to a file under the same number.
        self._errors = os.dup(_STANDARD_ERROR)
        self._former = {number: signal.getsignal(number) for number in _SIGNALS}

    def install(self) -> None:
        """From now on signals set `is_stopping`. Again after Spark's start, which puts its own handler there."""
        for number in _SIGNALS:
            signal.signal(number, self._stop)

    def uninstall(self) -> None:
        """Signals do again what they did before; they are not installed again."""
        for number, former in self._former.items():
            signal.signal(number, former)
        os.close(self._errors)

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal has ended."""
        assert self.number is not None, "no signal came"
        return _BY_SIGNAL + self.number

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self.is_stopping.is_set() and number == signal.SIGINT:
            told = f"{_BEFORE}{_AT_ONCE}{_AFTER}" if os.isatty(self._errors) else _AT_ONCE
            with suppress(OSError):
                # Not by way of Python's file, in which the signal may have come upon somebody who writes.
                os.write(self._errors, told.encode())
            # As abrupt as kill -9, which the next start bears.
            os._exit(_BY_SIGNAL + number)
        self.number = signal.Signals(number)
        self.is_stopping.set()
