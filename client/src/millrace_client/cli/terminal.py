"""The terminal: tables on standard output, notes on standard error, and the keyboard."""

import os
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from millrace_client.cli.formatting import printable

RowT = TypeVar("RowT")

_PLAIN_WIDTH = 10_000
"""Columns without a terminal: scripts need whole names."""


def is_on_terminal() -> bool:
    """Whether standard output is a terminal. It is None if the process was started without one."""
    return sys.stdout is not None and sys.stdout.isatty()


def show(renderable: RenderableType) -> None:
    """Writes a table or text to standard output."""
    is_terminal = is_on_terminal()
    console = Console() if is_terminal else Console(width=_PLAIN_WIDTH, color_system=None)
    # Rich would exit the process on a closed pipe; so it only renders, and `echo` raises the error.
    with console.capture() as captured:
        console.print(renderable)
    drawn = captured.get()
    typer.echo(drawn if is_terminal else "\n".join(line.rstrip() for line in drawn.splitlines()), nl=not is_terminal)


def plain_table(rows: Iterable[RowT], columns: Mapping[str, Callable[[RowT], str | Text]]) -> Table:
    """Returns a table without borders.

    `columns` has a function for the cells by each heading. A heading that ends with `>` is of a column of numbers,
    aligned right.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in columns:
        name = heading.removesuffix(">")
        table.add_column(name, justify="right" if name != heading else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table


def note(sentence: str) -> None:
    """Writes a sentence to standard error."""
    typer.echo(f"millrace: {printable(sentence)}", err=True)


def note_to_terminal(sentence: str) -> None:
    """Writes a sentence to standard error if it is a terminal."""
    if sys.stderr is not None and sys.stderr.isatty():
        note(sentence)


try:
    import termios
    import tty
except ImportError:
    # Not a POSIX system: no keys are read, and Ctrl-C ends the screen.
    _HAS_TERMINALS = False
else:
    _HAS_TERMINALS = True

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
