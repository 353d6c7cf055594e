"""The interceptor `regex_extractor`: parts of an event as headers."""

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import Interceptor
from millrace_server.agent.interceptors.regexes import Regex, RegexConfig, compiled, for_each

_TIMES_REMEMBERED = 1_000
_ANY_TIME = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
_NO_TIME = datetime(1900, 1, 1)  # noqa: DTZ001 - what `strptime` makes of a text that tells no part of a time


class RegexExtractorConfig(RegexConfig):
    """Makes headers of what the groups of a regular expression match.

    Its first place counts. An event in which it is not found, or a group that takes no part in it, changes nothing.
    """

    type: Literal["regex_extractor"]
    """Parts of an event as headers."""

    names: list[str] = Field(default_factory=list, validate_default=True)
    """The headers of the groups, in the order of the pattern. None: the groups' own names."""

    millis: dict[str, str] = Field(default_factory=dict)
    """Headers that are times: for each the format, as Python's `strptime` has it, in which the event tells it. They
    become milliseconds since 1970. A time that cannot be read makes no header."""

    time_zone: str = "UTC"
    """The zone of times whose format tells none, such as Europe/Berlin."""

    @field_validator("names")
    @classmethod
    def _check_count(cls, names: list[str], info: ValidationInfo) -> list[str]:
        if "pattern" not in info.data:
            return names
        pattern = compiled(info.data["pattern"])
        if names and len(names) != pattern.groups:
            raise ValueError(f"has {len(names)} of the names that the groups of the pattern need, {pattern.groups}")
        if not names and not pattern.groupindex:
            raise ValueError("is empty, and the pattern has no group with a name; one of them must say what headers")
        return names

    @field_validator("millis")
    @classmethod
    def _check_formats(cls, millis: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if {"pattern", "names"} <= info.data.keys():
            headers = info.data["names"] or list(compiled(info.data["pattern"]).groupindex)
            if unknown := [header for header in millis if header not in headers]:
                raise ValueError(
                    f"names {' and '.join(map(shown_value, unknown))}; the headers are "
                    f"{' and '.join(map(shown_value, headers))}"
                )
        for header, time_format in millis.items():
            if not _tells_time(time_format):
                raise ValueError(
                    f"has {shown_value(time_format)} for {shown_value(header)}; it must be a format of a time, such as "
                    '"%Y-%m-%d %H:%M:%S"'
                )
        return millis

    @field_validator("time_zone")
    @classmethod
    def _check_zone(cls, time_zone: str) -> str:
        try:
            _zone(time_zone)
        except (KeyError, OSError, ValueError):
            raise ValueError(
                f"is {shown_value(time_zone)}; it must be a time zone that the machine knows, such as Europe/Berlin"
            ) from None
        return time_zone

    def make(self) -> Interceptor:
        return _RegexExtractor(self)


class _RegexExtractor:
    def __init__(self, config: RegexExtractorConfig) -> None:
        self._config = config
        self._regex = Regex(config.pattern)
        pattern = compiled(config.pattern)
        # By number, beginning at 1.
        headers = dict(enumerate(config.names, 1)) or {number: name for name, number in pattern.groupindex.items()}
        self._group_numbers = tuple(headers)
        zone = _zone(config.time_zone)
        self._columns = [
            (header, _millis_reader(config.millis[header], zone) if header in config.millis else None)
            for header in headers.values()
        ]

    def intercept(self, table: EventTable) -> EventTable:
        nothing: tuple[str | None, ...] = (None,) * len(self._columns)
        rows = for_each(self._config.texts(table), self._groups, nothing)
        for (header, read), column in zip(self._columns, zip(*rows, strict=True), strict=False):
            values = [None if text is None else read(text) for text in column] if read else list(column)
            if None in values:
                former = table.values(header)
                values = [old if new is None else new for old, new in zip(former, values, strict=True)]
            table.headers[header] = values
        return table

    def _groups(self, text: str) -> tuple[str | None, ...]:
        match = self._regex.search(text)
        if match is None:
            return (None,) * len(self._columns)
        groups: tuple[str | None, ...] = match.group(0, *self._group_numbers)
        return groups[1:]


def _zone(name: str) -> tzinfo:
    # Machines without a database of time zones know this one all the same.
    return UTC if name == "UTC" else ZoneInfo(name)


def _tells_time(time_format: str) -> bool:
    try:
        told = datetime.strptime(_ANY_TIME.strftime(time_format), time_format)  # noqa: DTZ007 - it is thrown away
    except ValueError:
        return False
    return told.replace(tzinfo=None) != _NO_TIME


def _millis_reader(time_format: str, zone: tzinfo) -> Callable[[str], str | None]:
    @lru_cache(_TIMES_REMEMBERED)
    def read(text: str) -> str | None:
        try:
            told = datetime.strptime(text, time_format)  # noqa: DTZ007 - the zone comes next, where the text has none
        except ValueError:
            return None
        told = told if told.tzinfo else told.replace(tzinfo=zone)
        return str(round(told.timestamp() * 1000))

    return read
