"""Regular expressions for lines, written so that Python's engine and Java's read them alike.

Repeated groups are possessive (`*+`): a line of a log may be anything, and Java's engine recurses into what it may
have to take back, until its stack is full.
"""

import re
from typing import NamedTuple

_QUOTED = r'"(?P<{name}>[^"\\]*+(?:\\.[^"\\]*+)*+)"'

ACCESS_LOG = (
    r"(?P<client>\S++) \S++ (?P<user>\S++) \[(?P<time>[^\]]++)\] "
    + _QUOTED.format(name="request")
    + r" (?P<status>\d{3}) (?P<bytes>\d++|-)(?: "
    + _QUOTED.format(name="referrer")
    + " "
    + _QUOTED.format(name="agent")
    + r")?\s*+"
)
"""Common and combined log format, as Apache and nginx write them."""

SYSLOG_5424 = (
    r"<(?P<priority>\d{1,3})>1 (?P<time>\S++) (?P<host>\S++) (?P<app>\S++) (?P<process_id>\S++) (?P<message_id>\S++) "
    r'(?P<structured_data>-|(?:\[(?:[^"\]\\]|"(?:[^"\\]|\\.)*+")*+\])++)(?: (?:\uFEFF)?(?P<message>(?s:.*)))?'
)
"""RFC 5424; what is not there is a dash."""

SYSLOG_3164 = (
    r"(?:<(?P<priority>\d{1,3})>)?(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<host>\S++) "
    r"(?:(?P<app>[^\s\[\]:]++)(?:\[(?P<process_id>[^\]\s]*+)\])?: ?)?(?P<message>(?s:.*))"
)
"""RFC 3164, as daemons write it and as it lies in /var/log, where the priority is left out."""

_SIMPLE_GROUP = re.compile(r"\(\?P?<(?P<name>[A-Za-z_][A-Za-z0-9_]*)>")
_BACK_REFERENCE = re.compile(r"\(\?P=(?P<name>\w+)\)")


class PatternError(ValueError):
    """Returned when an expression is none; the message says what is wrong."""


class NumberedPattern(NamedTuple):
    """An expression whose groups are told apart by their numbers.

    Java's names of groups have letters and digits only, and a name may stand for one match only where each is asked
    for by itself.
    """

    text: str
    names: dict[str, int]
    """For each named group its number."""
    group_count: int


def numbered_pattern(pattern: str) -> NumberedPattern:
    """Takes the names out of an expression; `(?<name>...)` is one too, as in Java.

    Raises:
        PatternError: It is no expression that Python reads.
    """
    named, numbered = [], []
    position = 0
    is_in_set = False
    while position < len(pattern):
        found = None if is_in_set else _SIMPLE_GROUP.match(pattern, position)
        if found:
            named.append(f"(?P<{found['name']}>")
            numbered.append("(")
            position = found.end()
            continue
        length = 2 if pattern[position] == "\\" else 1
        part = pattern[position : position + length]
        is_in_set = part == "[" or (is_in_set and part != "]")
        named.append(part)
        numbered.append(part)
        position += length
    try:
        compiled = re.compile("".join(named))
    except re.error as error:
        raise PatternError(f"is no regular expression: {error}") from None
    names = dict(compiled.groupindex)
    text = _BACK_REFERENCE.sub(lambda found: rf"\{names[found['name']]}", "".join(numbered))
    return NumberedPattern(text, names, compiled.groups)


def python_pattern(pattern: str) -> re.Pattern[str]:
    """The expression as Python's engine matches it; see `re.Pattern.fullmatch`."""
    return re.compile(pattern)


def java_pattern(numbered: NumberedPattern) -> str:
    r"""The expression as Java's engine matches it against a whole line.

    In Java `.` and `$` know more ends of lines than `\n` unless told otherwise.
    """
    return rf"(?d)\A(?:{numbered.text})\z"
