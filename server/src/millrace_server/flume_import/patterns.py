"""Conversion of Flume's patterns: of file names, times, paths and replacements."""

import re
from itertools import product
from typing import NamedTuple

from millrace_server.agent.kafka.topic_patterns import check_topic_pattern
from millrace_server.flume_import.references import fill_in

_JAVA_TIME = re.compile(r"(?P<letters>([A-Za-z])\2*)|'(?P<quoted>[^']*)'|(?P<other>[^A-Za-z']+)")
_JAVA_LETTERS = {
    "yyyy": "%Y", "yy": "%y", "MM": "%m", "M": "%m", "MMM": "%b", "MMMM": "%B", "dd": "%d", "d": "%d", "HH": "%H",
    "H": "%H", "hh": "%I", "mm": "%M", "ss": "%S", "SSS": "%f", "a": "%p", "Z": "%z", "XXX": "%z", "EEE": "%a",
    "EEEE": "%A",
}  # fmt: skip
_ESCAPE = re.compile(r"%\{(?P<header>[^}]+)\}|%\[(?P<host>[^\]]+)\]|%(?P<letter>[A-Za-z])|(?P<brace>[{}])")
_ADJACENT_TIMES = re.compile(r"\{time:([^{}]*)\}([^/{}%]*)\{time:")
"""Consecutive times in a name, which are joined into one placeholder to keep the name short."""
_ESCAPE_TIMES = {
    "a": "%a", "A": "%A", "b": "%b", "B": "%B", "d": "%d", "e": "%d", "H": "%H", "I": "%I", "j": "%j", "k": "%H",
    "m": "%m", "n": "%m", "M": "%M", "p": "%p", "S": "%S", "y": "%y", "Y": "%Y",
}  # fmt: skip
_PADDED = {"e", "k", "n"}
"""Flume's escapes for numbers without a leading zero; the counterparts have one."""
_REGEX_PARTS = re.compile(
    r"\.\*|\.\+|\\(?P<digit>d)|\\(?P<plain>[^A-Za-z0-9])|(?P<set>\[\^?[\w-]+\])|(?P<dot>\.)|(?P<text>[^\\.^$*+?()|{}\[\]]+)"
)
_ALTERNATIVES = re.compile(r"(?<!\\)\((?:\?:)?(?P<choices>[^()]*)\)(?![*+?{])")
_GLOBS_MAX = 64
_JAVA_PARTS = re.compile(
    r"(?P<open>\(\?:)|\\(?P<escaped>.)|(?P<set>\[\^?(?:\\.|[^\]\\])*\])|(?P<quantifier>[*+?]|\{[\d,]+\})\??"
)
_JAVA_SETS = re.compile(r"(?<!\\)\[(?:\\.|[^\]\\])*?(?:\[|&&)")
"""A union or an intersection of character classes."""
_JAVA_CLASSES = re.compile(r"(?<!\\)(?:\\\\)*\\[dDwW]")
_POSIX_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_"}


def to_globs(pattern: str) -> list[str] | None:
    """Returns the shell patterns that together match the same as a regular expression for file names, or None.

    A single dot is interpreted as a literal dot, which is most likely meant.
    """
    pattern = pattern.removeprefix("^").removesuffix("$")
    texts = _ALTERNATIVES.split(pattern)
    # The items with odd indexes are the alternatives of a group.
    parts = [text.split("|") if index % 2 else [text] for index, text in enumerate(texts)]
    chosen = ["".join(choice) for choice in product(*parts)][: _GLOBS_MAX + 1]
    globs = [_to_glob(choice) for choice in chosen]
    if len(globs) > _GLOBS_MAX or None in globs:
        return None
    return [glob for glob in globs if glob is not None]


def has_single_dot(pattern: str) -> bool:
    """Returns whether a regular expression has a dot that matches a single character."""
    return bool(re.search(r"(?<!\\)\.(?![*+?{])", re.sub(r"\[[^\]]*\]", "", pattern)))


def _to_glob(pattern: str) -> str | None:
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
        elif match["digit"]:
            glob += "[0-9]"
        else:
            glob += {".*": "*", ".+": "?*"}.get(match[0], ".")
    return glob


def to_posix(pattern: str) -> str | None:
    """Returns the POSIX regular expression that matches the same topics as a Java pattern, or None.

    Both must match a whole name, so it does not matter whether a quantifier is reluctant.
    """
    posix = _JAVA_PARTS.sub(_to_posix_part, pattern)
    try:
        check_topic_pattern(posix)
    except ValueError:
        return None
    return None if _JAVA_SETS.search(pattern) else posix


def _to_posix_part(match: re.Match[str]) -> str:
    if match["open"]:
        return "("
    if match["set"]:
        return re.sub(r"\\([dw.])", lambda escaped: _POSIX_CLASSES.get(escaped[1], "."), match["set"])
    if match["escaped"] in _POSIX_CLASSES:
        return f"[{_POSIX_CLASSES[match['escaped']]}]"
    return match["quantifier"] or match[0]


def to_regex(pattern: str) -> str:
    r"""Returns a regular expression that matches the same as a Java pattern.

    In Java, `\d` and `\w` match only ASCII, and character classes may be nested and intersected.
    """
    flags = "a" * bool(_JAVA_CLASSES.search(pattern)) + "V1" * bool(_JAVA_SETS.search(pattern))
    return f"(?{flags}){pattern}" if flags else pattern


def to_strptime_format(pattern: str) -> str | None:
    """Returns the format of `strptime` for a Java time pattern, or None."""
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


class ConvertedPath(NamedTuple):
    """A path template, and its differences from Flume's path."""

    template: str
    unknown: list[str]
    """Escapes without a counterpart, which have to be filled in."""
    padded: list[str]
    """Escapes for numbers that have leading zeros in the template."""


def to_path_template(path: str) -> ConvertedPath:
    """Converts a path with Flume's escapes to a path template."""
    unknown: list[str] = []
    padded: list[str] = []

    def place(match: re.Match[str]) -> str:
        letter = match["letter"]
        if match["brace"]:
            return match["brace"] * 2
        if match["header"]:
            return f"{{header:{match['header']}}}"
        if letter == "D":
            return "{time:%m}/{time:%d}/{time:%y}"
        if letter in _ESCAPE_TIMES:
            padded.extend([match[0]] if letter in _PADDED else [])
            return f"{{time:{_ESCAPE_TIMES[letter]}}}"
        unknown.append(match[0])
        return fill_in(match[0])

    template = _ESCAPE.sub(place, path)
    while (joined := _ADJACENT_TIMES.sub(r"{time:\1\2", template)) != template:
        template = joined
    return ConvertedPath(template, unknown, padded)


def to_replacement(text: str) -> str:
    """Converts a Java replacement text, in which groups are `$1`, to Python's syntax."""

    def part(match: re.Match[str]) -> str:
        if match["group"]:
            return rf"\g<{match['group']}>"
        literal = match["literal"]
        return rf"\{literal}" if literal == "\\" else str(literal)

    return re.sub(r"\\(?P<literal>.)|\$\{?(?P<group>\d+|(?<=\{)\w+)\}?", part, text)
