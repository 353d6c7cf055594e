"""Crashes of the agents while the job goes on, and what came of them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from rich.console import Console

from examples.access_log.local_server import Comeback, LocalServer


@contextmanager
def crash_meanwhile(server: LocalServer, console: Console, when: str) -> Iterator[None]:
    """Kills a server and starts it again while the block runs; tells what came of it.

    Args:
        server: Is killed.
        console: Where it is told.
        when: At what time that is, in words.

    Raises:
        ServerError: It did not come back.
    """
    with ThreadPoolExecutor(1, "crash") as thread:
        crash = thread.submit(server.kill_and_start)
        yield
        tell(console, server.name, when, crash.result())


def tell(console: Console, name: str, when: str, comeback: Comeback) -> None:
    """Shows what came of a crash."""
    console.print(
        f"Killed the {name} (SIGKILL) {when}: after {comeback.seconds:.2f} s it was back, with "
        f"{comeback.event_count:,} events, which it read from its log in {comeback.replay_seconds:.2f} s",
        soft_wrap=True,
    )
