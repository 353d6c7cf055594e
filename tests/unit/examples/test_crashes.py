import io
import threading

import pytest
from rich.console import Console

from examples.access_log.crashes import crash_during, crash_of
from examples.access_log.local_server import LocalServer, Restart, ServerError

RESTART = Restart(event_count=1_200, replay_seconds=0.25, seconds=1.5)
TOLD = (
    "Killed the edge (SIGKILL) in between: after 1.50 s it was back, with 1,200 events, "
    "which it read from its log in 0.25 s\n"
)


class FakeServer(LocalServer):
    """Counts its crashes, and restarts when the test allows it."""

    name = "edge"

    def __init__(self, error: ServerError | None = None) -> None:
        self.crash_count = 0
        self.is_killed = threading.Event()
        self.may_restart = threading.Event()
        self._error = error

    def kill_and_restart(self) -> Restart:
        self.crash_count += 1
        self.is_killed.set()
        assert self.may_restart.wait(60)
        if self._error:
            raise self._error
        return RESTART


def test_crash_during_lets_the_block_go_on_and_waits_for_the_restart() -> None:
    """The server is killed while the block runs; one line with events and durations is printed after the block."""
    server, shown = FakeServer(), io.StringIO()
    with crash_during(crash_of(server, "in between"), Console(file=shown, width=40)):
        assert server.is_killed.wait(60)
        assert shown.getvalue() == ""
        server.may_restart.set()
    assert server.crash_count == 1
    assert shown.getvalue() == TOLD


def test_crash_during_when_the_server_does_not_restart_raises() -> None:
    """The error of the restart is raised."""
    server = FakeServer(ServerError("it did not start"))
    server.may_restart.set()
    with pytest.raises(ServerError, match="it did not start"), crash_during(crash_of(server, ""), Console()):
        pass
