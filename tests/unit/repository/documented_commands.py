"""Command lines of the project's programs in shell commands, and whether the programs know their options."""

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import typer

from tools.site.cli_pages import PROGRAMS, command_of

_ENDS = re.compile(r"[|&;()<>\n]+")
_BEFORE_PROGRAMS = re.compile(r"\w+=.*|\$|sudo|exec|do|then|else|!")


def command_lines(script: str) -> Iterator[list[str]]:
    """Yields the command lines of `millrace`, `millraced` and `millrace-spark` in a shell script."""
    joined = script.replace("\\\n", " ")
    words = shlex.shlex(joined, posix=True, punctuation_chars="|&;()<>\n")
    words.whitespace = " \t"
    words.whitespace_split = True
    words.commenters = ""
    line: list[str] = []
    for word in [*_without_comments(words), "\n"]:
        if not _ENDS.fullmatch(word):
            line.append(word)
            continue
        if (start := _start_of(line)) is not None:
            yield line[start:]
        line = []


def _without_comments(words: Iterator[str]) -> Iterator[str]:
    is_comment = False
    for word in words:
        is_comment = not word.startswith("\n") and (is_comment or word.startswith("#"))
        if not is_comment:
            yield word


def _start_of(line: Sequence[str]) -> int | None:
    """Where the program's name is, behind variables, `sudo` and the like; None if it is another program."""
    start = next((index for index, word in enumerate(line) if not _BEFORE_PROGRAMS.fullmatch(word)), None)
    return start if start is not None and line[start].rpartition("/")[2] in PROGRAMS else None


def problem_of(line: Sequence[str], *, is_whole: bool = True) -> str | None:
    """What a program would say of a command line before it does anything; None if it is good.

    Args:
        line: The program and its arguments.
        is_whole: Whether arguments that the command needs must be there.
    """
    try:
        _parse(command_of(line[0].rpartition("/")[2]), line[1:], is_whole=is_whole)
    except _usage_error() as error:
        return f"{shlex.join(line)}: {error}"
    return None


@cache
def _usage_error() -> type[Exception]:
    """The class of what the parser raises, which typer does not export."""
    error = type(typer.BadParameter("")).__mro__[1]
    assert error.__name__ == "UsageError"
    return error


def _parse(command: Any, arguments: Sequence[str], *, is_whole: bool) -> None:
    context = typer.Context(command, info_name=command.name)
    found, rest, _ = command.make_parser(context).parse_args(list(arguments))
    if getattr(command, "commands", None) is None:
        if rest:
            raise _usage_error()(f"surplus arguments {rest}")
        missing = [one.name for one in command.params if one.required and found.get(one.name) is None]
        if is_whole and missing and not found.get("help"):
            raise _usage_error()(f"without {missing}")
    elif rest:
        inner = command.get_command(context, rest[0])
        if inner is None:
            raise _usage_error()(f"no command {rest[0]}")
        _parse(inner, rest[1:], is_whole=is_whole)
