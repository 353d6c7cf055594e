"""The server's log: readable on a terminal, a JSON object a line elsewhere.

What strangers send ends up in logs, so nothing may forge a line, steer a terminal or fill a disk: characters that do
not print are escaped, and lengths are capped.
"""

import logging
import math
import os
import sys
import traceback
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

TEXT_LENGTH_MAX = 1_000
"""Longer texts are cut, and say so."""

ITEMS_MAX = 50
"""Lists and tables are cut behind so many items."""

TRACEBACK_LENGTH_MAX = 20_000
"""Of a longer traceback the end is shown: that is where the error stands."""

_FIRST_KEYS = ("timestamp", "level", "event")
_NOISY_LOGGERS = ("uvicorn", "asyncio")


def configure_logging(stream: TextIO, level: int = logging.INFO) -> None:
    """Sends what this process logs, by structlog or by the standard library, to a stream.

    A stream that fails, such as a pipe whose reader has gone, loses lines but disturbs nobody.
    """
    is_terminal = stream.isatty()
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(
            colors="NO_COLOR" not in os.environ, exception_formatter=structlog.dev.plain_traceback
        )
        if is_terminal
        else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=before,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render_safely, renderer],
        )
    )
    structlog.configure(
        processors=[*before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    _configure_standard_logging(handler, level)


def log_to_standard_library() -> None:
    """Sends what this package logs to the standard library's loggers, for a program that it is a guest of.

    What becomes of it there is up to the program.
    """
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, _as_record],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def _as_record(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """What a standard logger is called with: a line that anybody can read."""
    exc_info = entry.pop("exc_info", None)
    event = safe_text(str(entry.pop("event", "")))
    said = ", ".join(f"{key}={safe_value(value)}" for key, value in entry.items())
    return (f"{event} ({said})" if said else event,), {"exc_info": exc_info}


def _configure_standard_logging(handler: logging.Handler, level: int) -> None:
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))
    logging.captureWarnings(capture=True)
    logging.raiseExceptions = False


def render_safely(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> dict[str, Any]:
    """Makes an entry's values safe to show and puts what everybody reads first in front."""
    exc_info = entry.pop("exc_info", None)
    safe = {key: entry.pop(key) for key in _FIRST_KEYS if key in entry}
    safe = {str(key): safe_value(value) for key, value in (safe | dict(entry)).items()}
    if trace := _traceback_text(exc_info):
        safe["exception"] = trace
    return safe


def safe_value(value: Any) -> Any:
    """A value that can be shown: of a kind that JSON has, printable, of limited length."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {safe_text(str(key)): safe_value(item) for key, item in list(value.items())[:ITEMS_MAX]}
        case list() | tuple() | set() | frozenset():
            return [safe_value(item) for item in list(value)[:ITEMS_MAX]]
        case bytes():
            return safe_text(repr(value[:TEXT_LENGTH_MAX]))
        case _:
            return safe_text(str(value))


def safe_text(text: str, length_max: int = TEXT_LENGTH_MAX) -> str:
    """Text on one line: characters that do not print are escaped, and what is too long is cut."""
    if len(text) > length_max:
        return f"{safe_text(text[:length_max])}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def _traceback_text(exc_info: object) -> str:
    error = _error_of(exc_info)
    if error is None:
        return ""
    text = "".join(traceback.format_exception(error))[-TRACEBACK_LENGTH_MAX:]
    # Each line is indented, so that a line break in an error's message cannot begin what looks like an entry.
    return "\n".join("    " + safe_text(line) for line in text.splitlines())


def _error_of(exc_info: object) -> BaseException | None:
    match exc_info:
        case BaseException():
            return exc_info
        case (_, BaseException() as error, _):
            return error
        case True:
            return sys.exception()
        case _:
            return None
