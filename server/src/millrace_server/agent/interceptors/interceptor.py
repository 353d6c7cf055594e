"""What every interceptor is."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Literal, Protocol

from pydantic import BaseModel, Field

from millrace_server.agent.events import EventTable
from millrace_server.agent.setting_types import FactoryPath, load_factory


class EventsRefusedError(Exception):
    """Returned by an interceptor that can never let some events through; the others are given to it once more.

    The events are set aside. Not for what may pass, such as a server that cannot be asked: that is ComponentError, and
    the batch comes again after a while.

    Attributes:
        reasons: Why, for each of these events by its index in the table.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(reasons.values())))
        self.reasons = reasons


class Interceptor(Protocol):
    """Changes or drops events, in the order in which they came.

    Interceptors of one source run one after the other on a thread of the source's own, batch by batch: none of them
    needs a lock, nor may it touch the server's event loop.
    """

    def intercept(self, table: EventTable) -> EventTable:
        """The events as they go on: the same table with other columns, or one with fewer of its events.

        The columns themselves, which are lists, stay as they are: a changed one takes the place of the former. Where it
        raises it has changed nothing.

        Raises:
            EventsRefusedError: Some events will never pass.
            ComponentError: It cannot do its work now.
        """


class QuickInterceptor(ABC):
    """An interceptor that takes no longer for many events than for few: it runs on the event loop."""

    @abstractmethod
    def intercept(self, table: EventTable) -> EventTable:
        """As with every interceptor."""


class InterceptorConfig(BaseModel, ABC, frozen=True, extra="forbid"):
    """What interceptors of every type have."""

    @abstractmethod
    def make(self) -> Interceptor:
        """The interceptor, for one source."""


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
        copy.batch_indexes = table.batch_indexes
        result = self._interceptor.intercept(copy)
        _check_table(result)
        if result.batch_indexes is not None and len(result.batch_indexes) != result.count:
            result.batch_indexes = None
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
