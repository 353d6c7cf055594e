"""Crashes while the job runs: what is killed, and how long it took until all was well again."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from rich.console import Console

from examples.access_log.local_server import LocalServer

Crash = Callable[[], str]
"""Kills something, waits until its work continues, and returns a sentence about it."""


@contextmanager
def crash_during(crash: Crash, console: Console) -> Iterator[None]:
    """Lets something crash while the block runs, and prints a line about it.

    Raises what the crash raises, such as ServerError if a server did not start again.
    """
    with ThreadPoolExecutor(1, "crash") as thread:
        told = thread.submit(crash)
        yield
        console.print(told.result(), soft_wrap=True)


def crash_of(server: LocalServer, when: str) -> Crash:
    """Returns the crash of a server, which is started again at once; `when` is the time of the crash, in words."""

    def crash() -> str:
        restart = server.kill_and_restart()
        return (
            f"Killed the {server.name} (SIGKILL) {when}: after {restart.seconds:.2f} s it was back, with "
            f"{restart.event_count:,} events, which it read from its log in {restart.replay_seconds:.2f} s"
        )

    return crash
