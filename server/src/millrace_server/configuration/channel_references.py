"""Checks that each setting that names a channel names one that it may refer to."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from millrace.setting_problems import Problem, shown_path, shown_value
from millrace_server.agent.setting_types import ChannelReference, named_tables, table_at
from millrace_server.configuration.declared_texts import DeclaredText, declared_texts, texts_in

_SHOWN_NAMES_MAX = 10
_SOURCE_DEPTH = 2
"""The depth of the table of a source: sources.NAME."""


def unknown_channels(tables: Mapping[str, Any], model: type[BaseModel]) -> list[Problem]:
    """Returns a problem for each reference to a channel that is unknown or not allowed there.

    Other errors of the tables do not prevent the check. The syntax of names is checked elsewhere.
    """
    if not isinstance(tables.get("channels", {}), dict):
        return []
    known = texts_in(list(table_at(tables, "channels")))
    # Channels refer to none, and there may be thousands of them.
    referring = {name: table for name, table in tables.items() if name != "channels"}
    return [
        problem
        for text in declared_texts(referring, model)
        for reference in text.metadata
        if isinstance(reference, ChannelReference)
        for problem in _problems_of_reference(text, reference, known, tables)
    ]


def _problems_of_reference(
    place: DeclaredText, reference: ChannelReference, known: list[str], tables: Mapping[str, Any]
) -> Iterator[Problem]:
    if reference.is_own:
        source = place.path[:_SOURCE_DEPTH]
        allowed = list(dict.fromkeys(texts_in(named_tables(tables, "sources")[str(source[-1])].get("channels"))))
        what = f"one of {shown_path((*source, 'channels'))}"
    else:
        allowed, what = known, "a channel of the configuration"
    name = place.text
    if name in allowed:
        return
    close = difflib.get_close_matches(name, allowed, n=1)
    if close:
        yield Problem(place.path, f"is {shown_value(name)}; it must be {what}; did you mean {shown_value(close[0])}?")
        return
    shown = ", ".join(map(shown_value, allowed[:_SHOWN_NAMES_MAX])) or "none"
    more = f" and {len(allowed) - _SHOWN_NAMES_MAX} more" if len(allowed) > _SHOWN_NAMES_MAX else ""
    yield Problem(place.path, f"is {shown_value(name)}; it must be {what}, of which there are: {shown}{more}")
