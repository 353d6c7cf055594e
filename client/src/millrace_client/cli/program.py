"""The program: its commands, and how their errors become a sentence and an exit code."""

import gc
import logging
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import millrace_client
from millrace.command_line.program import ProgramGroup, new_program, version_option
from millrace_client.cli.commands import add_commands, loaded_command, unconverted
from millrace_client.cli.exit_status import (
    MEANINGS,
    CommandError,
    ExitCode,
    TerminatedError,
    exit_code_of,
    raise_on_signals,
    sentence_of,
    unwrapped_interrupts,
)
from millrace_client.cli.session import (
    QUESTION_SECONDS,
    SESSION_OPTIONS,
    Session,
    channel_names,
    current_session,
    with_options,
)
from millrace_client.cli.similar_names import question
from millrace_client.cli.terminal import note


class MillraceGroup(ProgramGroup):
    """Runs a command and turns its exceptions into exit codes, in the program and under typer's test runner."""

    def get_params(self, ctx: Any) -> Any:
        return unconverted(super().get_params(ctx))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        # None where the shell completes words that make no command.
        if name is not None:
            command = loaded_command(name)
            # `main` has disabled it.
            if not gc.isenabled():
                _call_first(_begin, command)
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        try:
            with unwrapped_interrupts():
                return super().invoke(ctx)
        except (KeyboardInterrupt, typer.Abort) as error:
            raise _exit(error, ExitCode.INTERRUPTED) from error
        except TerminatedError as error:
            raise _exit(error, ExitCode.TERMINATED) from error
        except CommandError as error:
            raise _exit(error, error.exit_code, str(error)) from error
        # Last, since it imports gRPC: a signal may have interrupted just that, and half a module cannot be imported.
        except millrace_client.MillraceError as error:
            session = current_session(ctx)
            sentence = sentence_of(error, session.address, _channel_question(error, session))
            raise _exit(error, exit_code_of(error), sentence) from error


def _call_first(act: Callable[[], None], command: Any) -> None:
    """Makes a command, or each command of a group, begin with a call."""
    if isinstance(command, TyperGroup):
        for one in command.commands.values():
            _call_first(act, one)
        return
    callback: Callable[..., Any] = command.callback

    def call(**options: Any) -> Any:
        act()
        return callback(**options)

    command.callback = call


def _begin() -> None:
    """Enables the garbage collector, and the signal handlers that raise.

    Until now, modules were imported, also by typer, which needs pydantic to parse arguments. Signals ended the process,
    since an import may swallow the exception of a handler.
    """
    gc.freeze()
    gc.enable()
    raise_on_signals()


def _channel_question(error: Exception, session: Session) -> str:
    """Asks which channel the user meant by a name that the server does not have."""
    if not isinstance(error, millrace_client.ChannelNotFoundError) or not error.channel:
        return ""
    with session.with_options(timeout_seconds=QUESTION_SECONDS).open() as client:
        return question(error.channel, lambda: channel_names(client))


def _exit(error: BaseException, exit_code: ExitCode, sentence: str = "") -> typer.Exit:
    """Writes the error and the notes that commands added to it, such as how to resume."""
    for line in filter(None, [sentence, *getattr(error, "__notes__", ())]):
        note(line)
    return typer.Exit(exit_code)


app = new_program("millrace", MEANINGS.items(), MillraceGroup)
add_commands(app)


@app.callback()
@with_options(SESSION_OPTIONS)
def _millrace(
    context: typer.Context,
    *,
    version: Annotated[bool, version_option("millrace", "millrace-client")] = False,  # noqa: ARG001 - its callback does everything
    **options: Any,
) -> None:
    """Put events into Millrace's channels, take them out, and administer the channels."""
    # Commands report errors in their own words.
    logging.getLogger("millrace_client").addHandler(logging.NullHandler())
    context.obj = current_session(context).with_options(**options)
