"""The options of one Flume component, each of which is either converted or told about."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

_TRUE = {"true": True, "false": False}
_MILLISECONDS = 1_000

ANY_HOST = "0.0.0.0"  # noqa: S104 - what Flume's own sources listen on by default
"""All addresses of the machine."""


@dataclass(frozen=True, slots=True)
class Remark:
    """Something of a Flume configuration that has no counterpart, or another one than might be expected."""

    key: str
    """The property, or the beginning of several."""
    sentence: str
    """Why, and what to do."""


class Options:
    """Takes options out one by one; what nobody took is left over.

    Args:
        prefix: What the keys begin with in the file.
        values: The options by the rest of their keys.
        remarks: Where it is told what cannot be converted.
    """

    def __init__(self, prefix: str, values: Mapping[str, str], remarks: list[Remark]) -> None:
        self.prefix = prefix
        self._values = dict(values)
        self._remarks = remarks

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def remark(self, key: str, sentence: str) -> None:
        """Tells about one of the options, or with an empty key about the component."""
        self._remarks.append(Remark(f"{self.prefix}.{key}" if key else self.prefix, sentence))

    def text(self, key: str, default: str = "") -> str:
        """An option's text."""
        return self._values.pop(key, default).strip()

    def words(self, key: str) -> list[str]:
        """An option's words, between spaces."""
        return self.text(key).split()

    def number(self, key: str) -> int | None:
        """A whole number; None where there is none."""
        return self._converted(key, int, "a whole number")

    def seconds(self, key: str) -> float | None:
        """Milliseconds as seconds; None where there are none."""
        milliseconds = self._converted(key, float, "a number of milliseconds")
        return None if milliseconds is None else milliseconds / _MILLISECONDS

    def flag(self, key: str) -> bool | None:
        """Whether it is true; None where it is not said."""
        return self._converted(key, lambda text: _TRUE[text.lower()], "true or false")

    def _converted(self, key: str, convert: Callable[[str], T], what: str) -> T | None:
        text = self.text(key)
        if not text:
            return None
        try:
            return convert(text)
        except (ValueError, KeyError):
            self.remark(key, f'is "{text}", which is not {what}; the default is used')
            return None

    def below(self, prefix: str) -> "Options":
        """Takes out all options whose keys begin with a prefix and a dot, without these."""
        begin = f"{prefix}."
        chosen = {key: self._values.pop(key) for key in list(self._values) if key.startswith(begin)}
        values = {key.removeprefix(begin): value for key, value in chosen.items()}
        return Options(f"{self.prefix}.{prefix}", values, self._remarks)

    def names(self) -> list[str]:
        """The keys that are there, up to their first dot, in order."""
        return list(dict.fromkeys(key.split(".", 1)[0] for key in self._values))

    def items(self) -> Iterator[tuple[str, str]]:
        """Takes out all that is left."""
        while self._values:
            key = next(iter(self._values))
            yield key, self.text(key)

    def drop_rest(self) -> None:
        """Tells nothing of what is left: it was told about as a whole."""
        self._values.clear()

    def tell_rest(self, reasons: Mapping[str, str]) -> None:
        """Tells about all that is left, with a reason where one is known.

        Args:
            reasons: By key; one that ends in a dot is for all that begin so.
        """
        for key in dict(self.items()):
            found = (
                reason
                for known, reason in reasons.items()
                if key == known or (known.endswith(".") and key.startswith(known))
            )
            self.remark(key, next(found, "has no counterpart"))


Table = dict[str, object]
"""A table of the TOML file."""


def set_known(table: Table, **values: object) -> None:
    """Sets what is not None."""
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
