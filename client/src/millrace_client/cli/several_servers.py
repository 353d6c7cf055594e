"""The servers that a command for several of them talks to."""

import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import typer

from millrace_client.cli.contexts import context_names, load_contexts
from millrace_client.cli.exit_status import CommandError, ExitCode
from millrace_client.cli.session import CONTEXT_VARIABLE, SERVER_VARIABLE, Session, parse_server

T = TypeVar("T")

_SERVERS_AT_ONCE = 16


def servers_argument(help_text: str) -> Any:
    """Returns the argument that names the servers."""
    return typer.Argument(metavar="SERVER", help=help_text, show_default=False, autocompletion=context_names)


def sessions_of(session: Session, names: Sequence[str]) -> Iterator[tuple[str, Session]]:
    """Yields the name of each server and how to connect to it; without names, of those that are known.

    Raises CommandError if a name is no address, or the option --server names another one.
    """
    if names and session.server:
        raise CommandError(ExitCode.USAGE, "name the servers as arguments or with --server, not both")
    contexts = load_contexts().by_name
    is_given = session.server or session.context_name or {SERVER_VARIABLE, CONTEXT_VARIABLE} & os.environ.keys()
    for name in names or ([] if is_given else contexts):
        if name in contexts:
            yield name, replace(session, context_name=name, server=None)
        else:
            yield name, replace(session, context_name=None, server=_address(name))
    if not names and (is_given or not contexts):
        yield session.address, session


def ask_together(sessions: Iterable[tuple[str, Session]], ask: Callable[[str, Session], T]) -> "dict[str, Future[T]]":
    """Calls a function for each named server, for several at once, in threads; returns what will be their results.

    Ctrl-C waits for none of them, as it would with an executor.
    """
    waiting: queue.SimpleQueue[tuple[Future[T], str, Session]] = queue.SimpleQueue()
    asked: dict[str, Future[T]] = {}
    for name, session in dict(sessions).items():
        asked[name] = Future()
        waiting.put((asked[name], name, session))

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                future, name, session = waiting.get_nowait()
                try:
                    future.set_result(ask(name, session))
                except BaseException as error:  # noqa: BLE001 - raised by the thread that waits for the result
                    future.set_exception(error)

    for _ in range(min(_SERVERS_AT_ONCE, len(asked))):
        threading.Thread(target=work, name="millrace-ask", daemon=True).start()
    return asked


def _address(name: str) -> str:
    try:
        return parse_server(name)
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"{error}; see contexts with `millrace context list`") from error
