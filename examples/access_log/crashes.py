"""Crashes of the agents while the job runs."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from rich.console import Console

from examples.access_log.local_server import LocalServer, Restart


@contextmanager
def crash_during(server: LocalServer, console: Console, when: str) -> Iterator[None]:
    """Kills and restarts a server while the block runs, and prints a line about it.

    Args:
        server: The server to kill.
        console: The console for the line.
        when: The time of the crash, in words.

    Raises:
        ServerError: It did not start again.
    """
    with ThreadPoolExecutor(1, "crash") as thread:
        crash = thread.submit(server.kill_and_restart)
        yield
        print_restart(console, server.name, when, crash.result())


def print_restart(console: Console, name: str, when: str, restart: Restart) -> None:
    """Prints how long a restart took, and how many events the server recovered."""
    console.print(
        f"Killed the {name} (SIGKILL) {when}: after {restart.seconds:.2f} s it was back, with "
        f"{restart.event_count:,} events, which it read from its log in {restart.replay_seconds:.2f} s",
        soft_wrap=True,
    )
