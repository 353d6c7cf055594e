"""A program of commands: one style of help, completion by the shell, and output that cannot be written."""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from millrace.command_line.notes import write_note

EXIT_UNWRITTEN = 1
"""The exit code of every program whose output cannot be written."""

EXIT_BROKEN_PIPE = 141
"""The exit code of every program if the reader of its output closes the pipe."""


class ProgramGroup(TyperGroup):
    """The commands of a program. If their output cannot be written, a sentence says so instead of a traceback."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        # Help and the version are printed here, before any command runs.
        with exit_on_unwritten_output(str(self.name)), _plain_refusals():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with exit_on_unwritten_output(str(self.name)), _plain_refusals():
            return super().invoke(ctx)


@contextmanager
def _plain_refusals() -> Iterator[None]:
    """Removes pydantic's own words from the message about a wrong option."""
    try:
        yield
    except typer.BadParameter as error:
        error.message = error.message.removeprefix("Value error, ")
        raise


def new_program(
    name: str, exit_codes: Iterable[tuple[int, str]], cls: type[ProgramGroup] = ProgramGroup
) -> typer.Typer:
    """Returns a program without commands; its help lists the exit codes with their meanings."""
    # \b keeps the line breaks.
    epilog = "\b\nExit codes:\n" + "\n".join(f"{code:5}  {meaning}" for code, meaning in exit_codes)
    return typer.Typer(
        name=name,
        cls=cls,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        # Plain: an error is one line that can be searched for, and help looks the same in a pipe.
        rich_markup_mode=None,
        epilog=epilog,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def version_option(program: str, distribution: str) -> Any:
    """Returns the option `--version`, which shows the version of a program's distribution and ends the program."""

    def show_version(*, is_wanted: bool) -> None:
        if is_wanted:
            # It takes time, which most commands spare.
            from importlib.metadata import version

            typer.echo(f"{program} {version(distribution)}")
            raise typer.Exit

    return typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")


@contextmanager
def exit_on_unwritten_output(program: str) -> Iterator[None]:
    """Ends the program with a sentence if the output cannot be written, and silently if its reader is gone."""
    try:
        yield
    except OSError as error:
        _drop_output()
        is_reader_gone = isinstance(error, BrokenPipeError)
        # Commands report errors of files themselves; this is output, such as a table on a full disk.
        finding = [] if is_reader_gone else [f"{error.filename or 'cannot write the output'}: {error.strerror}"]
        # Notes of the command say, for example, how to resume.
        for sentence in [*finding, *getattr(error, "__notes__", ())]:
            write_note(program, sentence)
        raise typer.Exit(EXIT_BROKEN_PIPE if is_reader_gone else EXIT_UNWRITTEN) from error


def _drop_output() -> None:
    """Discards buffered output: otherwise Python would write it again at its exit, and fail."""
    if sys.stdout is None:
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
