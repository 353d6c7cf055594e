"""Crashes of the server while the job goes on, and what came of them."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from rich.console import Console

from examples.access_log.local_server import Comeback, LocalServer


class CrashHalfWay:
    """Kills the server once half of the lines are sent, behind the back of whoever sends.

    Args:
        server: Is killed and started again.
        line_count: Lines that will be sent.
        thread: Where the killing is done.
    """

    def __init__(self, server: LocalServer, line_count: int, thread: ThreadPoolExecutor) -> None:
        self._server = server
        self._remaining_count = line_count / 2
        self._thread = thread
        self._crash: Future[Comeback] | None = None

    def on_sent(self, line_count: int) -> None:
        """Counts lines that were just sent."""
        was_due = self._remaining_count <= 0
        self._remaining_count -= line_count
        if self._remaining_count <= 0 and not was_due:
            self._crash = self._thread.submit(self._server.kill_and_start)

    def comeback(self) -> Comeback | None:
        """What the server brought back, told once; waits until it is there. None before the crash, and later on.

        Raises:
            ServerError: It did not come back.
        """
        crash, self._crash = self._crash, None
        return crash.result() if crash else None


@contextmanager
def crash_half_way(server: LocalServer, line_count: int) -> Iterator[CrashHalfWay]:
    """A crash to come; when the block is left, the server is not being started any more."""
    with ThreadPoolExecutor(1, "crash") as thread:
        yield CrashHalfWay(server, line_count, thread)


def tell(console: Console, when: str, comeback: Comeback) -> None:
    """Shows what came of a crash."""
    console.print(
        f"Killed the server (SIGKILL) {when}: after {comeback.seconds:.2f} s it was back, with "
        f"{comeback.event_count:,} events, which it read from its log in {comeback.replay_seconds:.2f} s",
        soft_wrap=True,
    )
