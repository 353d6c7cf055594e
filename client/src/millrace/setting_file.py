"""The TOML file with a program's settings, and the error that lists what is wrong with them.

The client never imports this module: it needs pydantic, which the client does not depend on.
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from millrace.setting_lines import SettingLines
from millrace.setting_problems import Problem

FILE_BYTES_MAX = 1024 * 1024
"""The maximum size of a configuration file."""

_TOML_POSITION = re.compile(r" \(at line (?P<line>\d+), column (?P<column>\d+)\)$")
_TOML_END = " (at end of document)"

SettingsT = TypeVar("SettingsT")


class SettingsError(Exception):
    """Raised when a configuration is invalid; lists all problems, in the order of their lines in the file."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        super().__init__("\n".join(problem.located(source) for problem in problems))
        self.source = source
        self.problems = problems


def load_settings_file(path: Path, check: Callable[[dict[str, Any]], SettingsT]) -> SettingsT:
    """Reads a file, and returns what `check` makes of its tables.

    Raises:
        SettingsError: The file cannot be read, or is not TOML, or `check` has raised it.
    """
    source = str(path)
    text = _text(source, _content(source, path))
    tables = _tables(source, text)
    try:
        return check(tables)
    except SettingsError as error:
        lines = SettingLines(text)
        problems = [replace(problem, line=lines.line_of(problem.path)) for problem in error.problems]
        raise SettingsError(source, sorted(problems, key=lambda problem: problem.line or 0)) from None


def _content(source: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(source, [Problem((), f"cannot be read: {error.strerror}")]) from None
    except ValueError:
        raise SettingsError(source, [Problem((), "cannot be read: the name is not a valid path")]) from None
    if len(content) > FILE_BYTES_MAX:
        sentence = f"is larger than {FILE_BYTES_MAX} bytes, the most that is allowed"
        raise SettingsError(source, [Problem((), sentence)])
    return content


def _text(source: str, content: bytes) -> str:
    try:
        # Editors on Windows may write a byte order mark.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise SettingsError(source, [Problem((), "is not UTF-8, the only encoding of TOML", line)]) from None


def _tables(source: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(source, [_syntax_problem(str(error), text)]) from None
    except RecursionError:
        raise SettingsError(source, [Problem((), "is nested too deeply")]) from None
    except ValueError as error:
        # For example, an integer of 5,000 digits.
        raise SettingsError(source, [Problem((), f"is not TOML: {error}")]) from None


def _syntax_problem(message: str, text: str) -> Problem:
    if match := _TOML_POSITION.search(message):
        line, column, what = int(match["line"]), match["column"], message[: match.start()]
    else:
        line, column = text.count("\n") + 1, str(len(text) - text.rfind("\n"))
        what = message.removesuffix(_TOML_END)
    return Problem((), f"is not TOML at column {column}: {what}", line)
