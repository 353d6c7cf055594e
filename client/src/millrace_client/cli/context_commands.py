"""`millrace context add|use|list|show|remove`: how to connect to servers, each under a name."""

import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer

from millrace.command_line.tables import plain_table, show
from millrace_client._settings import ConnectionSettings
from millrace_client._watchdog import TIMEOUT_SECONDS
from millrace_client.cli.contexts import FIELDS, Contexts, context_names, load_contexts
from millrace_client.cli.exit_status import CommandError, ExitCode
from millrace_client.cli.session import (
    SESSION_OPTIONS,
    JsonOption,
    Session,
    checked,
    current_session,
    with_options,
)
from millrace_client.cli.terminal import note_to_terminal
from millrace_client.security import SYSTEM, Token

context_app = typer.Typer(
    no_args_is_help=True,
    help="Manage contexts: named sets of connection options.\n\n"
    "A context has the server's address, TLS files, and a token or its file. Contexts are stored in "
    "$XDG_CONFIG_HOME/millrace/contexts.toml, by default below ~/.config, which only its user may read.",
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def _parse_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is not a name; write up to 64 letters, digits, dots, hyphens and underscores")
    return text


_TOKENS = ("token", "token_file")

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", callback=checked(_parse_name), show_default=False, autocompletion=context_names)
]
OptionalNameArgument = Annotated[
    str | None, typer.Argument(metavar="NAME", callback=checked(_parse_name), autocompletion=context_names)
]


@context_app.command()
@with_options(SESSION_OPTIONS, without={"timeout_seconds", "context_name"})
def add(
    context: typer.Context,
    name: NameArgument,
    *,
    token_stdin: Annotated[
        bool, typer.Option("--token-stdin", help="Read the token from standard input, and store it in the context.")
    ] = False,
    **options: Any,
) -> None:
    """Add a context after checking its files.

    It stores the options given here, at least --server, and nothing from the environment. Relative paths are made
    absolute; each command that uses the context reads the files again.
    """
    contexts = load_contexts()
    if name in contexts.by_name:
        raise CommandError(
            ExitCode.REFUSED, f"there is a context {name} already; remove it first, or choose another name"
        )
    session = current_session(context).with_options(**options, token=_read_token() if token_stdin else None)
    if session.server is None:
        raise CommandError(ExitCode.USAGE, "a context needs the address of its server; give --server HOST:PORT")
    _check(session)
    given = {key: value for key in FIELDS if (value := getattr(session, key))}
    contexts.by_name[name] = {
        key: value if key in {"server", "token"} or value == SYSTEM else str(Path(value).absolute())
        for key, value in given.items()
    }
    contexts.save()
    note_to_terminal(f"added; use it with --context {name}, or from now on with `millrace context use {name}`")


def _read_token() -> str:
    if sys.stdin is None:
        raise CommandError(ExitCode.USAGE, "standard input is closed; give it the token")
    if sys.stdin.isatty():
        return str(typer.prompt("Token", hide_input=True, err=True)).strip()
    # Whatever the locale is: what is not a token is refused as such.
    return sys.stdin.buffer.readline().decode("ascii", "replace").strip()


def _check(session: Session) -> None:
    settings = ConnectionSettings(
        endpoint=session.server or "",
        timeout_seconds=TIMEOUT_SECONDS,
        wait_for_ready=False,
        tls=session.tls,
        token=Token.given(session.token, session.token_file),
        options=(),
    )
    # Reads the files, and sends nothing.
    settings.open_channel(grpc).close()


@context_app.command()
def use(name: NameArgument) -> None:
    """Select the context for commands where neither options nor the environment give a context or server."""
    contexts = load_contexts()
    contexts.options(name)
    contexts.current = name
    contexts.save()


@context_app.command("list")
def list_contexts(*, as_json: JsonOption = False) -> None:
    """List all contexts, but not their tokens."""
    contexts = load_contexts()
    if as_json:
        typer.echo(json.dumps([_document(contexts, name) for name in contexts.by_name], indent=2))
        return
    cells: dict[str, Callable[[str], str]] = {
        "CONTEXT": str,
        "USED": lambda name: "*" if name == contexts.current else "",
        "SERVER": lambda name: contexts.by_name[name].get("server", "-"),
        "TLS": lambda name: "yes" if any(key.startswith("tls") for key in contexts.by_name[name]) else "no",
        "IDENTITY": lambda name: " and ".join(_proofs(contexts.by_name[name])) or "-",
    }
    show(plain_table(contexts.by_name, cells))


def _proofs(options: Mapping[str, str]) -> list[str]:
    found = {"certificate": "tls_certificate" in options, "token": not options.keys().isdisjoint(_TOKENS)}
    return [proof for proof, is_there in found.items() if is_there]


@context_app.command("show")
def show_context(name: OptionalNameArgument = None, *, as_json: JsonOption = False) -> None:
    """Show a context, by default the one in use, but not its token."""
    contexts = load_contexts()
    if (name := name or contexts.current) is None:
        raise CommandError(ExitCode.USAGE, "no context is in use; name one, or see `millrace context list`")
    contexts.options(name)
    document = _document(contexts, name)
    typer.echo(json.dumps(document) if as_json else "\n".join(f"{key}: {value}" for key, value in document.items()))


def _document(contexts: Contexts, name: str) -> dict[str, object]:
    options = contexts.by_name[name]
    shown = {key: "(hidden)" if key == "token" else value for key, value in options.items()}
    return {"name": name, "used": name == contexts.current, **shown}


@context_app.command()
def remove(name: NameArgument) -> None:
    """Remove a context and its token; its files are kept."""
    contexts = load_contexts()
    contexts.options(name)
    del contexts.by_name[name]
    contexts.save()
