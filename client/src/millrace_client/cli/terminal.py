"""The terminal: notes on standard error, and the keyboard."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

from millrace.command_line.notes import write_note


def note(sentence: str) -> None:
    """Writes a sentence to standard error."""
    write_note("millrace", sentence)


def note_to_terminal(sentence: str) -> None:
    """Writes a sentence to standard error if it is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        note(sentence)


_READ_BYTES = 1024


class Keyboard:
    """Waits for the key `q` if standard input is a terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def quits_within(self, seconds: float) -> bool:
        """Waits; returns True as soon as `q` is pressed or the terminal is closed."""
        if self._descriptor is None:
            time.sleep(seconds)
            return False
        deadline = time.monotonic() + seconds
        while select.select([self._descriptor], [], [], max(deadline - time.monotonic(), 0))[0]:
            # Bypasses Python's buffer, which select does not see.
            keys = os.read(self._descriptor, _READ_BYTES)
            if not keys or b"q" in keys.lower():
                return True
        return False


@contextmanager
def keyboard_input() -> Iterator[Keyboard]:
    """Reads keys without echo and without Enter; restores the terminal at the end."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield Keyboard(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
