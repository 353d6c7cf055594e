"""The key that ends a screen."""

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

try:
    import termios
    import tty
except ImportError:
    # Not a POSIX system: keys are not read there, and Ctrl-C ends the screen.
    _HAS_TERMINALS = False
else:
    _HAS_TERMINALS = True

_READ_BYTES = 1024


class Keyboard:
    """Waits, and hears `q` where standard input is a terminal."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def quits_within(self, seconds: float) -> bool:
        """Waits so long; True as soon as `q` is pressed or the terminal has gone."""
        if self._descriptor is None:
            time.sleep(seconds)
            return False
        deadline = time.monotonic() + seconds
        while select.select([self._descriptor], [], [], max(deadline - time.monotonic(), 0))[0]:
            # Read past Python's buffer: select does not know what lies in there.
            keys = os.read(self._descriptor, _READ_BYTES)
            if not keys or b"q" in keys.lower():
                return True
        return False


@contextmanager
def heard_keys() -> Iterator[Keyboard]:
    """Keys come at once and unseen within the block; the terminal is as before after it."""
    if not _HAS_TERMINALS or sys.stdin is None or not sys.stdin.isatty():
        yield Keyboard(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
