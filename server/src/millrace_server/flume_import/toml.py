"""Tables as TOML."""

import json
import re
from collections.abc import Iterator, Mapping

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def written(tables: Mapping[str, Mapping[str, Mapping[str, object]]]) -> str:
    """A TOML file of named tables, such as `[channels.orders]`, by the kind and then the name; empty for one alone."""
    return "\n".join(_pieces(tables))


def _pieces(tables: Mapping[str, Mapping[str, Mapping[str, object]]]) -> Iterator[str]:
    for kind, named in tables.items():
        for name, table in named.items():
            yield f"[{kind}.{_key(name)}]" if name else f"[{kind}]"
            for key, value in table.items():
                yield f"{_key(key)} = {_value(value)}"
            yield ""


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    # JSON's escapes are TOML's too, but for the letters beyond 16 bits, which may stand as they are.
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
            return f"{{ {', '.join(f'{_key(key)} = {_value(part)}' for key, part in value.items())} }}"
        case list():
            return f"[{', '.join(map(_value, value))}]"
        case _:
            raise TypeError(f"a {type(value).__name__} has no place in TOML")
