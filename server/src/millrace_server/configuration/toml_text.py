"""Writes the tables of a configuration as TOML, with comments."""

import json
import re
import textwrap
from collections.abc import Mapping, Sequence

Comments = Mapping[tuple[str, str], Sequence[str]]
"""Sentences by table, such as `channels.orders`, and key. Those with an empty key precede the table, and those with
an empty table begin the file."""

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_COMMENT_COLUMNS = 118


def to_toml(tables: Mapping[str, Mapping[str, Mapping[str, object]]], comments: Comments | None = None) -> str:
    """Returns a TOML file of named tables, such as `[channels.orders]`; of `[kind]` if the name is empty."""
    comments = comments or {}
    lines = _comment(comments.get(("", ""), ()))
    if lines:
        lines.append("")
    for kind, named in tables.items():
        for name, table in named.items():
            title = f"{kind}.{name}" if name else kind
            lines.extend(_comment(comments.get((title, ""), ())))
            lines.append(f"[{kind}.{_key(name)}]" if name else f"[{kind}]")
            for key, value in table.items():
                lines.extend(_comment(comments.get((title, key), ())))
                lines.append(f"{_key(key)} = {_value(value)}")
            lines.append("")
    return "\n".join(lines)


def _comment(sentences: Sequence[str]) -> list[str]:
    lines = []
    for sentence in sentences:
        # Comments must not contain control characters or line ends.
        shown = "".join(letter if letter.isprintable() else "?" for letter in " ".join(sentence.split()))
        lines.extend(textwrap.wrap(shown, _COMMENT_COLUMNS, break_long_words=False, break_on_hyphens=False))
    return [f"# {line}" for line in lines]


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    # TOML has the same escapes as JSON, except for characters beyond 16 bits, which are left unescaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return _text(value)
        case dict():
            entries = ", ".join(f"{_key(key)} = {_value(part)}" for key, part in value.items())
            return f"{{ {entries} }}" if entries else "{}"
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            raise TypeError(f"a {type(value).__name__} cannot be represented in TOML")
