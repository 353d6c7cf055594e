"""The server that a command talks to: the common options, and the client that a command gets."""

import functools
import inspect
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import typer

import millrace_client
from millrace_client._endpoints import endpoint_problem, servers_of
from millrace_client._watchdog import TIMEOUT_SECONDS
from millrace_client.cli.contexts import context_names, load_contexts
from millrace_client.cli.exit_status import CommandError, ExitCode
from millrace_client.cli.formatting import is_utf8, parse_past

SERVER_VARIABLE = "MILLRACE_SERVER"
CONTEXT_VARIABLE = "MILLRACE_CONTEXT"
DEFAULT_SERVER = "127.0.0.1:7070"
DEFAULT_PORT = 7070

_TIMEOUT_SECONDS_MAX = 86_400
QUESTION_SECONDS = 1.0
"""The timeout of a call that only adds convenience, such as completion; on a timeout, it is skipped."""


def parse_server(text: str) -> str:
    """Adds the default port to each `HOST`; returns other gRPC targets, such as `unix:PATH`, unchanged."""
    return ",".join(_parse_one(server) for server in servers_of(text))


def _parse_one(text: str) -> str:
    # A sentence about the address, which may begin with a scheme, has it whole.
    server = text if ":" in text.rpartition("]")[2] or not text else f"{text}:{DEFAULT_PORT}"
    if problem := endpoint_problem(server) if server.isprintable() else "is not an address; write host:port":
        raise ValueError(f"{text!r} {problem}")
    return server


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
        help="The server's address, or those of several servers that share replicated channels, separated by "
        f"commas. Default: the environment variable {SERVER_VARIABLE}, the context's server, or {DEFAULT_SERVER}.",
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        autocompletion=context_names,
        help=f"The context to connect with. Default: the environment variable {CONTEXT_VARIABLE}, or, if no server is "
        "given, the context in use. See `millrace context`.",
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


def _file_option(flag: str, what: str) -> Any:
    variable = "MILLRACE" + flag.upper().replace("--", "_").replace("-", "_")
    return typer.Option(flag, metavar="FILE", help=f"{what}. Default: the environment variable {variable}.")


