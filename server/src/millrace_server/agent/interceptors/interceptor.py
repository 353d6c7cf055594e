"""The interceptor interface, and the interceptor `custom`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import BaseModel, Field, Secret

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.context import THIS_MACHINE, InterceptorContext
from millrace_server.agent.setting_types import FactoryPath, load_factory, revealed


class EventsRefusedError(Exception):
    """Raised when an interceptor can never pass some events on. The others are passed to it again.

    The refused events become dead letters. For a temporary failure, such as a server that does not respond, raise
    ComponentError: the whole batch is then retried after a delay.

    Attributes:
        reasons: The reason for each refused event, by its index in the table.
    """

    def __init__(self, reasons: Mapping[int, str]) -> None:
        super().__init__("; ".join(dict.fromkeys(reasons.values())))
        self.reasons = reasons


class MustWaitError(Exception):
    """Raised when an interceptor delays the events. They are passed to it again after this number of seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"the events may pass in {seconds:.3f} s")
        self.seconds = seconds


class Interceptor(Protocol):
    """Changes or drops events, in the order in which they arrive.

    The interceptors of a source run one after another, batch by batch, on a thread of that source. They need no locks,
    and must not use the server's event loop.
    """

    def intercept(self, table: EventTable) -> EventTable:
        """Returns the events to pass on: the same table with other columns, or a table with fewer of its events.

        The columns are lists and must not be modified in place; assign a new list instead. When this raises, the table
        is unchanged.

        Raises:
            EventsRefusedError: Some events can never be passed on.
            ComponentError: The interceptor cannot work at the moment.
            MustWaitError: The events must be passed on later.
        """


class QuickInterceptor(ABC):
    """An interceptor whose duration does not depend on the number of events; it runs on the event loop."""

    @abstractmethod
    def intercept(self, table: EventTable) -> EventTable: ...


class Screened(NamedTuple):
    """The result of a remembering interceptor."""

    table: EventTable
    """The events to pass on."""
    note_stored: Callable[[], None]
    """Called on any thread once they are durable in all their channels; not called if they cannot be stored."""


class RememberingInterceptor(ABC):
    """An interceptor whose decisions depend on events of earlier batches.

    A batch that could not be stored may be repeated. An interceptor that remembered its events immediately would
    mistake the repeat for duplicates of stored events.
    """

    @abstractmethod
    def screen(self, table: EventTable) -> Screened:
        """Does what `Interceptor.intercept` does, but remembers the events only when `note_stored` is called."""

    def intercept(self, table: EventTable) -> EventTable:
        return self.screen(table).table


class InterceptorConfig(BaseModel, ABC, frozen=True, extra="forbid", defer_build=True):
    """Base class of all interceptors' settings."""

    @abstractmethod
    def make(self, context: InterceptorContext = THIS_MACHINE, /) -> Interceptor: ...


class CustomInterceptorConfig(InterceptorConfig):
    """An interceptor created by the user's factory."""

    type: Literal["custom"]
    """A user-defined interceptor."""

    factory: FactoryPath
    """Called with `options`; returns the interceptor."""

    options: dict[str, Secret[Any]] = Field(default_factory=dict)
    """Keyword arguments of the factory."""

    def make(self, _context: InterceptorContext = THIS_MACHINE, /) -> Interceptor:
        return _Custom(load_factory(self.factory)(**revealed(self.options)))


class _Custom:
    """Runs a user-defined interceptor on a copy, so that a failed attempt changes nothing, and checks the result."""

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
    """Raises TypeError or ValueError if a user-defined interceptor returned something that cannot be stored."""
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
