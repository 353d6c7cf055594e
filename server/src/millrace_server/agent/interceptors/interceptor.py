"""What every interceptor is."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

from pydantic import BaseModel

from millrace_server.agent.events import EventTable


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
