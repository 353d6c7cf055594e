"""What is wrong with a configuration, in sentences.

A sentence has the setting's path, what it was and what is allowed, in the words of TOML:
`target.compression: is "brotli"; it must be "zstd" or "snappy"`.
"""

import difflib
import json
import re
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

_SHOWN_LENGTH_MAX = 80
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}

Place = tuple[int | str, ...]


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """A sentence for each error that a model found."""
    return [_sentence(details, model) for details in error.errors()]


def shown_value(value: object) -> str:
    """A value as TOML writes it, on one line and not too long."""
    match value:
        case bool():
            return str(value).lower()
        case str() if len(value) > _SHOWN_LENGTH_MAX:
            return f"{json.dumps(value[:_SHOWN_LENGTH_MAX])}... ({len(value)} characters)"
        case dict() | list():
            return "a table" if isinstance(value, dict) else "an array"
        case _:
            return json.dumps(value, default=str)


def shown_path(place: Place) -> str:
    """A path as TOML writes it, with the place in an array in brackets."""
    parts = (
        f"[{part}]" if isinstance(part, int) else f".{part if _BARE_KEY.fullmatch(part) else shown_value(part)}"
        for part in place
    )
    return "".join(parts).removeprefix(".")


def _sentence(details: ErrorDetails, model: type[BaseModel]) -> str:
    place, declared = _declared_at(model, details["loc"])
    path = shown_path(place)
    match details["type"]:
        case "extra_forbidden":
            return f"{path}: is not known; {_hint(str(place[-1]), declared)}"
        case "missing":
            return f"{path}: is missing; it must be {_allowed(declared)}"
        case "value_error" | "union_tag_invalid" | "union_tag_not_found":
            return f"{path}: {_told(details)}" if path else _told(details)
        case "string_pattern_mismatch":
            return f"{path}: is {shown_value(details['input'])}; it must match {details['ctx']['pattern']}"
        case "too_short" | "too_long" | "string_too_short" | "string_too_long":
            bounds = details["ctx"]
            bound = f"at least {bounds['min_length']}" if "min_length" in bounds else f"at most {bounds['max_length']}"
            what = "characters" if details["type"].startswith("string") else "entries"
            return f"{path}: is {shown_value(details['input'])}; it must have {bound} {what}"
        case _:
            return f"{path}: is {shown_value(details['input'])}; it must be {_allowed(declared)}"


def _told(details: ErrorDetails) -> str:
    context = details["ctx"]
    if details["type"] == "value_error":
        return str(context["error"])
    allowed = "text, json, regex, access_log or syslog"
    was = f"type is {shown_value(context['tag'])}" if "tag" in context else "type is missing"
    return f"{was}; it must be {allowed}"


def _hint(key: str, declared: Any) -> str:
    known = sorted(_fields(declared))
    close = difflib.get_close_matches(key, known, n=1)
    return f"did you mean {close[0]}?" if close else f"allowed are {', '.join(known)}"


def _declared_at(model: Any, location: Place) -> tuple[Place, Any]:
    """Where an error lies in TOML, which knows nothing of a union's choices, and what is declared there.

    For a key that is not known it is the table around it.
    """
    place: Place = ()
    declared: Any = model
    for part in location:
        fields = _fields(declared)
        choices = _choices(declared)
        if choices and part in choices:
            declared = choices[str(part)]
            continue
        place = (*place, part)
        annotation = _bare(declared)
        if part in fields:
            declared = fields[str(part)]
        elif get_origin(annotation) in (dict, list):
            declared = get_args(annotation)[-1]
    return place, declared


def _fields(declared: Any) -> Mapping[str, FieldInfo]:
    bare = _bare(declared)
    return bare.model_fields if isinstance(bare, type) and issubclass(bare, BaseModel) else {}


def _choices(declared: Any) -> dict[str, type[BaseModel]]:
    """The models of a union by the word that tells them apart."""
    bare = _bare(declared)
    if get_origin(bare) not in (Union, UnionType):
        return {}
    models = [kind for kind in get_args(bare) if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return {get_args(model.model_fields["type"].annotation)[0]: model for model in models}


def _bare(declared: Any) -> Any:
    """The type that is declared, without None, which TOML does not have, and without what else is said of it."""
    if isinstance(declared, FieldInfo):
        declared = declared.annotation
    if get_origin(declared) is Annotated:
        declared = get_args(declared)[0]
    if get_origin(declared) in (Union, UnionType):
        kinds = [kind for kind in get_args(declared) if kind is not NoneType]
        declared = kinds[0] if len(kinds) == 1 else declared
    return declared


def _allowed(declared: Any) -> str:
    bare = _bare(declared)
    if get_origin(bare) is Literal:
        return " or ".join(map(shown_value, get_args(bare)))
    if get_origin(bare) is list:
        return f"an array, each {_allowed(get_args(bare)[0])}"
    kind = _KINDS.get(bare, "a table") if isinstance(bare, type) else "a table"
    said = declared.metadata if isinstance(declared, FieldInfo) else []
    lowest = [
        f"above {bound.gt}" if isinstance(bound, Gt) else f"from {bound.ge}"
        for bound in said
        if isinstance(bound, Gt | Ge)
    ]
    highest = [f"to {bound.le}" for bound in said if isinstance(bound, Le)]
    return " ".join([kind, *lowest, *highest])
