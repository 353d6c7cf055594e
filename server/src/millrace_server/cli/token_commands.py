"""The commands `millraced token`."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from millrace_server.cli.reporting import EXIT_USAGE, failure, print_error

token_app = typer.Typer(
    help="Create and list the tokens with which clients authenticate.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_SHOWN_DIGITS = 12

TokensFileOption = Annotated[
    Path, typer.Option("--tokens-file", metavar="FILE", help="The file that auth.tokens_file names.")
]


@token_app.command()
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The identity of the token.")],
    tokens_file: TokensFileOption = Path("tokens"),
) -> None:
    """Create a token, add its hash to the file, and print it. It cannot be shown again.

    A name may have several tokens: to replace one, create another, give it to the clients, then remove the old line.
    """
    from millrace_server.access.tokens import check_identity, hash_of, make_token

    if sys.stdout is None:
        raise failure("standard output is closed; the token is written there", EXIT_USAGE)
    with _exit_on_error("NAME"):
        check_identity(name)
    with _exit_on_error("--tokens-file"):
        token = make_token(tokens_file, name)
    shown_hash = _shown(hash_of(token))
    try:
        # Only the token goes to standard output, so that it can be written to a client's file.
        typer.echo(token)
    except OSError as error:
        error.add_note(
            f"{name}: the token is lost; remove its hash {shown_hash} from {tokens_file}, and create another"
        )
        raise
    print_error(f"{name}: its hash {shown_hash} was added to {tokens_file}; the token itself is not stored")


@token_app.command("list")
def list_tokens(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only the tokens of this identity.")] = None,
    tokens_file: TokensFileOption = Path("tokens"),
) -> None:
    """List the tokens in the file: the identity and the first digits of the hash."""
    from millrace.command_line.tables import plain_table, show
    from millrace_server.access.tokens import read_tokens

    with _exit_on_error("--tokens-file"):
        tokens = [token for token in read_tokens(tokens_file).items() if name in {None, token[1]}]
    show(plain_table(tokens, {"IDENTITY": lambda token: token[1], "HASH": lambda token: _shown(token[0])}))


def _shown(token_hash: str) -> str:
    return f"sha256:{token_hash[:_SHOWN_DIGITS]}..."


@contextmanager
def _exit_on_error(about: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise failure(f"{about}: {error}", EXIT_USAGE) from None
    except OSError as error:
        raise failure(f"{about}: cannot be written: {error.strerror}", EXIT_USAGE) from None
