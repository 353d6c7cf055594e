"""Flume's regular expressions, time formats and path escapes in the words of Millrace."""

import re

_REGEX_PARTS = re.compile(
    r"\.\*|\.\+|\\(?P<plain>[^A-Za-z0-9])|(?P<set>\[\^?[\w-]+\])|(?P<dot>\.)|(?P<text>[^\\.^$*+?()|{}\[\]]+)"
)
_JAVA_TIME = re.compile(r"(?P<letters>([A-Za-z])\2*)|'(?P<quoted>[^']*)'|(?P<other>[^A-Za-z']+)")
_JAVA_LETTERS = {
    "yyyy": "%Y", "yy": "%y", "MM": "%m", "M": "%m", "MMM": "%b", "MMMM": "%B", "dd": "%d", "d": "%d", "HH": "%H",
    "H": "%H", "hh": "%I", "mm": "%M", "ss": "%S", "SSS": "%f", "a": "%p", "Z": "%z", "XXX": "%z", "EEE": "%a",
    "EEEE": "%A",
}  # fmt: skip
_ESCAPE = re.compile(r"%\{(?P<header>[^}]+)\}|%\[(?P<host>[^\]]+)\]|%(?P<letter>[A-Za-z])|(?P<brace>[{}])")
_NEIGHBOURS = re.compile(r"\{time:([^{}]*)\}([^/{}%]*)\{time:")
"""Times in one name: as one place they take less of the room that a name has."""
_ESCAPE_TIMES = {
    "a": "%a", "A": "%A", "b": "%b", "B": "%B", "d": "%d", "D": "%m-%d-%y", "e": "%d", "H": "%H", "I": "%I", "j": "%j",
    "k": "%H", "m": "%m", "n": "%m", "M": "%M", "p": "%p", "S": "%S", "y": "%y", "Y": "%Y", "z": "%z",
}  # fmt: skip


def glob_of(pattern: str) -> str | None:
    """The shell pattern for what a regular expression is meant to match among names; None where there is none."""
    pattern = pattern.removeprefix("^").removesuffix("$")
    glob, position = "", 0
    while position < len(pattern):
        match = _REGEX_PARTS.match(pattern, position)
        if match is None:
            return None
        position = match.end()
        if position < len(pattern) and pattern[position] in "*+?{":
            return None
        if match["plain"] or match["text"]:
            glob += re.sub(r"([*?\[])", r"[\1]", match["plain"] or match["text"])
        elif match["set"]:
            glob += match["set"].replace("[^", "[!")
        else:
            # A lone dot is one that nobody took the trouble to escape.
            glob += {".*": "*", ".+": "?*"}.get(match[0], ".")
    return glob


def strptime_format_of(pattern: str) -> str | None:
    """The format of `strptime` for one of Java's time patterns; None where there is none."""
    parts = []
    for match in _JAVA_TIME.finditer(pattern):
        if match["letters"]:
            directive = _JAVA_LETTERS.get(match["letters"])
            if directive is None:
                return None
            parts.append(directive)
        else:
            parts.append((match["quoted"] or match["other"] or "'").replace("%", "%%"))
    return "".join(parts)


def path_template_of(path: str) -> tuple[str, list[str]]:
    """A path with Flume's escapes as a path template, and the escapes that have no counterpart, which stay as text."""
    unknown: list[str] = []

    def place(match: re.Match[str]) -> str:
        if match["brace"]:
            return match["brace"] * 2
        if match["header"]:
            return f"{{header:{match['header']}}}"
        if match["letter"] in _ESCAPE_TIMES:
            return f"{{time:{_ESCAPE_TIMES[match['letter']]}}}"
        unknown.append(match[0])
        return match[0].replace("%", "")

    template = _ESCAPE.sub(place, path)
    while (joined := _NEIGHBOURS.sub(r"{time:\1\2", template)) != template:
        template = joined
    return template, unknown


def replacement_of(text: str) -> str:
    """Java's replacement text, where groups are `$1`, as Python has it."""

    def part(match: re.Match[str]) -> str:
        if match["group"]:
            return rf"\g<{match['group']}>"
        literal = match["literal"]
        return rf"\{literal}" if literal == "\\" else str(literal)

    return re.sub(r"\\(?P<literal>.)|\$\{?(?P<group>\d+|(?<=\{)\w+)\}?", part, text)
