"""The options of a Flume component, and the conversion of Flume's patterns."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

T = TypeVar("T")

_TRUE = {"true": True, "false": False}
_MILLISECONDS = 1_000

ANY_HOST = "0.0.0.0"  # noqa: S104 - the default address of Flume's sources
"""All addresses of the machine."""


@dataclass(frozen=True, slots=True)
class Note:
    """A property without a counterpart, or with one that differs from what users may expect."""

    key: str
    """The property, or a common prefix of several."""
    sentence: str
    """The reason, and what to do."""


class Options:
    """The options of one component. Each is removed when it is read, so unsupported ones are left over."""

    def __init__(self, prefix: str, values: Mapping[str, str], notes: list[Note]) -> None:
        self.prefix = prefix
        self._values = dict(values)
        self._notes = notes

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def note(self, key: str, sentence: str) -> None:
        """Adds a note about an option, or about the component if the key is empty."""
        self._notes.append(Note(f"{self.prefix}.{key}" if key else self.prefix, sentence))

    def text(self, key: str, default: str = "") -> str:
        return self._values.pop(key, default).strip()

    def words(self, key: str) -> list[str]:
        return self.text(key).split()

    def number(self, key: str) -> int | None:
        return self._parse(key, int, "a whole number")

    def seconds(self, key: str) -> float | None:
        milliseconds = self._parse(key, float, "a number of milliseconds")
        return None if milliseconds is None else milliseconds / _MILLISECONDS

    def flag(self, key: str) -> bool | None:
        return self._parse(key, lambda text: _TRUE[text.lower()], "true or false")

    def _parse(self, key: str, convert: Callable[[str], T], what: str) -> T | None:
        text = self.text(key)
        if not text:
            return None
        try:
            return convert(text)
        except (ValueError, KeyError):
            self.note(key, f'is "{text}", which is not {what}; the default is used')
            return None

    def subset(self, prefix: str) -> "Options":
        """Removes and returns all options whose keys begin with a prefix and a dot."""
        begin = f"{prefix}."
        chosen = {key: self._values.pop(key) for key in list(self._values) if key.startswith(begin)}
        values = {key.removeprefix(begin): value for key, value in chosen.items()}
        return Options(f"{self.prefix}.{prefix}", values, self._notes)

    def components(self, kind: str) -> "Iterator[tuple[str, Options]]":
        """Removes and yields the options of each component that an option lists, with its name."""
        names, options = self.words(kind), self.subset(kind)
        for name in names:
            yield name, options.subset(name)
        options.report_unused()

    def items(self) -> Iterator[tuple[str, str]]:
        """Removes and yields all remaining options."""
        while self._values:
            key = next(iter(self._values))
            yield key, self.text(key)

    def discard_unused(self) -> None:
        """Discards the remaining options, which an earlier note covers."""
        self._values.clear()

    def report_unused(self, reasons: Mapping[str, str] = MappingProxyType({})) -> None:
        """Adds a note about each remaining option, with the reason if one is known.

        A key of a reason that ends in a dot applies to all keys with that prefix.
        """
        for key in dict(self.items()):
            found = (
                reason
                for known, reason in reasons.items()
                if key == known or (known.endswith(".") and key.startswith(known))
            )
            self.note(key, next(found, "has no counterpart"))


Table = dict[str, object]
"""A table of the TOML file."""


def set_values(table: Table, **values: object) -> None:
    """Sets the values that are not None."""
    table.update({key: value for key, value in values.items() if value is not None})


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
_ADJACENT_TIMES = re.compile(r"\{time:([^{}]*)\}([^/{}%]*)\{time:")
"""Consecutive times in a name, which are joined into one placeholder to keep the name short."""
_ESCAPE_TIMES = {
    "a": "%a", "A": "%A", "b": "%b", "B": "%B", "d": "%d", "D": "%m-%d-%y", "e": "%d", "H": "%H", "I": "%I", "j": "%j",
    "k": "%H", "m": "%m", "n": "%m", "M": "%M", "p": "%p", "S": "%S", "y": "%y", "Y": "%Y", "z": "%z",
}  # fmt: skip


def to_glob(pattern: str) -> str | None:
    """Returns the shell pattern that corresponds to a regular expression for file names, or None."""
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
            # A single dot is most likely a dot that should have been escaped.
            glob += {".*": "*", ".+": "?*"}.get(match[0], ".")
    return glob


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


def to_path_template(path: str) -> tuple[str, list[str]]:
    """Returns a path with Flume's escapes as a path template, and the escapes that remain, without a counterpart."""
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
    while (joined := _ADJACENT_TIMES.sub(r"{time:\1\2", template)) != template:
        template = joined
    return template, unknown


def to_replacement(text: str) -> str:
    """Returns Java's replacement text, in which groups are `$1`, in Python's syntax."""

    def part(match: re.Match[str]) -> str:
        if match["group"]:
            return rf"\g<{match['group']}>"
        literal = match["literal"]
        return rf"\{literal}" if literal == "\\" else str(literal)

    return re.sub(r"\\(?P<literal>.)|\$\{?(?P<group>\d+|(?<=\{)\w+)\}?", part, text)
