import io
import threading

import pytest
from rich.console import Console

from examples.access_log.crashes import crash_meanwhile, tell
from examples.access_log.local_server import Comeback, LocalServer, ServerError

COMEBACK = Comeback(event_count=1_200, replay_seconds=0.25, seconds=1.5)
TOLD = (
    "Killed the edge (SIGKILL) in between: after 1.50 s it was back, with 1,200 events, "
    "which it read from its log in 0.25 s\n"
)


class FakeServer(LocalServer):
    """Counts its crashes, and comes back when it may."""

    name = "edge"

    def __init__(self, error: ServerError | None = None) -> None:
        self.crash_count = 0
        self.is_killed = threading.Event()
        self.may_come_back = threading.Event()
        self._error = error

    def kill_and_start(self) -> Comeback:
        self.crash_count += 1
        self.is_killed.set()
        assert self.may_come_back.wait(60)
        if self._error:
            raise self._error
        return COMEBACK


def test_crash_meanwhile_lets_the_block_go_on_and_waits_for_the_comeback() -> None:
    """The server is killed while the block runs, and what came of it is told behind the block."""
    server, shown = FakeServer(), io.StringIO()
    with crash_meanwhile(server, Console(file=shown, width=40), "in between"):
        assert server.is_killed.wait(60)
        assert shown.getvalue() == ""
        server.may_come_back.set()
    assert server.crash_count == 1
    assert shown.getvalue() == TOLD


def test_crash_meanwhile_of_a_server_that_stays_away_is_its_error() -> None:
    """Nobody takes it for having come back."""
    server = FakeServer(ServerError("it did not start"))
    server.may_come_back.set()
    with pytest.raises(ServerError, match="it did not start"), crash_meanwhile(server, Console(), "in between"):
        pass


def test_tell_says_what_came_back_and_how_long_it_took() -> None:
    """One line, with both times."""
    shown = io.StringIO()
    tell(Console(file=shown, width=40), "edge", "in between", COMEBACK)
    assert shown.getvalue() == TOLD
