"""Interceptors that set or remove headers: `timestamp`, `host`, `static`, `uuid` and `remove_header`."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.context import THIS_MACHINE, InterceptorContext
from millrace_server.agent.interceptors.interceptor import (
    EventsRefusedError,
    Interceptor,
    InterceptorConfig,
    QuickInterceptor,
)
from millrace_server.agent.interceptors.regexes import MATCH_TIMED_OUT, Regex, RegexPattern


class TimestampConfig(InterceptorConfig):
    """Sets a header to the time of arrival; all events of a batch have the same time."""

    type: Literal["timestamp"]
    """Sets the time of arrival."""

    header: str = "timestamp"
    """The header to set."""

    format: Literal["millis", "iso"] = "millis"
    """`millis`: milliseconds since 1970. `iso`: the date and time in UTC, such as 2026-01-31T23:59:59.999+00:00."""

    preserve_existing: bool = False
    """Whether an event that already has the header keeps its value."""

    def make(self, context: InterceptorContext = THIS_MACHINE, /) -> Interceptor:
        return Timestamp(self, context.clock)


class Timestamp(QuickInterceptor):
    """Sets the time of arrival."""

    def __init__(self, config: TimestampConfig, clock: Callable[[], float]) -> None:
        self._config = config
        self._clock = clock

    def intercept(self, table: EventTable) -> EventTable:
        now = self._clock()
        if self._config.format == "millis":
            value = str(int(now * 1000))
        else:
            value = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        table.give(self._config.header, value, preserve_existing=self._config.preserve_existing)
        return table


class HostConfig(InterceptorConfig):
    """Sets a header to the name or the address of this machine."""

    type: Literal["host"]
    """Sets the machine's name or address."""

    header: str = "host"
    """The header to set."""

    use: Literal["name", "ip"] = "name"
    """`name`: the machine's name. `ip`: the address from which it connects to others."""

    preserve_existing: bool = False
    """Whether an event that already has the header keeps its value."""

    def make(self, context: InterceptorContext = THIS_MACHINE, /) -> Interceptor:
        host = context.host_name() if self.use == "name" else context.address()
        return _Static({self.header: host}, preserve_existing=self.preserve_existing)


class StaticConfig(InterceptorConfig):
    """Sets the same headers on all events: one as `key` and `value`, or any number as `headers`."""

    type: Literal["static"]
    """Sets the same headers on all events."""

    key: str | None = None
    """The name of one header."""

    value: str | None = Field(None, validate_default=True)
    """The value of that header."""

    headers: dict[str, str] = Field(default_factory=dict, validate_default=True)
    """Headers and their values."""

    preserve_existing: bool = True
    """Whether an event that already has a header keeps its value."""

    @field_validator("value")
    @classmethod
    def _check_has_key(cls, value: str | None, info: ValidationInfo) -> str | None:
        key = info.data.get("key", value)
        if (key is None) != (value is None):
            given = f"key is {shown_value(key)}" if value is None else f"is {shown_value(value)} without a key"
            raise ValueError(f"{given}; key and value must be given together")
        return value

    @field_validator("headers")
    @classmethod
    def _check_any(cls, headers: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if not headers and info.data.get("key", "") is None:
            raise ValueError("has no entry, and there is no key; the interceptor needs a header to set")
        return headers

    def make(self, _context: InterceptorContext = THIS_MACHINE, /) -> Interceptor:
        own = {self.key: self.value} if self.key is not None and self.value is not None else {}
        return _Static({**self.headers, **own}, preserve_existing=self.preserve_existing)


class _Static(QuickInterceptor):
    def __init__(self, headers: Mapping[str, str], *, preserve_existing: bool) -> None:
        self._headers = headers
        self._preserves = preserve_existing

    def intercept(self, table: EventTable) -> EventTable:
        for key, value in self._headers.items():
            table.give(key, value, preserve_existing=self._preserves)
        return table


_UUID_BYTES = 16
_VARIANTS = "89ab"


class UuidConfig(InterceptorConfig):
    """Sets a header to a random identifier (UUID, version 4).

    An event that is read again after a crash gets a new identifier; a channel that had already stored the event keeps
    the old one.
    """

    type: Literal["uuid"]
    """Sets a random identifier on each event."""

    header: str = "id"
    """The header to set."""

    prefix: str = ""
    """Text before the identifier."""

    preserve_existing: bool = True
    """Whether an event that already has the header keeps its value."""

    def make(self, context: InterceptorContext = THIS_MACHINE, /) -> Interceptor:
        return _Uuid(self, context.random_bytes)


class _Uuid:
    def __init__(self, config: UuidConfig, random_bytes: Callable[[int], bytes]) -> None:
        self._config = config
        self._random_bytes = random_bytes

    def intercept(self, table: EventTable) -> EventTable:
        config = self._config
        uuids = random_uuids(config.prefix, table.count, self._random_bytes)
        table.give(config.header, uuids, preserve_existing=config.preserve_existing)
        return table


def random_uuids(prefix: str, count: int, random_bytes: Callable[[int], bytes]) -> list[str]:
    """Returns random UUIDs, several times faster than calls of `uuid.uuid4`."""
    digits = random_bytes(_UUID_BYTES * count).hex()
    step = 2 * _UUID_BYTES
    return [
        f"{prefix}{digits[at : at + 8]}-{digits[at + 8 : at + 12]}-4{digits[at + 13 : at + 16]}-"
        f"{_VARIANTS[int(digits[at + 16], 16) & 3]}{digits[at + 17 : at + 20]}-{digits[at + 20 : at + 32]}"
        for at in range(0, step * count, step)
    ]


class RemoveHeaderConfig(InterceptorConfig):
    """Removes headers."""

    type: Literal["remove_header"]
    """Removes headers."""

    names: list[str] = Field(default_factory=list)
    """The headers to remove."""

    pattern: RegexPattern | None = Field(None, validate_default=True)
    """Also removes all headers whose entire name matches."""

    @field_validator("pattern")
    @classmethod
    def _check_any(cls, pattern: str | None, info: ValidationInfo) -> str | None:
        if pattern is None and info.data.get("names", [""]) == []:
            raise ValueError("is missing, and names is empty; the interceptor needs a header to remove")
        return pattern

    def make(self, _context: InterceptorContext = THIS_MACHINE, /) -> Interceptor:
        return _RemoveHeader(self)


class _RemoveHeader:
    def __init__(self, config: RemoveHeaderConfig) -> None:
        self._names = config.names
        self._regex = None if config.pattern is None else Regex(config.pattern)

    def intercept(self, table: EventTable) -> EventTable:
        removed = set(self._names).intersection(table.headers)
        if self._regex is not None:
            removed.update(name for name in table.headers if self._matches(self._regex, name, table))
        for name in removed:
            del table.headers[name]
        return table

    @staticmethod
    def _matches(regex: Regex, name: str, table: EventTable) -> bool:
        try:
            return regex.matches_whole(name)
        except TimeoutError:
            having = [index for index, value in enumerate(table.values(name)) if value is not None]
            raise EventsRefusedError(dict.fromkeys(having, MATCH_TIMED_OUT)) from None
