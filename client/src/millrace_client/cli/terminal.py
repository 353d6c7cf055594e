"""The terminal: notes on standard error, and the keyboard."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from millrace.command_line.notes import write_note
from millrace_client.cli.exit_status import CommandError, ExitCode


def note(sentence: str) -> None:
    """Writes a sentence to standard error."""
    write_note("millrace", sentence)


def note_to_terminal(sentence: str) -> None:
    """Writes a sentence to standard error if it is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        note(sentence)


YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def require_confirmation(question: Callable[[], str], otherwise: str) -> None:
    """Asks for confirmation on a terminal; raises CommandError, which says what was not done, if the answer is no."""
    if sys.stdin is not None and sys.stdin.isatty() and not typer.confirm(question(), err=True):
        raise CommandError(ExitCode.USAGE, f"{otherwise}; answer y, or use --yes")


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
