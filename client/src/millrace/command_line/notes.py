"""Notes and errors on standard error, and text that cannot control a terminal."""

import re
import sys
from contextlib import suppress

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")


def printable(text: str) -> str:
    r"""Escapes control characters except tabs, as in `\x1b`, so that text cannot control a terminal."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)


def write_note(program: str, sentence: str) -> None:
    """Writes a sentence to standard error, as `PROGRAM: SENTENCE`."""
    # A note that cannot be written must not hide why the program ends.
    if sys.stderr is not None:
        with suppress(OSError):
            sys.stderr.write(f"{program}: {printable(sentence)}\n")
            sys.stderr.flush()


def is_on_terminal() -> bool:
    """Whether standard output is a terminal. It is None if the process was started without one."""
    return sys.stdout is not None and sys.stdout.isatty()
