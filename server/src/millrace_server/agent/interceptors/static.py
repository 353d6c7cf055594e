"""The interceptor `static`: the same headers for all events."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import Interceptor, InterceptorConfig, QuickInterceptor


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
