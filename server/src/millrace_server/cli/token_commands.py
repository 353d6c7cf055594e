"""The commands `millraced token`."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from millrace_server.cli.reporting import EXIT_BAD_SETTINGS, complain

token_app = typer.Typer(
    help="Make and list the tokens with which clients prove who they are.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TokensFileOption = Annotated[
    Path, typer.Option("--tokens-file", metavar="FILE", help="The file that auth.tokens_file names.")
]


@token_app.command()
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The identity that the token proves.")],
    tokens_file: TokensFileOption = Path("tokens"),
) -> None:
    """Make a token, add its hash to the file, and print the token, which is shown only now.

    A name may have several tokens: to replace one, make another, give it to the clients, then remove the old line.
    """
    from millrace_server.access.tokens import make_token

    with _complaints(tokens_file):
        typer.echo(make_token(tokens_file, name))


@token_app.command("list")
def list_tokens(tokens_file: TokensFileOption = Path("tokens")) -> None:
    """List the names in the file, with the number of their tokens."""
    from millrace_server.access.tokens import read_tokens

    with _complaints(tokens_file):
        for name, count in sorted(Counter(read_tokens(tokens_file).values()).items()):
            typer.echo(f"{name}\t{count}")


@contextmanager
def _complaints(path: Path) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        complain(f"token: {error}")
        raise typer.Exit(EXIT_BAD_SETTINGS) from None
    except OSError as error:
        complain(f"{path}: cannot be written: {error.strerror}")
        raise typer.Exit(EXIT_BAD_SETTINGS) from None
