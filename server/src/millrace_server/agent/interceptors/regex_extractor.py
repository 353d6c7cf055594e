"""The interceptor `regex_extractor`, which sets headers from the groups of a regular expression."""

from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.context import THIS_MACHINE, InterceptorContext
from millrace_server.agent.interceptors.interceptor import Interceptor
from millrace_server.agent.interceptors.regexes import Regex, RegexConfig, compile_pattern, map_texts
from millrace_server.agent.setting_types import TimeZoneName, time_zone_of

_TIMES_CACHED = 1_000
_SAMPLE_TIME = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
_DEFAULT_TIME = datetime(1900, 1, 1)  # noqa: DTZ001 - what `strptime` returns for a format without any part of a time


class RegexExtractorConfig(RegexConfig):
    """Sets headers from the groups of a regular expression.

    Only the first match counts. An event without a match is unchanged, and so is the header of a group that does not
    take part in the match.
    """

    type: Literal["regex_extractor"]
    """Sets headers from parts of an event."""

    names: list[str] = Field(default_factory=list, validate_default=True)
    """The headers for the groups, in the order of the pattern. Default: the groups' own names."""

    millis: dict[str, str] = Field(default_factory=dict)
    """Headers that are times, each with the format of its text as for Python's `strptime`. They are converted to
    milliseconds since 1970. If a text does not match its format, the header is not set."""

    time_zone: TimeZoneName = "UTC"
    """The time zone for formats without one, such as Europe/Berlin."""

    @field_validator("names")
    @classmethod
    def _check_count(cls, names: list[str], info: ValidationInfo) -> list[str]:
        if "pattern" not in info.data:
            return names
        pattern = compile_pattern(info.data["pattern"])
        if names and len(names) != pattern.groups:
            raise ValueError(f"must have one name for each group of the pattern: {pattern.groups}, not {len(names)}")
        if not names and not pattern.groupindex:
            raise ValueError("is empty, and the pattern has no group with a name; one of them must name the headers")
        return names

    @field_validator("millis")
    @classmethod
    def _check_formats(cls, millis: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if {"pattern", "names"} <= info.data.keys():
            headers = info.data["names"] or list(compile_pattern(info.data["pattern"]).groupindex)
            if unknown := [header for header in millis if header not in headers]:
                raise ValueError(
                    f"has {' and '.join(map(shown_value, unknown))}; the headers are "
                    f"{' and '.join(map(shown_value, headers))}"
                )
        for header, time_format in millis.items():
            if not _is_time_format(time_format):
                raise ValueError(
                    f"has {shown_value(time_format)} for {shown_value(header)}; it must be a time format, such as "
                    '"%Y-%m-%d %H:%M:%S"'
                )
        return millis

    def make(self, _context: InterceptorContext = THIS_MACHINE, /) -> Interceptor:
        return _RegexExtractor(self)


class _RegexExtractor:
    def __init__(self, config: RegexExtractorConfig) -> None:
        self._config = config
        self._regex = Regex(config.pattern)
        pattern = compile_pattern(config.pattern)
        # Group numbers begin at 1.
        headers = dict(enumerate(config.names, 1)) or {number: name for name, number in pattern.groupindex.items()}
        self._group_numbers = tuple(headers)
        zone = time_zone_of(config.time_zone)
        self._columns = [
            (header, _millis_parser(config.millis[header], zone) if header in config.millis else None)
            for header in headers.values()
        ]

    def intercept(self, table: EventTable) -> EventTable:
        nothing: tuple[str | None, ...] = (None,) * len(self._columns)
        rows = map_texts(self._config.texts(table), self._groups, nothing)
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


def _is_time_format(time_format: str) -> bool:
    try:
        time = datetime.strptime(_SAMPLE_TIME.strftime(time_format), time_format)  # noqa: DTZ007 - the result is discarded
    except ValueError:
        return False
    return time.replace(tzinfo=None) != _DEFAULT_TIME


def _millis_parser(time_format: str, zone: tzinfo) -> Callable[[str], str | None]:
    @lru_cache(_TIMES_CACHED)
    def read(text: str) -> str | None:
        try:
            time = datetime.strptime(text, time_format)  # noqa: DTZ007 - the zone is added below if the text has none
        except ValueError:
            return None
        time = time if time.tzinfo else time.replace(tzinfo=zone)
        return str(round(time.timestamp() * 1000))

    return read
