"""Errors of the connector, and errors of Spark as sentences."""

import re


class MillraceSparkError(Exception):
    """Raised when a read or write through Spark fails. The message is a sentence that says what to do."""


class OptionError(MillraceSparkError):
    """Raised for an option or a schema that `format("millrace")` does not support."""


class DataLossError(MillraceSparkError):
    """Raised when events are gone before they were read. With `failOnDataLoss` set to false, the read continues."""


# The connector's error in a traceback, up to the next frame.
_OWN = re.compile(
    r"millrace_spark\.(?:[a-z_]+\.)*[A-Za-z]+Error: (?P<text>.+?)(?=\n\s*\n|\n\s+at |\n===|\Z)", re.DOTALL
)
# The last line of another Python traceback.
_PYTHON = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): (?P<text>.+)$", re.MULTILINE)
# Java names the innermost exception last.
_CAUSE = re.compile(r"^Caused by: (?P<text>.+)$", re.MULTILINE)
# Parts that say nothing to a user: the exception's class in Java, and the code that Spark appends.
_CLASS = re.compile(r"^(?:[a-z_]\w*\.)+(?P<name>\w+): ")
_STATE = re.compile(r" SQLSTATE: \w{5}$")
_LENGTH_MAX = 600


def format_error(error: BaseException) -> str:
    """Returns an error of Spark as a sentence, without stack traces.

    That is the connector's own sentence if there is one, else the error of Python, else Java's innermost cause.
    """
    text = str(error)
    if java := getattr(error, "java_exception", None):
        text = f"{text}\n{java.toString()}"
    if own := list(_OWN.finditer(text)):
        return _line(own[-1]["text"])
    for pattern in (_PYTHON, _CAUSE):
        if found := list(pattern.finditer(text)):
            return _line(found[-1]["text"])
    lines = [line for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return _line(lines[0])


def _line(text: str) -> str:
    line = _STATE.sub("", " ".join(_CLASS.sub("", text.strip()).split()))
    return line if len(line) <= _LENGTH_MAX else f"{line[:_LENGTH_MAX]}…"
