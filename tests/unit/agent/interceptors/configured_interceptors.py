"""Interceptors created from their configuration."""

from typing import Any

from pydantic import TypeAdapter, ValidationError

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors import AnyInterceptorConfig
from millrace_server.agent.interceptors.interceptor import Interceptor

_CONFIG: TypeAdapter[Any] = TypeAdapter(AnyInterceptorConfig)


def interceptor(**table: Any) -> Interceptor:
    """The interceptor of a configuration's table."""
    made: Interceptor = _CONFIG.validate_python(table, strict=True).make()
    return made


def intercepted(table: EventTable, **config: Any) -> list[tuple[dict[str, str], bytes]]:
    """The events that an interceptor returns."""
    return list(interceptor(**config).intercept(table).rows())


def problem_with(**table: Any) -> str:
    """The only problem of a table: the setting, and the message."""
    try:
        _CONFIG.validate_python(table, strict=True)
    except ValidationError as error:
        [details] = error.errors()
        return f"{details['loc'][-1]}: {details['msg'].removeprefix('Value error, ')}"
    raise AssertionError("nothing is wrong with it")
