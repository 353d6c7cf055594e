"""Paths of files: templates with placeholders for headers and times, such as `/data/{header:host}/{time:%Y-%m-%d}`."""

import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

from millrace.setting_problems import shown_value
from millrace_server.agent.sinks.files.chunks import EventChunk, Rows

_DAY_SECONDS = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def read_time(text: str) -> int | None:
    """Parses a time in a header; returns whole seconds since 1970, or None if it is not a valid time.

    The text is milliseconds since 1970, or an ISO 8601 date and time, in UTC if it has no offset.
    """
    try:
        seconds = int(text) // 1_000 if text.isdecimal() else _seconds_of(datetime.fromisoformat(text))
    except ValueError:
        return None
    return seconds if _SECONDS_MIN <= seconds <= _SECONDS_MAX else None


def _seconds_of(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(seconds=1)


# One day less than Python's calendar at both ends, which leaves a margin for time zones.
_SECONDS_MIN = _seconds_of(datetime.min.replace(tzinfo=UTC)) + _DAY_SECONDS
_SECONDS_MAX = _seconds_of(datetime.max.replace(tzinfo=UTC)) - _DAY_SECONDS


class TimeRule(NamedTuple):
    """How a time is formatted in a path."""

    zone: tzinfo
    round_seconds: int
    """Times are rounded down to a multiple of this, counted from midnight."""

    def format(self, seconds: int, strftime_format: str) -> str:
        """Formats a time, given in whole seconds since 1970."""
        moment = (_EPOCH + timedelta(seconds=seconds)).astimezone(self.zone)
        # Rounds the local time, so that the result is a round time of the local clock in every time zone.
        passed = moment.hour * 3_600 + moment.minute * 60 + moment.second
        rest = passed % self.round_seconds
        return (moment.replace(tzinfo=None) - timedelta(seconds=rest)).strftime(strftime_format)


VALUE_BYTES_MAX = 100
"""A header's value in a path is cut to this many bytes of UTF-8."""

_COMPONENT_BYTES_MAX = 255
"""The longest name in a path that file systems accept."""

_TOKEN = re.compile(r"\{\{|\}\}|\{(?P<kind>header|time):(?P<what>[^{}]+)\}|[{}]")
_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]+)://")
_NO_URL = re.compile(r"(?!(?-i:[a-z][a-z0-9+.-]+)://)[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""Texts such as `HDFS://host/x` and `file:/x`, which would be mistaken for local directories."""
_TIME_LETTERS = "YymdjHIMSpGVuwUWaAbB%"
_TIME_DIRECTIVE = re.compile(r"%(.?)", re.DOTALL)


class HeaderField(NamedTuple):
    """A placeholder for a header's value."""

    key: str


class TimeField(NamedTuple):
    """A placeholder for a time."""

    strftime_format: str


Part: TypeAlias = str | HeaderField | TimeField


class PathTemplate(NamedTuple):
    """A path with placeholders."""

    scheme: str
    """The URL's scheme, such as `s3`; empty for a path on this machine."""
    parts: Sequence[Part]
    """Literals and placeholders in order; the scheme is part of the first literal."""

    @classmethod
    def parse(cls, text: str) -> "PathTemplate":
        """Parses a template, in which `{{` and `}}` stand for braces. Raises ValueError if it is invalid."""
        if _NO_URL.match(text):
            sentence = (
                "a URL begins with a scheme in lower case and two slashes, such as hdfs://host/path or file:///path"
            )
            raise ValueError(f"is {shown_value(text)}; {sentence}")
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
        """The common directory of all paths: the part before the first placeholder."""
        first = self.parts[0]
        if not isinstance(first, str):
            return "."
        directory = first if len(self.parts) == 1 else first[: first.rfind("/") + 1]
        return directory.rstrip("/") or ("/" if directory else ".")

    @property
    def header_keys(self) -> list[str]:
        """The headers with placeholders, each once."""
        return list(dict.fromkeys(part.key for part in self.parts if isinstance(part, HeaderField)))

    @property
    def has_time(self) -> bool:
        return any(isinstance(part, TimeField) for part in self.parts)

    def fill(self, headers: dict[str, str | None], seconds: int | None, rule: TimeRule, missing: str) -> str:
        """Returns the path for events with these headers and this time.

        `headers` has an entry for each of `header_keys`; `missing` replaces a missing header or an unknown time.
        """

        def show(part: Part) -> str:
            match part:
                case HeaderField(key):
                    return safe_value(headers[key] or "") or missing
                case TimeField(strftime_format):
                    return (None if seconds is None else rule.format(seconds, strftime_format)) or missing
                case literal:
                    return literal

        return "".join(map(show, self.parts))


def safe_value(value: str) -> str:
    """Returns a header's value as a part of a file name: without slashes, not hidden, and not too long."""
    safe = "".join(letter if letter.isprintable() and letter not in "/\\" else "_" for letter in value)
    if safe.startswith((".", "_")):
        # Readers such as Spark ignore names with these prefixes, and "." and ".." are not valid names.
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
                parts.append(HeaderField(token["what"]))
            case "time":
                parts.append(_time_field(text, token["what"]))
            case _ if token[0] in {"{{", "}}"}:
                add(token[0][0])
            case _:
                raise ValueError(
                    f"is {shown_value(text)}; a brace must begin {{header:NAME}} or {{time:FORMAT}}, or be doubled"
                )
    add(path[end:])
    if not parts or "\0" in text:
        raise ValueError(f"is {shown_value(text)}; it must be the path of a directory")
    return parts


def _time_field(text: str, strftime_format: str) -> TimeField:
    for letter in _TIME_DIRECTIVE.findall(strftime_format):
        if not letter or letter not in _TIME_LETTERS:
            allowed = " ".join(f"%{known}" for known in _TIME_LETTERS)
            raise ValueError(f"is {shown_value(text)}; %{letter} is not supported in a time, only {allowed}")
    return TimeField(strftime_format)


def _check_components(text: str, parts: Sequence[Part]) -> None:
    """Raises ValueError if a name in a path could be longer than file systems accept."""
    longest = "".join(part if isinstance(part, str) else "v" * VALUE_BYTES_MAX for part in parts)
    for component in longest.split("/"):
        if component == "..":
            raise ValueError(f'is {shown_value(text)}; ".." must not be a part of it')
        if len(component.encode()) > _COMPONENT_BYTES_MAX:
            raise ValueError(
                f"is {shown_value(text)}; a name in it could have {len(component.encode())} bytes, since a placeholder "
                f"takes up to {VALUE_BYTES_MAX}, and at most {_COMPONENT_BYTES_MAX} are allowed"
            )


CACHED_PATHS_MAX = 10_000
"""The number of paths that are cached, by headers and time."""


class PathRules(NamedTuple):
    """How the path of an event is built."""

    template: PathTemplate
    times: TimeRule
    time_header: str
    """The header with an event's time."""
    missing: str
    """Replaces a header or a time that an event does not have."""
    is_clock_used: bool
    """Whether the current time is used for an event without a time."""


class Partitioner:
    """Partitions events by the directory of their file."""

    def __init__(self, rules: PathRules, clock: Callable[[], float] = time.time) -> None:
        self._rules = rules
        self._keys = rules.template.header_keys
        self._clock = clock
        self._path_of = lru_cache(CACHED_PATHS_MAX)(self._make_path)

    def split(self, chunk: EventChunk) -> dict[str, Rows]:
        constants = [value for key in self._keys if not isinstance(value := chunk.headers.get(key), list)]
        seconds = self._seconds(chunk)
        if not isinstance(seconds, list) and len(constants) == len(self._keys):
            return {self._path_of(seconds, *constants): range(chunk.count)}
        columns = [chunk.header_values(key) for key in self._keys]
        times = seconds if isinstance(seconds, list) else [seconds] * chunk.count
        # Groups by headers and time first: many events have the same, and creating a path is slower than comparing.
        rows_by_values: dict[tuple[Any, ...], list[int]] = {}
        for row, values in enumerate(zip(times, *columns, strict=True)):
            rows_by_values.setdefault(values, []).append(row)
        rows_by_path: dict[str, list[int]] = {}
        for (moment, *others), rows in rows_by_values.items():
            rows_by_path.setdefault(self._path_of(moment, *others), []).extend(rows)
        if len(rows_by_path) == 1:
            return dict.fromkeys(rows_by_path, range(chunk.count))
        if len(rows_by_path) < len(rows_by_values):
            for rows in rows_by_path.values():
                rows.sort()
        return dict(rows_by_path)

    def _seconds(self, chunk: EventChunk) -> "int | list[int | None] | None":
        """Returns the time of all events if it is the same, otherwise the time of each."""
        if not self._rules.template.has_time:
            return None
        now = int(self._clock()) if self._rules.is_clock_used else None
        texts = chunk.headers.get(self._rules.time_header)
        if isinstance(texts, list):
            return [now if text is None or (seconds := read_time(text)) is None else seconds for text in texts]
        if texts is None or (seconds := read_time(texts)) is None:
            return now
        return seconds

    def _make_path(self, seconds: int | None, *values: str | None) -> str:
        rules = self._rules
        headers = dict(zip(self._keys, values, strict=True))
        return rules.template.fill(headers, seconds, rules.times, rules.missing)
