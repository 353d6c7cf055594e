"""The interceptor `custom`: a user's own."""

from typing import Any, Literal

from pydantic import Field

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import Interceptor, InterceptorConfig
from millrace_server.agent.setting_types import FactoryPath, load_factory


class CustomInterceptorConfig(InterceptorConfig):
    """An interceptor that is made by a factory of the user's."""

    type: Literal["custom"]
    """A user's own."""

    factory: FactoryPath
    """Called with `options`, returns the interceptor."""

    options: dict[str, Any] = Field(default_factory=dict)
    """What the factory gets as keyword arguments."""

    def make(self) -> Interceptor:
        return _Custom(load_factory(self.factory)(**self.options))


class _Custom:
    """Has a user's interceptor work on a copy, so that nothing of a failed try is left, and checks what it returns."""

    def __init__(self, interceptor: Interceptor) -> None:
        self._interceptor = interceptor

    def intercept(self, table: EventTable) -> EventTable:
        copy = EventTable(list(table.bodies), table.headers)
        copy.headers.update({key: list(column) for key, column in table.headers.items() if not isinstance(column, str)})
        copy.places = table.places
        result = self._interceptor.intercept(copy)
        _check_table(result)
        if result.places is not None and len(result.places) != result.count:
            result.places = None
        return result


def _check_table(result: object) -> None:
    """Raises TypeError or ValueError where a user's interceptor has returned what cannot be stored."""
    if not isinstance(result, EventTable):
        raise TypeError(f"an interceptor must return an EventTable, not {type(result).__name__}")
    if not all(isinstance(body, bytes) for body in result.bodies):
        raise TypeError("the interceptor returned a body that is not bytes")
    for key, column in result.headers.items():
        if isinstance(column, str):
            continue
        if len(column) != result.count:
            raise ValueError(f"the interceptor returned {len(column)} values of header {key!r}, not {result.count}")
        if not all(value is None or isinstance(value, str) for value in column):
            raise TypeError(f"the interceptor returned a value of header {key!r} that is not str")
