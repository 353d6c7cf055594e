"""Names: Flume accepts any without a dot; Millrace's have lower-case letters, digits, `.`, `_` and `-`."""

import re
from collections.abc import Container, Iterable, Mapping

from millrace_server.channels.config import CHANNEL_NAME_PATTERN

_NAME = re.compile(CHANNEL_NAME_PATTERN)
_LENGTH_MAX = 64


def new_names(names: Iterable[str]) -> Mapping[str, str]:
    """Returns a unique valid name for each of Flume's names; valid names are not changed."""
    listed = list(dict.fromkeys(names))
    taken = {name for name in listed if _NAME.fullmatch(name)}
    chosen = {name: name for name in taken}
    for name in listed:
        if name not in chosen:
            chosen[name] = free_name(_cleaned(name), taken)
            taken.add(chosen[name])
    return chosen


def _cleaned(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-")[:_LENGTH_MAX] or "unnamed"


def free_name(name: str, taken: Container[str]) -> str:
    """Returns a valid name, with a number at its end if the name itself is in use."""
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        suffix = f"-{number}"
        candidate = name[: _LENGTH_MAX - len(suffix)] + suffix
    return candidate
