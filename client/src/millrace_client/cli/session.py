"""The server that a command talks to: the common options, and the client that a command gets."""

import functools
import inspect
import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

import millrace_client
from millrace_client._watchdog import TIMEOUT_SECONDS
from millrace_client.cli.exit_status import CommandError, ExitCode
from millrace_client.cli.formatting import is_utf8, parse_past

SERVER_VARIABLE = "MILLRACE_SERVER"
DEFAULT_SERVER = "127.0.0.1:7070"
DEFAULT_PORT = 7070

_PORT_MAX = 65535
_TIMEOUT_SECONDS_MAX = 86_400


def parse_server(text: str) -> str:
    """Adds the default port to `HOST`; returns other gRPC targets, such as `unix:PATH`, unchanged."""
    if text.startswith("unix:") or "://" in text:
        return text
    host, colon, port = ("", "", "") if text.endswith("]") else text.rpartition(":")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    is_bare_ipv6 = ":" in host and not host.startswith("[")
    if not host or not host.isprintable() or " " in host or is_bare_ipv6 or not _is_port(port):
        raise ValueError(f"{text!r} is not a server; write HOST:PORT, such as {DEFAULT_SERVER} or [::1]:{DEFAULT_PORT}")
    return f"{host}:{port}"


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) <= _PORT_MAX


