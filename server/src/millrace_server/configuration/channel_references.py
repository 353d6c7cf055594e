"""Whether a configuration's names of channels are those of channels that it has."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel

from millrace.setting_problems import choices_of, fields_of, shown_path, shown_value, unwrapped
from millrace_server.agent.setting_types import ChannelReference
from millrace_server.agent.sources.source import SourceConfig

_SHOWN_NAMES_MAX = 10


_Path = tuple[int | str, ...]


class _Names(NamedTuple):
    """The channels that may be named."""

    known: list[str]
    """Those of the configuration."""
    own: list[str]
    """What the source that is looked at has as its channels."""
    source: _Path
    """Where that is."""


def unknown_channels(tables: Mapping[str, Any], model: type[BaseModel]) -> list[str]:
    """A sentence for each name that is none of a channel that may stand there.

    What else may be wrong with the configuration hides none of them; whether a name is one at all is not looked at.

    Args:
        tables: The configuration, as TOML has it.
        model: What declares it.
    """
    channels = tables.get("channels", {})
    if not isinstance(channels, dict):
        return []
    return list(_problems((), tables, model, _Names(_texts(list(channels)), [], ())))


def _problems(path: _Path, value: object, declared: object, names: _Names) -> Iterator[str]:
    annotation, metadata = unwrapped(declared)
    field, choices = choices_of(declared)
    if isinstance(value, str):
        references = [said for said in metadata if isinstance(said, ChannelReference)]
        yield from (problem for reference in references for problem in _problems_of_name(path, value, reference, names))
    elif isinstance(value, list) and get_origin(annotation) is list:
        for index, entry in enumerate(value):
            yield from _problems((*path, index), entry, get_args(annotation)[0], names)
    elif not isinstance(value, dict):
        return
    elif choices:
        # Where nobody knows which type is meant, that is told elsewhere; here counts what is wrong with any.
        meant = [choice for tag, choice in choices.items() if tag == value.get(field)] or choices.values()
        found = [list(_problems_of_table(path, value, choice, names)) for choice in meant]
        yield from (problem for problem in found[0] if all(problem in problems for problems in found))
    elif get_origin(annotation) is dict:
        for key, entry in value.items():
            yield from _problems((*path, key), entry, get_args(annotation)[1], names)
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from _problems_of_table(path, value, annotation, names)


def _problems_of_table(path: _Path, table: dict[str, Any], model: type[BaseModel], names: _Names) -> Iterator[str]:
    if issubclass(model, SourceConfig):
        own = table.get("channels")
        names = _Names(names.known, list(dict.fromkeys(_texts(own))), path)
    for key, declared in fields_of(model).items():
        if key in table:
            yield from _problems((*path, key), table[key], declared, names)


def _problems_of_name(path: _Path, name: str, reference: ChannelReference, names: _Names) -> Iterator[str]:
    allowed = names.own if reference.is_own else names.known
    if name in allowed:
        return
    what = f"one of {shown_path((*names.source, 'channels'))}" if reference.is_own else "a channel of the configuration"
    close = difflib.get_close_matches(name, allowed, n=1)
    if close:
        yield f"{shown_path(path)}: is {shown_value(name)}; it must be {what}; did you mean {shown_value(close[0])}?"
        return
    shown = ", ".join(map(shown_value, allowed[:_SHOWN_NAMES_MAX])) or "none"
    more = f" and {len(allowed) - _SHOWN_NAMES_MAX} more" if len(allowed) > _SHOWN_NAMES_MAX else ""
    yield f"{shown_path(path)}: is {shown_value(name)}; it must be {what}, of which there are: {shown}{more}"


def _texts(value: object) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []
