"""Java's properties files, as Flume's configurations are written."""

import re

_SEPARATOR = re.compile(r"(?P<key>(?:\\.|[^\s=:\\])*)[ \t\f]*[=:]?[ \t\f]*(?P<value>.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:u(?P<code>[0-9a-fA-F]{4})|(?P<letter>.)|$)", re.DOTALL)
_LETTERS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> dict[str, str]:
    """The properties of a file; where a key comes twice, the last one counts, as in Java."""
    properties = {}
    for line in _logical_lines(text):
        match = _SEPARATOR.fullmatch(line)
        assert match is not None, "the pattern takes any text"
        properties[_unescaped(match["key"])] = _unescaped(match["value"])
    return properties


def _logical_lines(text: str) -> list[str]:
    """Lines without comments, those that end in a backslash joined with the next."""
    lines: list[str] = []
    is_continued = False
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if not is_continued and (not line or line[0] in "#!"):
            continue
        is_next_continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        line = line[:-1] if is_next_continued else line
        if is_continued:
            lines[-1] += line
        else:
            lines.append(line)
        is_continued = is_next_continued
    return lines


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        if match["code"]:
            return chr(int(match["code"], 16))
        letter = match["letter"] or ""
        return _LETTERS.get(letter, letter)

    return _ESCAPE.sub(character, text)