def checked(parse: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a callback for options that parses a value; a ValueError ends the command with its message."""

    def check(value: Any) -> Any:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return check


ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="HOST:PORT",
        callback=checked(parse_server),
        help=f"The server; by default {SERVER_VARIABLE} of the environment, or {DEFAULT_SERVER}.",
    ),
]


def seconds_option(*flags: str, **others: Any) -> Any:
    """Returns an option for a duration; takes the arguments of `typer.Option`."""
    return typer.Option(*flags, metavar="SECONDS", callback=checked(_not_nan), **others)


def since_option(what: str) -> Any:
    """Returns the option `--since`, whose value becomes a datetime."""
    help_text = f"{what}: how long ago, such as 10m or 2h, or a time in ISO 8601."
    return typer.Option("--since", metavar="TIME", parser=checked(parse_past), help=help_text)


def _not_nan(seconds: float) -> float:
    # The bounds of some versions of typer admit nan, since it compares as neither smaller nor larger.
    if math.isnan(seconds):
        raise ValueError("nan is not a number of seconds")
    return seconds


TimeoutOption = Annotated[
    float | None,
    seconds_option(
        "--timeout",
        min=0.001,
        max=_TIMEOUT_SECONDS_MAX,
        help=f"Timeout of a call to the server; {TIMEOUT_SECONDS:g} by default.",
    ),
]


def _tls_option(flag: str, what: str) -> Any:
    return typer.Option(flag, metavar="FILE", help=f"{what}, in PEM; by default {_variable(flag)} of the environment.")


def _variable(flag: str) -> str:
    return "MILLRACE" + flag.upper().replace("--", "_").replace("-", "_")


TlsCaOption = Annotated[
    str | None, _tls_option("--tls-ca", "The authority of the server's certificate, to connect over TLS")
]
TlsCertificateOption = Annotated[str | None, _tls_option("--tls-certificate", "This client's certificate")]
TlsKeyOption = Annotated[str | None, _tls_option("--tls-key", "Its private key")]
TokenFileOption = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"The file of this client's token; by default {_variable('--token-file')} of the environment.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]


def _sendable(text: str) -> str:
    # The server accepts only UTF-8.
    if not is_utf8(text):
        raise ValueError(f"{text!r} is not UTF-8; write it in UTF-8")
    return text


check_sendable = checked(_sendable)

ChannelArgument = Annotated[
    str, typer.Argument(metavar="CHANNEL", callback=check_sendable, help="The channel's name.", show_default=False)
]


@dataclass(frozen=True)
class Session:
    """The connection options given so far: first those before the command, then those after it."""

    server: str | None = None
    timeout_seconds: float | None = None
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    token_file: str | None = None
    connect: Callable[..., "millrace_client.Client"] | None = None
    """Creates the client, in tests; otherwise `millrace_client.connect` does."""

    def with_options(self, **options: Any) -> "Session":
        """Returns the session with later options, which take precedence; one that is None was not given."""
        return replace(self, **{name: given for name, given in options.items() if given is not None})

    @property
    def address(self) -> str:
        if self.server:
            return self.server
        try:
            return parse_server(os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER)
        except ValueError as error:
            raise CommandError(ExitCode.USAGE, f"{SERVER_VARIABLE}: {error}") from error

    @property
    def security_options(self) -> list[str]:
        """The options given so far that say how to connect over TLS, and prove who calls."""
        given = {
            "--tls-ca": self.tls_ca,
            "--tls-certificate": self.tls_certificate,
            "--tls-key": self.tls_key,
            "--token-file": self.token_file,
        }
        return [f"{flag}={file}" for flag, file in given.items() if file]

    @property
    def tls(self) -> "millrace_client.Tls | None":
        ca, certificate, private_key = (
            given or os.environ.get(_variable(flag)) or None
            for flag, given in (
                ("--tls-ca", self.tls_ca),
                ("--tls-certificate", self.tls_certificate),
                ("--tls-key", self.tls_key),
            )
        )
        if not (ca or certificate or private_key):
            return None
        return millrace_client.Tls(ca=ca, certificate=certificate, private_key=private_key)

    def open(self) -> "millrace_client.Client":
        """Creates the client; nothing is sent yet."""
        connect = self.connect or millrace_client.connect
        token_file = self.token_file or os.environ.get(_variable("--token-file")) or None
        timeout_seconds = self.timeout_seconds or TIMEOUT_SECONDS
        return connect(self.address, timeout_seconds=timeout_seconds, tls=self.tls, token_file=token_file)


def current_session(context: typer.Context) -> Session:
    """Returns the session of the current command."""
    root = context.find_root()
    if not isinstance(root.obj, Session):
        root.obj = Session()
    return root.obj


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Turns a function whose first parameter is a client into a typer command that has the options of a session.

    A parameter `context` gets typer's context.
    """
    _client, *own = inspect.signature(command, eval_str=True).parameters.values()
    wants_context = any(parameter.name == _CONTEXT.name for parameter in own)

    @functools.wraps(command)
    def run(context: typer.Context, **options: Any) -> None:
        given = {name: options.pop(name) for name in _SESSION_OPTIONS}
        context.find_root().obj = session = current_session(context).with_options(**given)
        with session.open() as client:
            command(client, **({"context": context} if wants_context else {}), **options)

    own = [parameter for parameter in own if parameter.name != _CONTEXT.name]
    # Typer reads this signature in place of that of `run`.
    vars(run)["__signature__"] = inspect.Signature([_CONTEXT, *own, *_CONNECTION_OPTIONS])
    return run


def with_options(
    options: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None, without: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Puts a table of options in the place of a command's `**options`, before its last named option.

    The table has the annotation of each option by its name; options that are not in `defaults` default to None.
    """
    parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=(defaults or {}).get(name)
        )
        for name, annotation in options.items()
        if name not in without
    ]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        *own, last, _options = inspect.signature(command, eval_str=True).parameters.values()
        vars(command)["__signature__"] = inspect.Signature([*own, *parameters, last])
        return command

    return decorate


_CONTEXT = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
_SESSION_OPTIONS = {
    "server": ServerOption,
    "timeout_seconds": TimeoutOption,
    "tls_ca": TlsCaOption,
    "tls_certificate": TlsCertificateOption,
    "tls_key": TlsKeyOption,
    "token_file": TokenFileOption,
}
_CONNECTION_OPTIONS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None)
    for name, annotation in _SESSION_OPTIONS.items()
]
