"""The interceptor `timestamp`: when an event came in."""

import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import (
    EventsRefusedError,
    Interceptor,
    InterceptorConfig,
    QuickInterceptor,
)
from millrace_server.agent.interceptors.regexes import TOO_LONG, Regex, RegexPattern


class TimestampConfig(InterceptorConfig):
    """A header that says when an event came in; the events of a batch have come in at once."""

    type: Literal["timestamp"]
    """When an event came in."""

    header: str = "timestamp"
    """The header."""

    format: Literal["millis", "iso"] = "millis"
    """`millis`: milliseconds since 1970. `iso`: date and time in UTC, such as 2026-01-31T23:59:59.999+00:00."""

    preserve_existing: bool = False
    """Whether an event that has the header already keeps its own."""

    def make(self) -> Interceptor:
        return Timestamp(self, time.time)


class Timestamp(QuickInterceptor):
    """Says when events came in.

    Args:
        config: How.
        clock: Seconds since 1970.
    """

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


_FAR_AWAY = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses that nobody has (RFC 5737, RFC 3849), of both families."""

_ANY_PORT = 9


class HostConfig(InterceptorConfig):
    """A header that says on which machine an event came in."""

    type: Literal["host"]
    """Where an event came in."""

    header: str = "host"
    """The header."""

    use: Literal["name", "ip"] = "name"
    """`name`: the machine's name. `ip`: the address from which it reaches others."""

    preserve_existing: bool = False
    """Whether an event that has the header already keeps its own."""

    def make(self) -> Interceptor:
        return _Host(self, socket.gethostname() if self.use == "name" else own_address())


class _Host(QuickInterceptor):
    def __init__(self, config: HostConfig, value: str) -> None:
        self._config = config
        self._value = value

    def intercept(self, table: EventTable) -> EventTable:
        table.give(self._config.header, self._value, preserve_existing=self._config.preserve_existing)
        return table


def own_address() -> str:
    """The address from which this machine reaches others; the loopback address where it reaches none.

    Asks the routing table only: nothing is sent, and no name is looked up.
    """
    for family, address in _FAR_AWAY:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, _ANY_PORT))
                return str(probe.getsockname()[0])
        except OSError:
            # No way out by this family.
            continue
    return "127.0.0.1"


class StaticConfig(InterceptorConfig):
    """Headers that all events get: one as `key` and `value`, or any number as `headers`."""

    type: Literal["static"]
    """The same headers for all events."""

    key: str | None = None
    """A header."""

    value: str | None = Field(None, validate_default=True)
    """Its value."""

    headers: dict[str, str] = Field(default_factory=dict, validate_default=True)
    """Headers with their values."""

    preserve_existing: bool = True
    """Whether an event that has a header already keeps its own."""

    @field_validator("value")
    @classmethod
    def _check_has_key(cls, value: str | None, info: ValidationInfo) -> str | None:
        key = info.data.get("key", value)
        if (key is None) != (value is None):
            given = f"key is {shown_value(key)}" if value is None else f"is {shown_value(value)} without a key"
            raise ValueError(f"{given}; key and value go together")
        return value

    @field_validator("headers")
    @classmethod
    def _check_any(cls, headers: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        if not headers and info.data.get("key", "") is None:
            raise ValueError("has no entry, and there is no key; the interceptor needs a header to give")
        return headers

    def make(self) -> Interceptor:
        return _Static(self)


class _Static(QuickInterceptor):
    def __init__(self, config: StaticConfig) -> None:
        self._preserves = config.preserve_existing
        self._headers = dict(config.headers)
        if config.key is not None and config.value is not None:
            self._headers[config.key] = config.value

    def intercept(self, table: EventTable) -> EventTable:
        for key, value in self._headers.items():
            table.give(key, value, preserve_existing=self._preserves)
        return table


_UUID_BYTES = 16
_VARIANTS = "89ab"


class UuidConfig(InterceptorConfig):
    """A header with a random identity (UUID, version 4).

    An event that is read again after a crash gets another one: a channel that had stored it before keeps the former.
    """

    type: Literal["uuid"]
    """An identity for each event."""

    header: str = "id"
    """The header."""

    prefix: str = ""
    """What stands before it."""

    preserve_existing: bool = True
    """Whether an event that has the header already keeps its own."""

    def make(self) -> Interceptor:
        return _Uuid(self)


class _Uuid:
    def __init__(self, config: UuidConfig) -> None:
        self._config = config

    def intercept(self, table: EventTable) -> EventTable:
        config = self._config
        table.give(config.header, random_uuids(config.prefix, table.count), preserve_existing=config.preserve_existing)
        return table


def random_uuids(prefix: str, count: int) -> list[str]:
    """So many random UUIDs; several times as quick as making them one by one."""
    digits = os.urandom(_UUID_BYTES * count).hex()
    step = 2 * _UUID_BYTES
    return [
        f"{prefix}{digits[at : at + 8]}-{digits[at + 8 : at + 12]}-4{digits[at + 13 : at + 16]}-"
        f"{_VARIANTS[int(digits[at + 16], 16) & 3]}{digits[at + 17 : at + 20]}-{digits[at + 20 : at + 32]}"
        for at in range(0, step * count, step)
    ]


class RemoveHeaderConfig(InterceptorConfig):
    """Headers that are removed."""

    type: Literal["remove_header"]
    """Headers that are not wanted."""

    names: list[str] = Field(default_factory=list)
    """The headers."""

    pattern: RegexPattern | None = Field(None, validate_default=True)
    """All headers, too, whose whole name matches."""

    @field_validator("pattern")
    @classmethod
    def _check_any(cls, pattern: str | None, info: ValidationInfo) -> str | None:
        if pattern is None and info.data.get("names", [""]) == []:
            raise ValueError("is missing, and names is empty; the interceptor needs a header to remove")
        return pattern

    def make(self) -> Interceptor:
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
            raise EventsRefusedError(dict.fromkeys(having, TOO_LONG)) from None
