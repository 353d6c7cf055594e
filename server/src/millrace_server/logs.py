"""The server's log: readable on a terminal, one JSON object per line elsewhere.

Clients' data appears in the log, so it must not forge a line, control a terminal or fill a disk: unprintable characters
are escaped, and lengths are limited.
"""

import logging
import math
import os
import queue
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from pathlib import Path
from typing import Any, TextIO

import structlog
from structlog.typing import Processor

from millrace.setting_problems import without_passwords

TEXT_LENGTH_MAX = 1_000
"""Longer texts are cut; their length is added."""

ITEMS_MAX = 50
"""Maximum number of items of a list or mapping; the others are left out."""

TRACEBACK_LENGTH_MAX = 20_000
"""Maximum length of a traceback; only the end, which has the error, is logged."""

REPEAT_SECONDS = 600.0
"""How long a message of OpenTelemetry is not repeated. Without a collector, its exporter logs several a minute."""

_FIRST_KEYS = ("timestamp", "level", "event")
_NOISY_LOGGERS = ("uvicorn", "asyncio")


_BEFORE: list[Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]

_FILE_MODE = 0o600
_WAITING_MAX = 10_000
_MESSAGES_MAX = 100

_log = structlog.stdlib.get_logger(__name__)


def _formatter(renderer: Processor) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_BEFORE,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render_safely, renderer],
    )


def configure_logging(stream: TextIO, level: int = logging.INFO) -> None:
    """Logs entries of a level and above to a stream, through structlog and the standard library.

    If the stream fails, for example because its pipe is closed, lines are lost and nothing else happens.
    """
    is_terminal = stream.isatty()
    renderer: Processor = (
        structlog.dev.ConsoleRenderer(
            colors="NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb",
            exception_formatter=structlog.dev.plain_traceback,
        )
        if is_terminal
        else structlog.processors.JSONRenderer()
    )
    handler = logging.StreamHandler(stream)
    handler.setLevel(level)
    handler.setFormatter(_formatter(renderer))
    handler.addFilter(_Repeats())
    structlog.configure(
        processors=[*_BEFORE, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    _configure_standard_logging(handler, level)


class _OwnFile(logging.Handler):
    """Appends to a file that only the server's user may read; opened for each entry, it may be renamed at any time."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        line = f"{record.getMessage()}\n".encode()
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, _FILE_MODE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(line)
        except OSError as error:
            _log.error("an entry is missing in its file", file=str(self._path), why=error.strerror)


@contextmanager
def also_to_file(logger: str, path: Path | None) -> Iterator[None]:
    """Writes the entries of a logger also to a file, as one JSON object per line, on a thread, at any level of the log.

    The file is created where there is none, also after it was renamed, as logrotate does.
    """
    if path is None:
        yield
        return
    # If the queue is full, because a disk does not respond, entries are missing in the file; the log has them.
    entries: queue.Queue[logging.LogRecord] = queue.Queue(_WAITING_MAX)
    handler = QueueHandler(entries)
    handler.setFormatter(_formatter(structlog.processors.JSONRenderer()))
    listener = QueueListener(entries, _OwnFile(path))
    listener.start()
    source = logging.getLogger(logger)
    level_before = source.level
    source.addHandler(handler)
    source.setLevel(logging.INFO)
    try:
        yield
    finally:
        source.setLevel(level_before)
        source.removeHandler(handler)
        listener.stop()


@contextmanager
def warnings_only() -> Iterator[None]:
    """Logs nothing below a warning, until the end of the block, for tools that use parts of the server."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        structlog.configure(**before)


def log_to_standard_library() -> None:
    """Logs to the standard library's loggers, for a program that embeds the agent and configures them itself."""
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, _as_record],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
    )


def _as_record(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """Returns the arguments for a standard logger: one readable line."""
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
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_header)
    # It warns of each malformed trace context, which any client may send.
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
    logging.captureWarnings(capture=True)
    logging.raiseExceptions = False


class _Repeats(logging.Filter):
    """Drops messages of OpenTelemetry that were logged in the last `REPEAT_SECONDS`, regardless of their arguments."""

    def __init__(self) -> None:
        super().__init__("opentelemetry")
        self._logged_at: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not super().filter(record):
            return True
        last = self._logged_at.get(message := str(record.msg))
        # abs: the clock may have been set back.
        if last is not None and abs(record.created - last) < REPEAT_SECONDS:
            return False
        if len(self._logged_at) >= _MESSAGES_MAX:
            self._logged_at.clear()
        self._logged_at[message] = record.created
        return True


def _is_no_header(record: logging.LogRecord) -> bool:
    """Drops gRPC's messages about headers that are not UTF-8, which quote them and so may contain a token."""
    return not str(record.msg).startswith("Invalid encoding on")


def render_safely(_logger: Any, _method: str, entry: MutableMapping[str, Any]) -> dict[str, Any]:
    """Makes an entry's values safe to show, and moves time, level and event to the front."""
    exc_info = entry.pop("exc_info", None)
    safe = {key: entry.pop(key) for key in _FIRST_KEYS if key in entry}
    safe = {safe_text(str(key)): safe_value(value) for key, value in (safe | dict(entry)).items()}
    if trace := _traceback_text(exc_info):
        safe["exception"] = trace
    return safe


def safe_value(value: Any) -> Any:
    """Returns a value that JSON can hold, printable and of limited length."""
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
    """Returns text as one line without passwords in URLs: unprintable characters are escaped, and long text is cut."""
    text = without_passwords(text)
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
    # Each line is indented, so that a line break in an error's message cannot forge an entry.
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
