"""Paths with places in them that each event fills: `/data/{header:host}/dt={time:%Y-%m-%d}`."""

import re
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from millrace.setting_problems import shown_value
from millrace_server.agent.sinks.files.event_times import TimeRule

VALUE_BYTES_MAX = 100
"""A header's value in a path is cut to so many bytes of UTF-8."""

_COMPONENT_BYTES_MAX = 255
"""What file systems take as one name of a path."""

_TOKEN = re.compile(r"\{\{|\}\}|\{(?P<kind>header|time):(?P<what>[^{}]+)\}|[{}]")
_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+)://")
_TIME_LETTERS = "YymdjHIMSpGVuwUWaAbB%"
_TIME_DIRECTIVE = re.compile(r"%(.?)", re.DOTALL)


class HeaderPlace(NamedTuple):
    """Where a header's value stands."""

    key: str


class TimePlace(NamedTuple):
    """Where a time stands."""

    strftime_format: str


Part: TypeAlias = str | HeaderPlace | TimePlace


class PathTemplate(NamedTuple):
    """A path with places in it."""

    scheme: str
    """Of an address, as `s3`; empty for a path of this machine."""
    parts: Sequence[Part]
    """What stands in it, one behind the other; the scheme is a part of the first."""

    @classmethod
    def parse(cls, text: str) -> "PathTemplate":
        """Reads a template; `{{` and `}}` stand for braces.

        Raises:
            ValueError: It is none; a sentence for the configuration's problems.
        """
        match = _SCHEME.match(text)
        scheme = match["scheme"] if match and match["scheme"] != "file" else ""
        parts = list(_parts(text, text.removeprefix("file://")))
        _check_components(text, parts)
        template = cls(scheme, parts)
        if scheme and len(template.root) <= len(f"{scheme}://"):
            raise ValueError(f"is {shown_value(text)}; a directory's name must come before the first brace")
        return template

    @property
    def root(self) -> str:
        """The directory that all paths have in common: what stands before the first place."""
        first = self.parts[0]
        if not isinstance(first, str):
            return "."
        directory = first if len(self.parts) == 1 else first[: first.rfind("/") + 1]
        return directory.rstrip("/") or ("/" if directory else ".")

    @property
    def header_keys(self) -> list[str]:
        """The headers that stand in it, each once."""
        return list(dict.fromkeys(part.key for part in self.parts if isinstance(part, HeaderPlace)))

    @property
    def has_time(self) -> bool:
        """Whether a time stands in it."""
        return any(isinstance(part, TimePlace) for part in self.parts)

    def fill(self, headers: dict[str, str | None], seconds: int | None, rule: TimeRule, missing: str) -> str:
        """The path for events that have these headers and this time.

        Args:
            headers: The value of each of `header_keys`.
            seconds: The time in seconds since 1970.
            rule: How it is written.
            missing: What stands for a header or a time that there is not.
        """

        def show(part: Part) -> str:
            match part:
                case HeaderPlace(key):
                    return safe_value(headers[key] or "") or missing
                case TimePlace(strftime_format):
                    return (None if seconds is None else rule.show(seconds, strftime_format)) or missing
                case literal:
                    return literal

        return "".join(map(show, self.parts))


def safe_value(value: str) -> str:
    """A header's value as a part of a name: within one directory, visible, and not too long."""
    safe = "".join(letter if letter.isprintable() and letter not in "/\\" else "_" for letter in value)
    if safe.startswith((".", "_")):
        # Readers such as Spark pass over what begins so; and "." and ".." are no names at all.
        safe = "-" + safe[1:]
    return safe.encode(errors="replace")[:VALUE_BYTES_MAX].decode(errors="ignore")


def _parts(text: str, path: str) -> "list[Part]":
    parts: list[Part] = []
    end = 0

    def add(literal: str) -> None:
        if parts and isinstance(last := parts[-1], str):
            parts[-1] = last + literal
        elif literal:
            parts.append(literal)

    for token in _TOKEN.finditer(path):
        add(path[end : token.start()])
        end = token.end()
        match token["kind"]:
            case "header":
                parts.append(HeaderPlace(token["what"]))
            case "time":
                parts.append(_time_place(text, token["what"]))
            case _ if token[0] in {"{{", "}}"}:
                add(token[0][0])
            case _:
                raise ValueError(
                    f"is {shown_value(text)}; a brace must begin {{header:NAME}} or {{time:FORMAT}}, or come twice"
                )
    add(path[end:])
    if not parts or "\0" in text:
        raise ValueError(f"is {shown_value(text)}; it must be a directory's path")
    return parts


def _time_place(text: str, strftime_format: str) -> TimePlace:
    for letter in _TIME_DIRECTIVE.findall(strftime_format):
        if not letter or letter not in _TIME_LETTERS:
            allowed = " ".join(f"%{known}" for known in _TIME_LETTERS)
            raise ValueError(f"is {shown_value(text)}; %{letter} is not a part of a time, those are {allowed}")
    return TimePlace(strftime_format)


def _check_components(text: str, parts: Sequence[Part]) -> None:
    """Makes sure that no event can make a path of which one name is longer than a file system takes."""
    longest = "".join(part if isinstance(part, str) else "v" * VALUE_BYTES_MAX for part in parts)
    for component in longest.split("/"):
        if component == "..":
            raise ValueError(f'is {shown_value(text)}; ".." must not be a part of it')
        if len(component.encode()) > _COMPONENT_BYTES_MAX:
            raise ValueError(
                f"is {shown_value(text)}; a name in it could have {len(component.encode())} bytes, since a place takes "
                f"up to {VALUE_BYTES_MAX}, and at most {_COMPONENT_BYTES_MAX} are allowed"
            )
