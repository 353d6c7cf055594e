"""Validation errors of a configuration as sentences, for the server and for `millrace-spark`.

Pydantic reports errors in terms of Python. A sentence here names the setting's path, the value found and the values
allowed, as TOML writes them: `channels.orders.capacity: is "many"; it must be a whole number from 1 to 1_000_000_000`.

The client never imports this module: it needs pydantic, which the client does not depend on.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, Secret, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from millrace.setting_lines import SettingPath
from millrace.setting_units import Unit

_SHOWN_LENGTH_MAX = 80
_SHOWN_BITS_MAX = 128
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_USER_INFO = re.compile(r"(?<=//)[^/?#\s\"]*@")
_KEY_MARK = "[key]"
# Pydantic's error type for a default that it did not compute because another field is invalid; the sentence about that
# field is enough.
_CONSEQUENCE = "default_factory_not_called"

_TABLE = "a table"
_NAMED_TABLES: Mapping[int | str, str] = {
    "channels": "channel",
    "sources": "source",
    "sinks": "sink",
    "sink_groups": "sink group",
}
"""The tables whose keys are names chosen by the user, and what each key names."""

_NAMED_DEPTH = 2
"""The depth of such a table: channels.NAME."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with a setting, as a sentence; as text it begins with the setting's path."""

    path: SettingPath
    sentence: str
    line: int | None = None
    """The line of the file, from 1; None if it is not known."""

    def __str__(self) -> str:
        return f"{shown_path(self.path)}: {self.sentence}" if self.path else self.sentence

    def document(self) -> dict[str, object]:
        return {"path": shown_path(self.path), "line": self.line, "sentence": self.sentence}

    def located(self, source: str) -> str:
        """Returns the problem as text, with the file and the line, as compilers write them."""
        return f"{source}:{self.line}: {self}" if self.line else f"{source}: {self}"


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path in quotes"}


def describe_problems(error: ValidationError, model: object) -> list[Problem]:
    """Returns the errors of a model, or of a union of models with a discriminator."""
    return [problem for details in _errors(error) for problem in _describe(details, model)]


def _errors(error: ValidationError) -> list[ErrorDetails]:
    return [details for details in error.errors() if details["type"] != _CONSEQUENCE]


