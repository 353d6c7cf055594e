"""The servers that a command for several of them talks to."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import typer

from millrace_client.cli.contexts import context_names, load_contexts
from millrace_client.cli.exit_status import CommandError, ExitCode
from millrace_client.cli.session import CONTEXT_VARIABLE, SERVER_VARIABLE, Session, parse_server

SERVERS_AT_ONCE = 16


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


def _address(name: str) -> str:
    try:
        return parse_server(name)
    except ValueError as error:
        raise CommandError(ExitCode.USAGE, f"{error}; see contexts with `millrace context list`") from error
