"""The reference of the command lines, from their help."""

import re
from functools import cache
from typing import Any

import typer
from typer.cli import get_docs_for_click
from typer.main import get_command

from millrace_client.cli import program as client_program
from millrace_client.cli.commands import COMMANDS, loaded_command
from millrace_server import cli as server_program
from millrace_spark.landing import program as spark_program

_INTRODUCTION = """\
# Command lines

`millrace` comes with `millrace-client[cli]` and with `millrace-server`, `millraced` with `millrace-server`, and
`millrace-spark` with `millrace-spark[cli]`. Each shows the same by `--help`, and its exit codes, which scripts can rely
on.

Each command that lists or shows something has `--json`. On a narrow terminal, tables show fewer columns; in a pipe they
have all of them, one row per line.

`millrace --install-completion` installs completion for the current shell: bash, zsh or fish. It completes commands,
options, and names that the server knows, such as those of channels. For packages,
`_MILLRACE_COMPLETE=source_zsh millrace` prints the script, and likewise for the other shells and programs.

`millraced serve --log-level warning` logs only what needs attention. The audit log's file stays complete.

"""


_AS_WRITTEN = re.compile(r"\x08\n?(.*?)(?:\n\n|\Z)", re.DOTALL)
_CODE_OR_TAG = re.compile(r"`[^`]*`|<")
_APPS = {"millrace": client_program.app, "millraced": server_program.app, "millrace-spark": spark_program.app}
PROGRAMS = tuple(_APPS)


@cache
def command_of(program: str) -> Any:
    """A program with all its commands, including those that it imports only when they are called."""
    command: Any = get_command(_APPS[program])
    if program == "millrace":
        command.commands = {name: loaded_command(name) for name in COMMANDS}
    return command


def page() -> str:
    """All commands and options of the three programs, as Markdown."""
    return _INTRODUCTION + "\n".join(_describe(program) for program in PROGRAMS)


def _describe(program: str) -> str:
    command = command_of(program)
    _keep_whole_sentences(command)
    described: str = get_docs_for_click(obj=command, ctx=typer.Context(command), name=program)
    # What the help shows as it is written, such as exit codes.
    described = _AS_WRITTEN.sub(lambda match: f"```text\n{match[1].strip()}\n```\n", described)
    # What is not code would be taken for HTML.
    described = _CODE_OR_TAG.sub(lambda match: match[0] if match[0] != "<" else "&lt;", described)
    # One level down: the page has the title.
    return re.sub(r"^#", "##", described, flags=re.MULTILINE)


def _keep_whole_sentences(command: Any) -> None:
    """Prevents that sentences in lists of commands are cut to the width of a terminal."""
    for inner in getattr(command, "commands", {}).values():
        inner.short_help = " ".join((inner.short_help or inner.help or "").partition("\n\n")[0].split())
        _keep_whole_sentences(inner)
