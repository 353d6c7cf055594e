"""What is wrong with a configuration, in sentences.

Pydantic tells errors in the words of Python. A sentence here has the setting's path, what it was and what is allowed,
all in the words of TOML: `channels.orders.capacity: is "many"; it must be a whole number from 1 to 1_000_000_000`.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

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

_TABLE = "a table"
_CHANNEL_DEPTH = 2
"""How deep the table of a channel lies: channels.NAME."""

_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path in quotes"}


def describe_problems(error: ValidationError, model: object) -> list[str]:
    """A sentence for each error that a model found, or a union of models that one field tells apart."""
    return [sentence for details in _errors(error) for sentence in _describe(details, model)]


def _errors(error: ValidationError) -> list[ErrorDetails]:
    return [details for details in error.errors() if details["type"] != _CONSEQUENCE]


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


class _Place(NamedTuple):
    """Where an error lies."""

    path: tuple[int | str, ...]
    """The way there in TOML, which knows nothing of the choices that a union makes."""
    declared: object
    """What the model declares there: a field, or the type of an entry."""
    others: Mapping[str, type[BaseModel]] = {}
    """Where the declared model is a union's choice: what else it could have been, by type."""


def _describe(details: ErrorDetails, model: object) -> Iterator[str]:
    location = details["loc"]
    match details["type"]:
        case "union_tag_not_found" | "union_tag_invalid":
            yield from _describe_untyped(details, model)
        case "extra_forbidden":
            table = _find(model, location[:-1])
            yield f"{_shown_path((*table.path, location[-1]))}: {_describe_unknown_key(details, table)}"
        case "string_pattern_mismatch" if location[-1] == _KEY_MARK:
            path = _find(model, location[:-1]).path
            yield f"{_shown_path(path)}: is not a name that is allowed here; it must match {_pattern(details)}"
        case _:
            yield _describe_value(details, _find(model, location))


def _describe_value(details: ErrorDetails, place: _Place) -> str:
    path = _shown_path(place.path)
    match details["type"]:
        case "missing":
            return f"{path}: is missing; it must be {_allowed(place.declared)}"
        case "string_pattern_mismatch":
            return f"{path}: is {shown_value(details['input'])}; it must match {_pattern(details)}"
        case "value_error":
            return f"{path}: {details['ctx']['error']}"
        case _:
            return f"{path}: is {shown_value(details['input'])}; it must be {_allowed(place.declared)}"


def _describe_untyped(details: ErrorDetails, model: object) -> Iterator[str]:
    """Says which types there are, and what else is wrong with the table whichever of them it is meant to be."""
    place = _find(model, details["loc"])
    field, choices = _choices(place.declared)
    table: dict[str, object] = details["input"]
    was = f"is {shown_value(table[field])}" if field in table else "is missing"
    yield f"{_shown_path((*place.path, field))}: {was}; it must be {' or '.join(map(shown_value, choices))}"
    found = [_errors_in({**table, field: tag}, choice) for tag, choice in choices.items()]
    for location, error in found[-1].items():
        if all(location in errors for errors in found):
            yield from _describe({**error, "loc": (*details["loc"], list(choices)[-1], *location)}, model)


def _errors_in(table: dict[str, object], model: type[BaseModel]) -> dict[tuple[int | str, ...], ErrorDetails]:
    try:
        model.model_validate(table, strict=True)
    except ValidationError as error:
        return {details["loc"]: details for details in _errors(error)}
    return {}


def _describe_unknown_key(details: ErrorDetails, table: _Place) -> str:
    key = str(details["loc"][-1])
    if tags := [shown_value(tag) for tag, other in table.others.items() if key in other.model_fields]:
        return f"is only for type {' or '.join(tags)}"
    known = _fields(table.declared)
    is_table = isinstance(details["input"], dict)
    candidates = [name for name, field in known.items() if not is_table or _allowed(field) == _TABLE]
    if close := difflib.get_close_matches(key, sorted(candidates), n=1):
        return f"is not known; did you mean {close[0]}?"
    if is_table and table.path[:1] == ("channels",) and len(table.path) == _CHANNEL_DEPTH:
        name = f"{table.path[-1]}.{key}"
        return f"is a table where none is allowed; if the channel's name has dots, write [channels.{json.dumps(name)}]"
    return f"is not known; allowed are {', '.join(sorted(known))}"


def _pattern(details: ErrorDetails) -> str:
    return str(details["ctx"]["pattern"]).removeprefix("^(?:").removesuffix(")$")


def _shown_path(path: tuple[int | str, ...]) -> str:
    """A path as TOML writes it, with the place in an array in brackets."""
    shown = (
        f"[{part}]" if isinstance(part, int) else f".{part}" if _BARE_KEY.fullmatch(part) else f".{shown_value(part)}"
        for part in path
    )
    return "".join(shown).removeprefix(".")


def _find(model: object, location: tuple[int | str, ...]) -> _Place:
    place = _Place((), model)
    for part in location:
        annotation, _ = _unwrapped(place.declared)
        _, choices = _choices(place.declared)
        if choices:
            others = {tag: choice for tag, choice in choices.items() if tag != part}
            place = _Place(place.path, choices[str(part)], others)
        elif get_origin(annotation) in (dict, list):
            place = _Place((*place.path, part), get_args(annotation)[-1])
        else:
            place = _Place((*place.path, part), _fields(place.declared)[str(part)])
    return place


def _unwrapped(declared: object) -> tuple[Any, list[Any]]:
    """The type that is declared, without None, which TOML does not have, and what else is said of it."""
    metadata: list[Any] = []
    if isinstance(declared, FieldInfo):
        metadata += declared.metadata
        declared = declared.annotation
    if get_origin(declared) in (Union, UnionType):
        kinds = [kind for kind in get_args(declared) if kind is not NoneType]
        declared = kinds[0] if len(kinds) == 1 else declared
    if get_origin(declared) is Annotated:
        declared, *said = get_args(declared)
        metadata += said
    return declared, metadata


def _choices(declared: object) -> tuple[str, dict[str, type[BaseModel]]]:
    """The models of a union by the value of the field that tells them apart, which comes first."""
    annotation, metadata = _unwrapped(declared)
    fields = [str(said.discriminator) for said in metadata if isinstance(said, FieldInfo) and said.discriminator]
    if not fields:
        return "", {}
    [field] = fields
    return field, {tag: model for model in get_args(annotation) for tag in get_args(_fields(model)[field].annotation)}


def _fields(declared: object) -> dict[str, FieldInfo]:
    """The fields of the model that is declared."""
    model, _ = _unwrapped(declared)
    fields: dict[str, FieldInfo] = model.model_fields
    return fields


def _allowed(declared: object) -> str:
    annotation, metadata = _unwrapped(declared)
    if get_origin(annotation) is Literal:
        return " or ".join(map(shown_value, get_args(annotation)))
    if get_origin(annotation) is list:
        return f"an array, each {_allowed(get_args(annotation)[0])}"
    kind = _KINDS.get(annotation, _TABLE) if isinstance(annotation, type) else _TABLE
    return kind + _describe_bounds(metadata)


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
