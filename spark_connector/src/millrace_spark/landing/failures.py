"""What Spark raises, told in a sentence."""

import re

_OWN = re.compile(
    r"millrace_spark\.(?:[a-z_]+\.)*[A-Za-z]+Error: (?P<told>.+?)(?=\n\s*\n|\n\s+at |\n===|\Z)", re.DOTALL
)
_PYTHON = re.compile(r"^(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): (?P<told>.+)$", re.MULTILINE)
_CAUSE = re.compile(r"^Caused by: (?P<told>.+)$", re.MULTILINE)
_CLASS = re.compile(r"^(?:[a-z_]\w*\.)+(?P<name>\w+): ")
_STATE = re.compile(r" SQLSTATE: \w{5}$")
_LENGTH_MAX = 600


def sentence_of(error: BaseException) -> str:
    """What is wrong, without the traces of two languages: the connector's own sentence where there is one.

    Args:
        error: What was raised, here or on the other side of py4j.
    """
    text = str(error)
    if java := getattr(error, "java_exception", None):
        text = f"{text}\n{java.toString()}"
    if own := list(_OWN.finditer(text)):
        return _line(own[-1]["told"])
    for pattern in (_PYTHON, _CAUSE):
        if found := list(pattern.finditer(text)):
            return _line(found[-1]["told"])
    lines = [line for line in text.splitlines() if line.strip()] or [type(error).__name__]
    return _line(lines[0])


def _line(text: str) -> str:
    told = _STATE.sub("", " ".join(_CLASS.sub("", text.strip()).split()))
    return told if len(told) <= _LENGTH_MAX else f"{told[:_LENGTH_MAX]}…"
