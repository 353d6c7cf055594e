"""Topic patterns: POSIX extended regular expressions, which librdkafka matches with the C library."""

import re

from millrace.setting_problems import shown_value

_PARTS = re.compile(r"\\.|\[\^?\]?(?:\[:\w+:\]|[^\]])*\]|.", re.DOTALL)
"""An escaped character, a bracket expression, or any other character."""
_FOREIGN = re.compile(r"\(\?|[*+?}][*+?]")


def check_topic_pattern(pattern: str) -> None:
    r"""Raises ValueError if POSIX does not support a part of a pattern, or interprets it differently, such as `\d`."""
    parts = _PARTS.findall(pattern)
    for part in parts:
        if (part[0] == "\\" and part[1:].isalnum()) or (part[0] == "[" and "\\" in part):
            raise ValueError(
                f"is {shown_value(pattern)}, which has {part}; in a POSIX regular expression, a backslash may only "
                "precede punctuation, outside of brackets: write [0-9] for \\d"
            )
    if found := _FOREIGN.search("".join(part if len(part) == 1 else "x" for part in parts)):
        raise ValueError(
            f"is {shown_value(pattern)}, which has {found[0]}; POSIX regular expressions do not support this"
        )


def subscribed(pattern: str) -> str:
    """Returns the topic by which librdkafka subscribes to a pattern that must match whole names."""
    return f"^({pattern})$"
