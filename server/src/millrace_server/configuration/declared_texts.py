"""The text values of a configuration that is not validated yet, each with the type that its model declares."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from millrace.setting_lines import SettingPath
from millrace.setting_problems import choices_of, fields_of, unwrapped


class DeclaredText(NamedTuple):
    """A setting whose value is text."""

    path: SettingPath
    text: str
    annotation: object
    metadata: list[Any]


def declared_texts(tables: Mapping[str, Any], model: type[BaseModel]) -> Iterator[DeclaredText]:
    """Yields the text values that a model declares. Anything else is skipped, and reported elsewhere."""
    return _texts_of_table((), tables, model)


def texts_in(value: object) -> list[str]:
    """Returns the text values in a list that is not validated yet; none of any other value."""
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []


def _texts_of_table(path: SettingPath, table: Mapping[str, Any], model: type[BaseModel]) -> Iterator[DeclaredText]:
    for key, declared in fields_of(model).items():
        if key in table:
            yield from _texts((*path, key), table[key], declared)


def _texts(path: SettingPath, value: object, declared: object) -> Iterator[DeclaredText]:
    annotation, metadata = unwrapped(declared)
    field, choices = choices_of(declared)
    if isinstance(value, str):
        yield DeclaredText(path, value, annotation, metadata)
    elif isinstance(value, list) and get_origin(annotation) is list:
        for index, entry in enumerate(value):
            yield from _texts((*path, index), entry, get_args(annotation)[0])
    elif not isinstance(value, dict):
        return
    elif choices:
        # Of an unknown type, which is reported elsewhere, only the settings that all types share are known.
        meant = [choice for tag, choice in choices.items() if tag == value.get(field)] or choices.values()
        found = [list(_texts_of_table(path, value, choice)) for choice in meant]
        yield from (text for text in found[0] if all(text in texts for texts in found))
    elif get_origin(annotation) is dict:
        for key, entry in value.items():
            yield from _texts((*path, key), entry, get_args(annotation)[1])
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _texts_of_table(path, value, annotation)
