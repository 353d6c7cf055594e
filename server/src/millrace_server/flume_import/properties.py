"""Properties files, as Java reads them."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_LINE_END = re.compile(r"\r\n|\r|\n")
_SEPARATOR = re.compile(r"(?P<key>(?:\\.|[^ \t\f=:\\])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<letter>.)|$)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_NO_TEXT = re.compile("[\ud800-\udfff\ufdd0-\ufdef\0]")
"""Surrogates, noncharacters that `references` uses as marks, and NUL."""


class PropertiesError(Exception):
    """Raised when a file is not a valid properties file; the message names the line."""


class Property(NamedTuple):
    """A property and its line."""

    key: str
    value: str
    line: int
    """The number of the line on which it begins, from 1."""


def parse_properties(text: str) -> list[Property]:
    """Returns the properties of a file; of a repeated key the last value, as in Java.

    Raises PropertiesError, with the number of the line, if Java would refuse the file, or if a key or value contains
    what no configuration can contain: half of a surrogate pair, NUL, or a noncharacter.
    """
    properties: dict[str, Property] = {}
    for line, logical in _logical_lines(text):
        match = _SEPARATOR.fullmatch(logical)
        assert match is not None, "the pattern matches any text"
        key, value = _unescape(match["key"], line), _unescape(match["value"], line)
        # The line and the order are those of the last occurrence.
        properties.pop(key, None)
        properties[key] = Property(key, value, line)
    return list(properties.values())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yields the numbered lines without comments; a line that ends with a backslash is joined with the next one."""
    begun: tuple[int, str] | None = None
    for number, natural in enumerate(_LINE_END.split(text), start=1):
        line = natural.lstrip(" \t\f")
        if begun is None and (not line or line[0] in "#!"):
            continue
        is_continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        first, before = begun or (number, "")
        joined = before + (line[:-1] if is_continued else line)
        begun = (first, joined) if is_continued else None
        if begun is None:
            yield first, joined
    if begun is not None:
        yield begun


def _unescape(text: str, line: int) -> str:
    def character(match: re.Match[str]) -> str:
        if match["code"]:
            return chr(int(match["code"], 16))
        letter = match["letter"] or ""
        if letter == "u":
            raise PropertiesError(f"line {line}: \\u must be followed by four hexadecimal digits")
        return _LETTERS.get(letter, letter)

    # Java writes a character beyond 16 bits as two escapes, which are combined.
    unescaped = _ESCAPE.sub(character, text).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if bad := _NO_TEXT.search(unescaped):
        raise PropertiesError(f"line {line}: contains U+{ord(bad[0]):04X}, which is not a character")
    return unescaped
