"""The exit codes of `millraced`, errors on standard error, and JSON on standard output."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from millrace.command_line.notes import write_note
from millrace.command_line.program import EXIT_BROKEN_PIPE

if TYPE_CHECKING:
    from millrace.setting_file import SettingsError
    from millrace_server.configuration.settings import Settings

EXIT_CANNOT_START = 1
"""The machine prevents the start: a port is in use, a directory cannot be written, the catalog is damaged."""

EXIT_USAGE = 2
"""The command line or the configuration is invalid; another start cannot help."""

EXIT_FAILED = 1
"""A case of `millraced test` has failed."""

# Exit codes of the commands on logs.

EXIT_DAMAGED = 1
"""The files are damaged, or cannot be written."""

EXIT_UNAVAILABLE = 3
"""The log is in use, encrypted with a missing key, or of another version; it may be intact."""

EXIT_CONVERTS = 4
"""An upgrade would convert files that earlier versions read."""

EXIT_INTERRUPTED = 130

MEANINGS = {
    0: "done; a server has stopped, a log is intact",
    EXIT_CANNOT_START: "the server cannot start, a log is damaged, a file cannot be written, or a test has failed",
    EXIT_USAGE: "the command line or the configuration is wrong",
    EXIT_UNAVAILABLE: "the log is in use, encrypted with a missing key, or of another version",
    EXIT_CONVERTS: "an upgrade would convert files, which an earlier version cannot open afterwards",
    EXIT_INTERRUPTED: "interrupted by Ctrl-C, which a server takes as a request to stop",
    EXIT_BROKEN_PIPE: "the reader closed the output pipe",
}
"""The meaning of each code, as `millraced --help` shows it."""


def print_error(sentence: str) -> None:
    """Writes a sentence to standard error."""
    from millrace_server.logs import safe_text

    write_note("millraced", safe_text(sentence))


def failure(sentence: str, code: int) -> typer.Exit:
    """Writes a sentence to standard error; returns the exception that exits with a code."""
    print_error(sentence)
    return typer.Exit(code)


def print_json(document: object, indent: int | None = 2) -> None:
    """Writes a document to standard output."""
    from json import dumps

    typer.echo(dumps(document, indent=indent))


def print_problems(error: "SettingsError") -> None:
    """Writes each problem of a configuration to standard error."""
    for problem in error.problems:
        print_error(problem.located(error.source))


def load_or_exit(config: Path | None, overrides: dict[str, str]) -> "Settings":
    """Reads a configuration; writes its problems to standard error and exits if it is invalid."""
    from millrace.setting_file import SettingsError
    from millrace_server.configuration.settings import load_settings

    try:
        return load_settings(config, overrides)
    except SettingsError as error:
        print_problems(error)
        raise typer.Exit(EXIT_USAGE) from None


def print_check(config: Path) -> int:
    """Writes the problems of a configuration as JSON to standard output; returns the exit code."""
    from millrace.setting_file import SettingsError
    from millrace_server.configuration.settings import load_settings

    problems = []
    try:
        load_settings(config)
    except SettingsError as error:
        problems = [problem.document() for problem in error.problems]
    print_json({"file": str(config), "is_valid": not problems, "problems": problems})
    return EXIT_USAGE if problems else 0
