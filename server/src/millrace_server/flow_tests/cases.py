"""The file of cases of `millraced test`."""

import binascii
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, ValidationError, ValidationInfo, field_validator

from millrace.setting_file import SettingsError, load_settings_file
from millrace.setting_problems import Problem, describe_problems, shown_value
from millrace_server.agent.interceptors.regexes import RegexPattern
from millrace_server.agent.settings import AnySourceConfig
from millrace_server.configuration.settings import Settings
from millrace_server.flow_tests.trial import channels_of

DEFAULT_TIME = "2026-01-01T00:00:00Z"


def _check_base64(text: str) -> str:
    try:
        b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(f"is {shown_value(text)}; it must be base64") from None
    return text


Base64Text = Annotated[str, AfterValidator(_check_base64)]


def _check_only(name: str, value: str | None, others: Mapping[str, Any]) -> str | None:
    if value is not None and (given := [other for other, text in others.items() if text is not None]):
        raise ValueError(f"is given together with {given[0]}; a body is given by one of {', '.join([*others, name])}")
    return value


class _Model(BaseModel, frozen=True, extra="forbid", defer_build=True):
    """Base class of the models of the file."""


class _Body(_Model):
    """A body as text or as bytes."""

    body: str | None = None
    """The body, as text in UTF-8."""

    body_base64: Base64Text | None = None
    """The body in base64, instead of `body`."""

    @field_validator("body_base64")
    @classmethod
    def _check_one_body(cls, text: str | None, info: ValidationInfo) -> str | None:
        return _check_only("body_base64", text, {"body": info.data.get("body")})

    @property
    def content(self) -> bytes | None:
        if self.body_base64 is not None:
            return b64decode(self.body_base64)
        return None if self.body is None else self.body.encode()


class GivenEvent(_Body):
    """An event as the source delivers it."""

    headers: dict[str, str] = Field(default_factory=dict)
    """Its headers."""

    repeat: int = Field(1, ge=1, le=100_000)
    """How many times it comes."""

    after_seconds: float = Field(0.0, ge=0, le=1e9, allow_inf_nan=False)
    """How much time passes before it, or before the first one if it is repeated. If not 0, it begins a new batch."""


class ExpectedEvent(_Body):
    """An event that arrives in a channel. Anything that is not specified may have any value."""

    headers: dict[str, str] = Field(default_factory=dict)
    """Headers that it has."""

    exact_headers: bool = False
    """Whether it must have no other headers."""

    body_pattern: RegexPattern | None = None
    """A regular expression that must match a part of its body, instead of `body`."""

    @field_validator("body_pattern")
    @classmethod
    def _check_no_body(cls, pattern: str | None, info: ValidationInfo) -> str | None:
        given = {name: info.data.get(name) for name in ("body", "body_base64")}
        return _check_only("body_pattern", pattern, given)


class Expectation(_Model):
    """The expected result. Channels that are not named get no events."""

    channels: dict[str, list[ExpectedEvent]] = Field(default_factory=dict)
    """All events of each channel, in order."""

    counts: dict[str, Annotated[int, Field(ge=0, le=1_000_000_000)]] = Field(default_factory=dict)
    """The number of events in each channel."""

    dropped: int | None = Field(None, ge=0, le=1_000_000_000)
    """The number of events that reach no channel. None: any number."""


class Case(_Model):
    """A case: the events of a source, and the expected result."""

    name: str = Field(min_length=1)
    """The name of the case, for reports."""

    source: str
    """The source whose interceptors and selector are tested."""

    events: Annotated[list[GivenEvent], Field(min_length=1)]
    """The events, in order."""

    batch_events: int | None = Field(None, ge=1, le=1_000_000)
    """The number of events in a batch. None: the source's `batch_events_max`."""

    expect: Expectation
    """The expected result."""


def _check_time(text: str) -> str:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        raise ValueError(f'is {shown_value(text)}; it must be a date and time with a zone, such as "{DEFAULT_TIME}"')
    return text


class CaseFile(_Model):
    """The whole file."""

    time: Annotated[str, AfterValidator(_check_time)] = DEFAULT_TIME
    """The time at which each case begins; the clock is paused except for `after_seconds` and waits of `throttle`."""

    host: str = "test-host"
    """The name of the machine."""

    address: str = "192.0.2.1"
    """The address of the machine."""

    cases: Annotated[list[Case], Field(min_length=1)]
    """The cases."""

    @property
    def start_seconds(self) -> float:
        """The time in seconds since 1970."""
        return datetime.fromisoformat(self.time).astimezone(UTC).timestamp()


def load_cases(path: Path, settings: Settings | None) -> CaseFile:
    """Reads a file of cases for a configuration, or without one, only checks the file itself.

    Raises SettingsError with all problems.
    """
    return load_settings_file(path, partial(_check, source=str(path), settings=settings))


def _check(tables: Mapping[str, Any], source: str, settings: Settings | None) -> CaseFile:
    inconsistent = [] if settings is None else list(_problems(tables, settings))
    try:
        cases = CaseFile.model_validate(dict(tables), strict=True)
    except ValidationError as error:
        raise SettingsError(source, [*describe_problems(error, CaseFile), *inconsistent]) from None
    if inconsistent:
        raise SettingsError(source, inconsistent)
    return cases


def _problems(tables: Mapping[str, Any], settings: Settings) -> Iterator[Problem]:
    """Yields the problems that concern the configuration, in tables that are not yet validated."""
    cases = tables.get("cases")
    for index, case in enumerate(cases if isinstance(cases, list) else ()):
        if not isinstance(case, dict) or not isinstance(name := case.get("source"), str):
            continue
        if (source := settings.sources.get(name)) is None:
            allowed = _allowed("a source of the configuration", settings.sources)
            yield Problem(("cases", index, "source"), f"is {shown_value(name)}; {allowed}")
        elif isinstance(expect := case.get("expect"), dict):
            yield from _channel_problems(index, expect, source)


def _channel_problems(index: int, expect: Mapping[str, Any], source: AnySourceConfig) -> Iterator[Problem]:
    channels = channels_of(source)
    for kind in ("channels", "counts"):
        named = expect.get(kind)
        for name in named if isinstance(named, dict) else ():
            if name not in channels:
                sentence = f"is not a channel of the source; {_allowed('one', channels)}"
                yield Problem(("cases", index, "expect", kind, name), sentence)


def _allowed(what: str, names: Iterable[str]) -> str:
    return f"it must be {what}, of which there are: {', '.join(map(shown_value, names)) or 'none'}"