TlsCaOption = Annotated[
    str | None,
    _file_option(
        "--tls-ca",
        "Connect over TLS. The CA certificate for the server's certificate, in PEM, or `system` for the system's CAs",
    ),
]
TlsCertificateOption = Annotated[str | None, _file_option("--tls-certificate", "The client certificate, in PEM")]
TlsKeyOption = Annotated[str | None, _file_option("--tls-key", "The private key of the client certificate, in PEM")]
TokenFileOption = Annotated[
    str | None, _file_option("--token-file", "A file with the client's token; MILLRACE_TOKEN can hold the token itself")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON, for programs.")]


def _sendable(text: str) -> str:
    # The server accepts only UTF-8.
    if not is_utf8(text):
        raise ValueError(f"{text!r} is not UTF-8; write it in UTF-8")
    return text


check_sendable = checked(_sendable)


def completed(names: Callable[["millrace_client.Client"], Iterable[str]]) -> Callable[[typer.Context, str], list[str]]:
    """Returns what completes names in a shell: it asks the server, and is silent if that does not respond at once."""

    def complete(context: typer.Context, incomplete: str) -> list[str]:
        session = current_session(context)
        for one in (context.find_root(), context):
            session = session.with_options(**{name: one.params.get(name) for name in SESSION_OPTIONS})
        try:
            with session.with_options(timeout_seconds=QUESTION_SECONDS).open() as client:
                return [name for name in names(client) if name.startswith(incomplete)]
        except Exception:  # noqa: BLE001 - the user is still typing; the command will say why
            return []

    return complete


def channel_names(client: "millrace_client.Client") -> list[str]:
    """Returns the names of all channels."""
    return [channel.name for channel in client.admin.list_channels()]


ChannelArgument = Annotated[
    str,
    typer.Argument(
        metavar="CHANNEL",
        callback=check_sendable,
        help="The channel's name.",
        show_default=False,
        autocompletion=completed(channel_names),
    ),
]


_VARIABLES = {
    "server": SERVER_VARIABLE,
    "tls_ca": "MILLRACE_TLS_CA",
    "tls_certificate": "MILLRACE_TLS_CERTIFICATE",
    "tls_key": "MILLRACE_TLS_KEY",
    "token_file": "MILLRACE_TOKEN_FILE",
    "token": "MILLRACE_TOKEN",
}


@dataclass(frozen=True)
class Session:
    """The connection options given so far: first those before the command, then those after it."""

    context_name: str | None = None
    server: str | None = None
    timeout_seconds: float | None = None
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None
    token_file: str | None = None
    token: str | None = field(default=None, repr=False)
    """Of the environment or a context: an option would show it in the list of processes."""
    connect: Callable[..., "millrace_client.Client"] | None = None
    """Creates the client, in tests; otherwise `millrace_client.connect` does."""

    def with_options(self, **options: Any) -> "Session":
        """Returns the session with later options, which take precedence; one that is None was not given."""
        return replace(self, **{name: given for name, given in options.items() if given is not None})

    def resolved(self) -> "Session":
        """Returns the session with what the environment and a context say where no option does.

        Options, including `--context`, take precedence over the environment, and that over the context in use. The
        latter is ignored if a server is given, so that its token and certificate are sent to no other server.
        """
        found = self if self.context_name is None else self.completed(load_contexts().options(self.context_name))
        found = found.completed({name: os.environ.get(variable) for name, variable in _VARIABLES.items()})
        name = os.environ.get(CONTEXT_VARIABLE) or (None if found.server else load_contexts().current)
        if self.context_name is None and name:
            found = replace(found.completed(load_contexts().options(name)), context_name=name)
        return replace(found, server=_checked_server(found))

    def completed(self, further: Mapping[str, str | None]) -> "Session":
        """Returns the session with further options for what it lacks."""
        missing: dict[str, Any] = {name: value for name, value in further.items() if value and not getattr(self, name)}
        if self.token_file or self.token:
            # One stands for the other.
            missing = {name: value for name, value in missing.items() if not name.startswith("token")}
        return replace(self, **missing)

    @property
    def address(self) -> str:
        return self.resolved().server or DEFAULT_SERVER

    @property
    def repeated_options(self) -> list[str]:
        """The options with which another command reaches the same server, without secrets."""
        given = {
            "--context": self.resolved().context_name,
            "--server": self.server,
            "--timeout": self.timeout_seconds and f"{self.timeout_seconds:.15g}",
            "--tls-ca": self.tls_ca,
            "--tls-certificate": self.tls_certificate,
            "--tls-key": self.tls_key,
            "--token-file": self.token_file,
        }
        return [f"{flag}={value}" for flag, value in given.items() if value]

    @property
    def tls(self) -> "millrace_client.Tls | None":
        """That of its own options."""
        files = {"ca": self.tls_ca, "certificate": self.tls_certificate, "private_key": self.tls_key}
        return millrace_client.Tls(**files) if any(files.values()) else None

    @property
    def security(self) -> dict[str, Any]:
        """The arguments of clients and producers for TLS and the token."""
        found = self.resolved()
        return {"tls": found.tls, "token": found.token, "token_file": found.token_file}

    def open(self) -> "millrace_client.Client":
        """Creates the client; nothing is sent yet."""
        connect = self.connect or millrace_client.connect
        return connect(self.address, timeout_seconds=self.timeout_seconds or TIMEOUT_SECONDS, **self.security)


def _checked_server(session: Session) -> str:
    try:
        return parse_server(session.server or DEFAULT_SERVER)
    except ValueError as error:
        is_of_environment = session.server == os.environ.get(SERVER_VARIABLE)
        source = SERVER_VARIABLE if is_of_environment else f"server of the context {session.context_name}"
        raise CommandError(ExitCode.USAGE, f"{source}: {error}") from error


def current_session(context: typer.Context) -> Session:
    """Returns the session of the current command."""
    root = context.find_root()
    if not isinstance(root.obj, Session):
        root.obj = Session()
    return root.obj


def with_client(command: Callable[..., None]) -> Callable[..., None]:
    """Turns a function whose first parameter is a client into a typer command that has the options of a session.

    A parameter `session` gets the session.
    """
    _client, *own = inspect.signature(command, eval_str=True).parameters.values()
    wants_session = any(parameter.name == "session" for parameter in own)

    @functools.wraps(command)
    def run(session: Session, **options: Any) -> None:
        with session.open() as client:
            command(client, **({"session": session} if wants_session else {}), **options)

    session = inspect.Parameter("session", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    own = [parameter for parameter in own if parameter.name != "session"]
    vars(run)["__signature__"] = inspect.Signature([session, *own])
    return with_session(run)


def with_session(command: Callable[..., None]) -> Callable[..., None]:
    """Turns a function whose first parameter is a session into a typer command that has the options of a session."""
    _session, *own = inspect.signature(command, eval_str=True).parameters.values()

    @functools.wraps(command)
    def run(context: typer.Context, **options: Any) -> None:
        given = {name: options.pop(name) for name in SESSION_OPTIONS}
        context.find_root().obj = session = current_session(context).with_options(**given)
        command(session, **options)

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
SESSION_OPTIONS = {
    "context_name": ContextOption,
    "server": ServerOption,
    "timeout_seconds": TimeoutOption,
    "tls_ca": TlsCaOption,
    "tls_certificate": TlsCertificateOption,
    "tls_key": TlsKeyOption,
    "token_file": TokenFileOption,
}
_CONNECTION_OPTIONS = [
    inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None)
    for name, annotation in SESSION_OPTIONS.items()
]
