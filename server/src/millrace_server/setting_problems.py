"""What is wrong with a configuration, in sentences.

Pydantic tells errors in the words of Python. A sentence here has the setting's path, what it was and what is allowed,
all in the words of TOML: `channels.orders.capacity: is "many"; it must be a whole number from 1 to 1_000_000_000`.
"""

import difflib
import json
import re
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

_SHOWN_LENGTH_MAX = 80
_SHOWN_BITS_MAX = 128
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_KEY_MARK = "[key]"
_CONSEQUENCE = "default_factory_not_called"
"""Pydantic's word for a default that was not made because another field is wrong; that field is told already."""

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path in quotes"}


def describe_problems(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """A sentence for each error that a model found."""
    return [_describe(details, model) for details in error.errors() if details["type"] != _CONSEQUENCE]


def shown_value(value: object) -> str:
    """A value as TOML writes it, on one line, in ASCII and not too long."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return _shown_number(value)
        case str():
            return _shown_text(value)
        case dict() | list():
            return "a table" if isinstance(value, dict) else "an array"
        case _:
            return f"a {type(value).__name__}"


def _shown_number(number: float) -> str:
    if isinstance(number, int) and number.bit_length() > _SHOWN_BITS_MAX:
        return f"a whole number of {number.bit_length()} bits"
    return str(number)


def _shown_text(text: str) -> str:
    if len(text) > _SHOWN_LENGTH_MAX:
        return f"{json.dumps(text[:_SHOWN_LENGTH_MAX])}... ({len(text)} characters)"
    return json.dumps(text)


def _describe(details: ErrorDetails, model: type[BaseModel]) -> str:
    location = details["loc"]
    match details["type"]:
        case "extra_forbidden":
            return f"{_path(location)}: {_describe_unknown_key(details, _declared_at(model, location[:-1]))}"
        case "missing":
            return f"{_path(location)}: is missing; it must be {_allowed(_declared_at(model, location))}"
        case "string_pattern_mismatch" if location[-1] == _KEY_MARK:
            return f"{_path(location[:-1])}: is not a name that is allowed here; it must match {_pattern(details)}"
        case "value_error":
            return _describe_refusal(location, str(details["ctx"]["error"]), _declared_at(model, location))
        case _:
            allowed = _allowed(_declared_at(model, location))
            return f"{_path(location)}: is {shown_value(details['input'])}; it must be {allowed}"


def _describe_refusal(location: tuple[int | str, ...], message: str, declared: object) -> str:
    """What a validator of ours said; that of a whole model begins with the field's name."""
    field, colon, rest = message.partition(": ")
    if colon and field in _fields(declared):
        return f"{_path((*location, field))}: {rest}"
    return f"{_path(location)}: {message}"


def _describe_unknown_key(details: ErrorDetails, table: object) -> str:
    key = str(details["loc"][-1])
    known = sorted(_fields(table))
    if isinstance(details["input"], dict) and details["loc"][0] == "channels":
        name = ".".join(map(str, details["loc"][1:]))
        return f"is a table where none is allowed; if the channel's name has dots, write [channels.{json.dumps(name)}]"
    if close := difflib.get_close_matches(key, known, n=1):
        return f"is not known; did you mean {close[0]}?"
    return f"is not known; allowed are {', '.join(known)}"


def _pattern(details: ErrorDetails) -> str:
    return str(details["ctx"]["pattern"]).removeprefix("^(?:").removesuffix(")$")


def _path(location: tuple[int | str, ...]) -> str:
    """A path as TOML writes it."""
    return ".".join(str(part) if _BARE_KEY.fullmatch(str(part)) else shown_value(str(part)) for part in location)


def _declared_at(model: type[BaseModel], location: tuple[int | str, ...]) -> object:
    """What a model declares at a path: a field, or the model that is the value of a table."""
    declared: object = model
    for part in location:
        annotation = declared.annotation if isinstance(declared, FieldInfo) else declared
        is_table_by_name = get_origin(annotation) is dict
        declared = get_args(annotation)[1] if is_table_by_name else _fields(annotation)[str(part)]
    return declared


def _fields(declared: object) -> dict[str, FieldInfo]:
    annotation = declared.annotation if isinstance(declared, FieldInfo) else declared
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.model_fields
    return {}


def _allowed(declared: object) -> str:
    if not isinstance(declared, FieldInfo):
        return "a table"
    if get_origin(declared.annotation) is Literal:
        return " or ".join(map(shown_value, get_args(declared.annotation)))
    kind = _KINDS.get(declared.annotation, "a table") if isinstance(declared.annotation, type) else "a table"
    return kind + _describe_bounds(declared.metadata)


def _describe_bounds(metadata: list[Any]) -> str:
    above = [bound.gt for bound in metadata if isinstance(bound, Gt)]
    lowest = [bound.ge for bound in metadata if isinstance(bound, Ge)]
    highest = [bound.le for bound in metadata if isinstance(bound, Le)]
    if not highest:
        return ""
    start = f" above {_number(above[0])}, at most" if above else f" from {_number(lowest[0])} to"
    return f"{start} {_number(highest[0])}"


def _number(number: Any) -> str:
    return f"{int(number) if number == int(number) else number:_}"
