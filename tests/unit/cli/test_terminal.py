import io
import os
import pty
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from millrace_client.cli.terminal import Keyboard, keyboard_input

ECHO_AND_LINES = termios.ECHO | termios.ICANON
LOCAL_MODES = 3


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """A terminal as standard input: the user's end and the program's end."""
    person, program = pty.openpty()
    with open(program, closefd=False) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield person, program
    os.close(person)
    os.close(program)


def local_modes(terminal: int) -> int:
    return int(termios.tcgetattr(terminal)[LOCAL_MODES]) & ECHO_AND_LINES


def test_keyboard_input_on_a_terminal_come_at_once_and_unseen(terminal: tuple[int, int]) -> None:
    """Within the block there is neither echo nor line buffering; both are restored, also after an error."""
    _, program = terminal
    assert local_modes(program) == ECHO_AND_LINES
    with suppress(KeyboardInterrupt), keyboard_input():
        assert local_modes(program) == 0
        raise KeyboardInterrupt
    assert local_modes(program) == ECHO_AND_LINES


@pytest.mark.parametrize(
    ("typed", "quits"), [(b"q", True), (b"Q", True), (b"xyzq", True), (b"xyz", False), (b"", False)]
)
def test_quits_within_after_keys_hears_only_q(terminal: tuple[int, int], typed: bytes, quits: bool) -> None:  # noqa: FBT001 - pytest passes parameters by name.
    """Other keys are ignored, and do not end the wait."""
    person, _ = terminal
    with keyboard_input() as keyboard:
        os.write(person, typed)
        assert keyboard.quits_within(0.05) is quits


def test_quits_within_after_q_does_not_wait_on(terminal: tuple[int, int]) -> None:
    """The key ends the wait at once."""
    person, _ = terminal
    with keyboard_input() as keyboard:
        os.write(person, b"q")
        begin = time.monotonic()
        assert keyboard.quits_within(60)
        assert time.monotonic() - begin < 30


def test_quits_within_after_the_input_ended_is_true() -> None:
    """At the end of the input no key can be pressed any more."""
    reading, writing = os.pipe()
    os.close(writing)
    assert Keyboard(reading).quits_within(60)
    os.close(reading)


def test_keyboard_input_without_a_terminal_only_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Input from a pipe, or a missing one, is not read."""
    for stdin in (io.StringIO("q"), None):
        monkeypatch.setattr(sys, "stdin", stdin)
        with keyboard_input() as keyboard:
            assert not keyboard.quits_within(0.001)