def shown_value(value: object) -> str:
    """Returns a value as TOML writes it: one line of ASCII, cut to a readable length."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return _shown_number(value)
        case str():
            return _shown_text(value)
        case {"fill_in": str(wanted), **others} if not others:
            # What `millraced import-flume` writes for a value that it does not know.
            return f"to be filled in, for {_shown_text(wanted)}"
        case dict() | list():
            return "a table" if isinstance(value, dict) else "an array"
        case _:
            return f"a {type(value).__name__}"


def _shown_number(number: float) -> str:
    if isinstance(number, int) and number.bit_length() > _SHOWN_BITS_MAX:
        return f"a whole number of {number.bit_length()} bits"
    return str(number)


def without_passwords(text: str) -> str:
    """Returns a text whose URLs have no user name and password any more."""
    return _USER_INFO.sub("***@", text) if "@" in text else text


def _shown_text(text: str) -> str:
    text = without_passwords(text)
    if len(text) > _SHOWN_LENGTH_MAX:
        return f"{json.dumps(text[:_SHOWN_LENGTH_MAX])}... ({len(text)} characters)"
    return json.dumps(text)


class _Setting(NamedTuple):
    """The setting that an error is about."""

    path: SettingPath
    """The path in TOML, without the tags of unions that pydantic adds."""
    declared: object
    """What the model declares there: a field, or the type of an entry."""
    others: Mapping[str, type[BaseModel]] = {}
    """The other models of the union that the declared model belongs to, by tag."""


def _describe(details: ErrorDetails, model: object) -> Iterator[Problem]:
    location = details["loc"]
    match details["type"]:
        case "union_tag_not_found" | "union_tag_invalid":
            yield from _describe_untyped(details, model)
        case "extra_forbidden":
            table = _find(model, location[:-1])
            yield Problem((*table.path, location[-1]), _describe_unknown_key(details, table))
        case "string_pattern_mismatch" if location[-1:] == (_KEY_MARK,):
            path = _find(model, location[:-1]).path
            yield Problem(path, f"is not a name that is allowed here; it must match {_pattern(details)}")
        case "value_error" if location[-1:] == (_KEY_MARK,):
            yield Problem(_find(model, location[:-1]).path, str(details["ctx"]["error"]))
        case _:
            setting = _find(model, location)
            yield Problem(setting.path, _describe_value(details, setting))


def _describe_value(details: ErrorDetails, setting: _Setting) -> str:
    was = "a secret" if _is_secret(setting.declared) else shown_value(details["input"])
    match details["type"]:
        case "missing":
            return f"is missing; it must be {allowed_values(setting.declared)}"
        case "string_pattern_mismatch":
            return f"is {was}; it must match {_pattern(details)}"
        case "value_error":
            return str(details["ctx"]["error"])
        case "too_short" | "too_long":
            return f"has {_counted(details, setting.declared)}"
        case "string_too_short" | "string_too_long":
            return f"is {was}; it must have {_bounded(details)} characters"
        case _:
            hint = _unit_hint(details["input"], setting.declared)
            return f"is {was}; it must be {allowed_values(setting.declared)}{hint}"


def _unit_hint(value: object, declared: object) -> str:
    _, metadata = unwrapped(declared)
    examples = [said.example for said in metadata if isinstance(said, Unit)]
    return f", or text such as {shown_value(examples[0])}" if examples and isinstance(value, str) else ""


def _is_secret(declared: object) -> bool:
    """Whether a value is a secret, or meant to hold some."""
    annotation, metadata = unwrapped(declared)
    return Secret in metadata or any(map(_is_secret, get_args(annotation)))


def _describe_untyped(details: ErrorDetails, model: object) -> Iterator[Problem]:
    """Yields the allowed types, and the errors that the table has under every one of them."""
    setting = _find(model, details["loc"])
    field, choices = choices_of(setting.declared)
    table: dict[str, object] = details["input"]
    was = f"is {shown_value(table[field])}" if field in table else "is missing"
    close = difflib.get_close_matches(str(table.get(field, "")), choices, n=1)
    hint = f"; did you mean {shown_value(close[0])}?" if close else ""
    yield Problem((*setting.path, field), f"{was}; it must be {' or '.join(map(shown_value, choices))}{hint}")
    found = [_errors_in({**table, field: tag}, choice) for tag, choice in choices.items()]
    for location, error in found[-1].items():
        if all(location in errors for errors in found):
            yield from _describe({**error, "loc": (*details["loc"], list(choices)[-1], *location)}, model)


def _errors_in(table: dict[str, object], model: type[BaseModel]) -> dict[SettingPath, ErrorDetails]:
    try:
        model.model_validate(table, strict=True)
    except ValidationError as error:
        return {details["loc"]: details for details in _errors(error)}
    return {}


def _describe_unknown_key(details: ErrorDetails, table: _Setting) -> str:
    key = str(details["loc"][-1])
    if tags := [shown_value(tag) for tag, other in table.others.items() if key in other.model_fields]:
        return f"is only for type {' or '.join(tags)}"
    known = fields_of(table.declared)
    is_table = isinstance(details["input"], dict)
    candidates = [name for name, field in known.items() if not is_table or allowed_values(field) == _TABLE]
    if close := difflib.get_close_matches(key, sorted(candidates), n=1):
        return f"is not known; did you mean {close[0]}?"
    if is_table and len(table.path) == _NAMED_DEPTH and table.path[0] in _NAMED_TABLES:
        name = f"{table.path[-1]}.{key}"
        what = _NAMED_TABLES[table.path[0]]
        return (
            f"is a table where none is allowed; if the {what}'s name has dots, write "
            f"[{table.path[0]}.{json.dumps(name)}]"
        )
    return f"is not known; allowed are {', '.join(sorted(known))}"


def _counted(details: ErrorDetails, declared: object) -> str:
    noun = "value" if get_origin(unwrapped(declared)[0]) is list else "entry"
    actual = details["ctx"]["actual_length"]
    nouns = f"{noun}s" if noun == "value" else "entries"
    return f"{actual or 'no'} {noun if actual in {0, 1} else nouns}; it must have {_bounded(details)}"


def _bounded(details: ErrorDetails) -> str:
    bounds = details["ctx"]
    return f"at least {bounds['min_length']}" if "min_length" in bounds else f"at most {bounds['max_length']}"


def _pattern(details: ErrorDetails) -> str:
    return str(details["ctx"]["pattern"]).removeprefix("^(?:").removesuffix(")$")


def shown_path(path: SettingPath) -> str:
    """Returns a path as TOML writes it, with indexes into arrays in brackets."""
    shown = (
        f"[{part}]" if isinstance(part, int) else f".{part}" if _BARE_KEY.fullmatch(part) else f".{shown_value(part)}"
        for part in path
    )
    return "".join(shown).removeprefix(".")


def _find(model: object, location: SettingPath) -> _Setting:
    setting = _Setting((), model)
    for part in location:
        annotation, _ = unwrapped(setting.declared)
        _, choices = choices_of(setting.declared)
        if choices:
            others = {tag: choice for tag, choice in choices.items() if tag != part}
            setting = _Setting(setting.path, choices[str(part)], others)
        elif get_origin(annotation) in (dict, list):
            setting = _Setting((*setting.path, part), get_args(annotation)[-1])
        else:
            setting = _Setting((*setting.path, part), fields_of(setting.declared)[str(part)])
    return setting


def allowed_values(declared: object) -> str:
    """Returns the allowed values of a setting: `"none" or "zstd"`, `a whole number from 1 to 64`."""
    annotation, metadata = unwrapped(declared)
    if get_origin(annotation) is Literal:
        return " or ".join(map(shown_value, get_args(annotation)))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(shown_value(member.value) for member in annotation)
    if get_origin(annotation) is list:
        return f"an array, each {allowed_values(get_args(annotation)[0])}"
    kind = _KINDS.get(annotation, _TABLE) if isinstance(annotation, type) else _TABLE
    return kind + _describe_bounds(metadata)


def _describe_bounds(metadata: list[Any]) -> str:
    above = [bound.gt for bound in metadata if isinstance(bound, Gt)]
    lowest = [bound.ge for bound in metadata if isinstance(bound, Ge)]
    highest = [bound.le for bound in metadata if isinstance(bound, Le)]
    if not highest:
        return f" above {_number(above[0])}" if above else f" of at least {_number(lowest[0])}" if lowest else ""
    start = f" above {_number(above[0])}, at most" if above else f" from {_number(lowest[0])} to"
    return f"{start} {_number(highest[0])}"


def _number(number: Any) -> str:
    return f"{int(number) if number == int(number) else number:_}"


def unwrapped(declared: object) -> tuple[Any, list[Any]]:
    """Returns the declared type, without None, which TOML does not have, and its metadata."""
    metadata: list[Any] = []
    if isinstance(declared, FieldInfo):
        # Pydantic copies an alias's discriminator to the field.
        metadata += [*declared.metadata, *([declared] if declared.discriminator else [])]
        declared = declared.annotation
    if get_origin(declared) in (Union, UnionType):
        kinds = [kind for kind in get_args(declared) if kind is not NoneType]
        declared = kinds[0] if len(kinds) == 1 else declared
    if get_origin(declared) is Annotated:
        declared, *said = get_args(declared)
        metadata += said
    if get_origin(declared) is Secret:
        declared, said = unwrapped(get_args(declared)[0])
        metadata += [*said, Secret]
    return declared, metadata


def choices_of(declared: object) -> tuple[str, dict[str, type[BaseModel]]]:
    """Returns the name of a union's discriminator, and its models by the value of that field."""
    annotation, metadata = unwrapped(declared)
    fields = [str(said.discriminator) for said in metadata if isinstance(said, FieldInfo) and said.discriminator]
    if not fields:
        return "", {}
    [field] = fields
    return field, {tag: model for model in get_args(annotation) for tag in get_args(fields_of(model)[field].annotation)}


def fields_of(declared: object) -> dict[str, FieldInfo]:
    """Returns the fields of a declared model."""
    model, _ = unwrapped(declared)
    fields: dict[str, FieldInfo] = model.model_fields
    return fields
