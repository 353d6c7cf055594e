"""Which server a command talks to: the options that every command has, and the client that it is given."""

import functools
import inspect
import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

import millrace_client
from millrace_client import Client
from millrace_client.cli.exit_codes import ExitCode
from millrace_client.cli.failures import CommandError
from millrace_client.cli.plain_text import is_utf8
from millrace_client.client import TIMEOUT_SECONDS

SERVER_VARIABLE = "MILLRACE_SERVER"
DEFAULT_SERVER = "127.0.0.1:7070"
DEFAULT_PORT = 7070

_PORT_MAX = 65535
_TIMEOUT_SECONDS_MAX = 86_400


def parse_server(text: str) -> str:
    """Completes `HOST[:PORT]` to what a client connects to; other gRPC targets, such as `unix:PATH`, stay as they are.

    Raises:
        ValueError: The text names no server.
    """
    if text.startswith("unix:") or "://" in text:
        return text
    host, colon, port = ("", "", "") if text.endswith("]") else text.rpartition(":")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    is_bare_ipv6 = ":" in host and not host.startswith("[")
    if not host or not host.isprintable() or " " in host or is_bare_ipv6 or not _is_port(port):
        raise ValueError(f"{text!r} is no server; write HOST:PORT, such as {DEFAULT_SERVER} or [::1]:{DEFAULT_PORT}")
    return f"{host}:{port}"


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) <= _PORT_MAX


def _check_server(text: str | None) -> str | None:
    try:
        return None if text is None else parse_server(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="HOST:PORT",
        callback=_check_server,
        help=f"The server; else the environment's {SERVER_VARIABLE}, else {DEFAULT_SERVER}.",
        show_default=False,
    ),
]


def seconds_option(*flags: str, **others: Any) -> Any:
    """An option for a duration; takes what `typer.Option` takes."""
    return typer.Option(*flags, metavar="SECONDS", callback=_check_number, **others)


def _check_number(seconds: float | None) -> float | None:
    # Not every typer's bounds stop it, for it is neither below nor above anything.
    if seconds is not None and math.isnan(seconds):
        raise typer.BadParameter("nan is no number of seconds")
    return seconds


TimeoutOption = Annotated[
    float | None,
    seconds_option(
        "--timeout",
        min=0.001,
        max=_TIMEOUT_SECONDS_MAX,
        help=f"How long one call to the server may last; {TIMEOUT_SECONDS:g} where not said.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]


def check_sendable(text: str | None) -> str | None:
    """The callback of parameters that go to the server, which takes only UTF-8."""
    if text is not None and not is_utf8(text):
        raise typer.BadParameter(f"{text!r} is not UTF-8; write it in UTF-8")
    return text


ChannelArgument = Annotated[
    str,
    typer.Argument(metavar="CHANNEL", callback=check_sendable, help="The channel's name.", show_default=False),
]


@dataclass(frozen=True)
class Session:
    """What was said of the server so far: before the command, then after it."""

    server: str | None = None
    timeout_seconds: float | None = None
    connect: Callable[[str, float], Client] = lambda server, timeout_seconds: millrace_client.connect(
        server, timeout_seconds=timeout_seconds
    )
    """How a client is made; tests put a fake here."""

    def with_options(self, server: str | None, timeout_seconds: float | None) -> "Session":
        """The session with options given later, which win."""
        return replace(
            self,
            server=server or self.server,
            timeout_seconds=self.timeout_seconds if timeout_seconds is None else timeout_seconds,
        )

    @property
    def address(self) -> str:
        """The server's address, for connecting and for messages."""
        if self.server:
            return self.server
        try:
            return parse_server(os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER)
        except ValueError as error:
            raise CommandError(ExitCode.USAGE, f"{SERVER_VARIABLE}: {error}") from error

    def open(self) -> Client:
        """Makes the client; nothing is sent yet."""
        return self.connect(self.address, self.timeout_seconds or TIMEOUT_SECONDS)


def current_session(context: typer.Context) -> Session:
    """The session of the command that runs."""
    root = context.find_root()
    if not isinstance(root.obj, Session):
        root.obj = Session()
    return root.obj


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Makes a typer command of a function that takes a client first: adds `--server` and `--timeout`, and connects.

    Where it has a parameter `context`, it gets typer's.
    """
    _client, *own = inspect.signature(command, eval_str=True).parameters.values()
    wants_context = any(parameter.name == _CONTEXT.name for parameter in own)

    @functools.wraps(command)
    def run(context: typer.Context, server: str | None, timeout_seconds: float | None, **options: Any) -> None:
        context.find_root().obj = session = current_session(context).with_options(server, timeout_seconds)
        with session.open() as client:
            command(client, **({"context": context} if wants_context else {}), **options)

    own = [parameter for parameter in own if parameter.name != _CONTEXT.name]
    # What typer reads instead of `run`'s own parameters.
    vars(run)["__signature__"] = inspect.Signature([_CONTEXT, *own, *_CONNECTION_OPTIONS])
    return run


_CONTEXT = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
_CONNECTION_OPTIONS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None)
    for name, annotation in (("server", ServerOption), ("timeout_seconds", TimeoutOption))
]
