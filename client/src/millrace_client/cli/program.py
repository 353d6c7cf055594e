"""The program: its commands, and how their errors become a sentence and an exit code."""

import logging
import os
import sys
from importlib import metadata
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from millrace_client import MillraceError
from millrace_client.cli import (
    admin_commands,
    bench_command,
    dead_letter_commands,
    put_command,
    read_commands,
    top_command,
)
from millrace_client.cli.exit_status import (
    MEANINGS,
    CommandError,
    ExitCode,
    TerminatedError,
    exit_code_of,
    sentence_of,
    unwrapped_interrupts,
)
from millrace_client.cli.session import ServerOption, TimeoutOption, current_session
from millrace_client.cli.terminal import note

# \b keeps the line breaks.
_EPILOG = "\b\nExit codes:\n" + "\n".join(f"{code.value:5}  {meaning}" for code, meaning in MEANINGS.items())


class ProgramGroup(TyperGroup):
    """Runs a command and turns its exceptions into exit codes, in the program and under typer's test runner."""

    def invoke(self, ctx: Any) -> Any:
        try:
            with unwrapped_interrupts():
                return super().invoke(ctx)
        except MillraceError as error:
            raise _exit(error, exit_code_of(error), sentence_of(error, current_session(ctx).address)) from error
        except CommandError as error:
            raise _exit(error, error.exit_code, str(error)) from error
        except BrokenPipeError as error:
            _drop_output()
            raise _exit(error, ExitCode.BROKEN_PIPE) from error
        except OSError as error:
            # Commands report errors of input themselves; this is output, such as a table on a full disk.
            _drop_output()
            raise _exit(
                error, ExitCode.REFUSED, f"cannot write the output: {error.strerror}; make room there"
            ) from error
        except (KeyboardInterrupt, typer.Abort) as error:
            raise _exit(error, ExitCode.INTERRUPTED) from error
        except TerminatedError as error:
            raise _exit(error, ExitCode.TERMINATED) from error


def _exit(error: BaseException, exit_code: ExitCode, sentence: str = "") -> typer.Exit:
    """Writes the error and the notes that commands added to it, such as how to resume."""
    for line in filter(None, [sentence, *getattr(error, "__notes__", ())]):
        note(line)
    return typer.Exit(exit_code)


def _drop_output() -> None:
    """Discards buffered output: otherwise Python would write it again at its exit, and fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


app = typer.Typer(
    cls=ProgramGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Plain: an error is one line that can be searched for, and help looks the same in a pipe.
    rich_markup_mode=None,
    epilog=_EPILOG,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(admin_commands.channels)
app.add_typer(admin_commands.channel_app, name="channel")
app.command()(admin_commands.components)
app.command()(put_command.put)
app.command()(read_commands.take)
app.command()(read_commands.peek)
app.command()(read_commands.tail)
app.add_typer(dead_letter_commands.dead_letter_app, name="dead-letter")
app.command()(top_command.top)
app.add_typer(bench_command.bench_app, name="bench")


def _show_version(*, is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"millrace {metadata.version('millrace-client')}")
        raise typer.Exit


@app.callback()
def _millrace(
    context: typer.Context,
    *,
    server: ServerOption = None,
    timeout_seconds: TimeoutOption = None,
    version: Annotated[  # noqa: ARG001 - its callback does everything.
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Put events into Millrace's channels, take them out, and administer the channels."""
    # Commands report errors in their own words.
    logging.getLogger("millrace_client").addHandler(logging.NullHandler())
    context.obj = current_session(context).with_options(server, timeout_seconds)
