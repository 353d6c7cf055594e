"""References in the values of properties, such as `${env:PORT}`, to the environment of the Flume agent."""

import re
from collections.abc import Mapping
from typing import NamedTuple

_REFERENCE = re.compile(
    r"\$(?P<escaped>\$\{[^{}]*\})|\$\{(?:(?P<filter>[\w-]+)\[(?P<quote>['\"]?)(?P<key>[^\]'\"]*)(?P=quote)\]|(?P<name>[^{}]*))\}"
)
_DEPTH_MAX = 10
_LEFT, _RIGHT = "\ufdd0", "\ufdd1"
"""The marks around text that has to be filled in; no file contains these code points, see `parse_properties`."""
_MARKED = re.compile(f"{_LEFT}([^{_RIGHT}]*){_RIGHT}")
_PARTLY_MARKED = re.compile(f"[{_LEFT}{_RIGHT}]")


def fill_in(what: str) -> str:
    """Returns text that marks any setting in which it occurs as one to fill in by hand."""
    return f"{_LEFT}{what}{_RIGHT}"


def is_to_be_filled_in(text: str) -> bool:
    """Returns whether a part of a text has to be filled in by hand."""
    return bool(_PARTLY_MARKED.search(text))


def without_marks(text: str) -> str:
    """Returns a text without the marks, for people."""
    return _PARTLY_MARKED.sub("", text)


def missing_in(text: str) -> list[str]:
    """Returns the parts of a text that have to be filled in."""
    return _MARKED.findall(text)


class ReferenceResolver(NamedTuple):
    """Resolves the references in the values of properties."""

    environment: Mapping[str, str]
    """The environment variables of this process."""
    definitions: Mapping[str, str]
    """System properties of the Flume agent's Java process, from `--define`."""
    properties: Mapping[str, str]
    """All properties of the files, since a value may refer to another property."""
    environment_filters: set[str]
    """The names of configuration filters that read the environment."""
    used: set[str]
    """The properties to which others have referred so far."""

    def resolve(self, value: str, depth: int = 0) -> str:
        """Returns a value in which each reference is replaced by the value that it refers to, or marked."""

        def replacement(match: re.Match[str]) -> str:
            if match["escaped"]:
                return match["escaped"]
            found = self._filtered(match) if match["filter"] else self._found(match["name"])
            if found is None:
                return fill_in(match[0])
            # The recursion of a value that refers to itself ends here too.
            return self.resolve(found, depth + 1) if depth < _DEPTH_MAX else fill_in(match[0])

        return _REFERENCE.sub(replacement, value)

    def _filtered(self, match: re.Match[str]) -> str | None:
        return self.environment.get(match["key"]) if match["filter"] in self.environment_filters else None

    def _found(self, name: str) -> str | None:
        name, has_default, default = name.partition(":-")
        kind, has_kind, rest = name.partition(":")
        if has_kind:
            found = {"env": self.environment, "sys": self.definitions}.get(kind, {}).get(rest)
        elif name in self.properties:
            self.used.add(name)
            found = self.properties[name]
        else:
            # Older agents use no prefix for the environment.
            found = self.environment.get(name)
        return default if found is None and has_default else found
