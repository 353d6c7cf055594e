import io
import threading

import pytest
from rich.console import Console

from examples.access_log.crashes import crash_half_way, tell
from examples.access_log.local_server import Comeback, LocalServer, ServerError

COMEBACK = Comeback(event_count=1_200, replay_seconds=0.25, seconds=1.5)


class FakeServer(LocalServer):
    """Counts its crashes, and comes back when it may."""

    def __init__(self, error: ServerError | None = None) -> None:
        self.crash_count = 0
        self.may_come_back = threading.Event()
        self._error = error

    def kill_and_start(self) -> Comeback:
        self.crash_count += 1
        assert self.may_come_back.wait(60)
        if self._error:
            raise self._error
        return COMEBACK


def test_crash_half_way_comes_once_half_of_the_lines_are_sent() -> None:
    """Not before that, and not again; whoever sends is not held up, and is told once what came back."""
    server = FakeServer()
    with crash_half_way(server, line_count=7) as crash:
        crash.on_sent(3)
        assert crash.comeback() is None
        crash.on_sent(1)
        crash.on_sent(3)
        server.may_come_back.set()
        assert crash.comeback() == COMEBACK
        assert crash.comeback() is None
    assert server.crash_count == 1


def test_crash_half_way_of_one_line_comes_after_it() -> None:
    """The smallest file is enough."""
    server = FakeServer()
    server.may_come_back.set()
    with crash_half_way(server, line_count=1) as crash:
        crash.on_sent(1)
        assert crash.comeback() == COMEBACK


def test_comeback_of_a_server_that_stays_away_is_its_error() -> None:
    """Nobody takes it for having come back."""
    server = FakeServer(ServerError("it did not start"))
    server.may_come_back.set()
    with crash_half_way(server, line_count=1) as crash:
        crash.on_sent(1)
        with pytest.raises(ServerError, match="it did not start"):
            crash.comeback()


def test_tell_says_what_came_back_and_how_long_it_took() -> None:
    """One line, with both times."""
    shown = io.StringIO()
    tell(Console(file=shown, width=40), "in between", COMEBACK)
    assert shown.getvalue() == (
        "Killed the server (SIGKILL) in between: after 1.50 s it was back, with 1,200 events, "
        "which it read from its log in 0.25 s\n"
    )
