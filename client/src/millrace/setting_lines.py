"""Where the settings of a TOML file are, for messages about them."""

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

SettingPath = tuple[int | str, ...]
"""The path of a setting, with indexes into arrays."""

_TOKEN = re.compile(
    r"""
    "{3}(?:\\.|[^\\])*?"{3,5} | '{3}.*?'{3,5} | "(?:\\.|[^"\\\n])*" | '[^'\n]*'  # Texts, which may have brackets.
    | \#[^\n]* | [\[\]{}\n]
    """,
    re.VERBOSE | re.DOTALL,
)
"""What decides where a statement ends: brackets and line breaks outside of texts and comments."""


class SettingLines:
    """The lines of a valid TOML file on which its tables and keys are.

    Python's parser does not report them. So each statement, a table's heading or a key with its value, is parsed alone.
    """

    def __init__(self, text: str) -> None:
        self._lines: dict[SettingPath, int] = {}
        self._array_indexes: dict[SettingPath, int] = {}
        table: SettingPath = ()
        for line, statement in _statements(text):
            parsed = tomllib.loads(statement)
            if statement.lstrip().startswith("["):
                table = self._table(parsed)
                self._note(table, {}, line)
            else:
                self._note(table, parsed, line)

    def line_of(self, path: SettingPath) -> int | None:
        """Returns the line of a setting, or of the innermost table around it that the file has; None for neither."""
        return next((self._lines[path[:end]] for end in range(len(path), 0, -1) if path[:end] in self._lines), None)

    def _table(self, parsed: Mapping[str, Any]) -> SettingPath:
        """Returns the path of a table from its heading, with indexes into arrays of tables."""
        path: SettingPath = ()
        value: Any = parsed
        while value:
            [(key, value)] = value.items()
            path += (key,)
            if isinstance(value, list):
                self._array_indexes[path] = self._array_indexes.get(path, -1) + 1
                value = None
            if path in self._array_indexes:
                path += (self._array_indexes[path],)
        return path

    def _note(self, table: SettingPath, values: Mapping[str, Any], line: int) -> None:
        for end in range(1, len(table) + 1):
            self._lines.setdefault(table[:end], line)
        for key, value in values.items():
            self._note((*table, key), value if isinstance(value, dict) else {}, line)


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Yields each statement with the number of its first line, from 1."""
    start, line, depth = 0, 1, 0
    for token in _TOKEN.finditer(f"{text}\n"):
        if token[0] in "[{":
            depth += 1
        elif token[0] in "]}":
            depth -= 1
        elif token[0] == "\n" and not depth:
            yield line, text[start : token.end()]
            line += text.count("\n", start, token.end())
            start = token.end()
