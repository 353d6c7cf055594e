"""Ctrl-C and SIGTERM: the first one asks a program to end, a second Ctrl-C ends it at once."""

import os
import signal
import threading
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BY_SIGNAL = 128


class StopSignals:
    """What the process was asked.

    Attributes:
        is_stopping: Set where it was asked to end.
        number: By which signal; None where by none.
    """

    def __init__(self) -> None:
        self.is_stopping = threading.Event()
        self.number: signal.Signals | None = None
        self._former = {number: signal.getsignal(number) for number in _SIGNALS}

    def install(self) -> None:
        """From now on signals set `is_stopping`. Again after Spark's start, which puts its own handler there."""
        for number in _SIGNALS:
            signal.signal(number, self._stop)

    def uninstall(self) -> None:
        """Signals do again what they did before."""
        for number, former in self._former.items():
            signal.signal(number, former)

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal has ended."""
        assert self.number is not None, "no signal came"
        return _BY_SIGNAL + self.number

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        if self.is_stopping.is_set() and number == signal.SIGINT:
            # As abrupt as kill -9, which the next start bears.
            os._exit(_BY_SIGNAL + number)
        self.number = signal.Signals(number)
        self.is_stopping.set()
