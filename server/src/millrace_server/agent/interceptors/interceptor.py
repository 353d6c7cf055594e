"""What every interceptor is."""

from abc import ABC, abstractmethod
from typing import Protocol

from pydantic import BaseModel

from millrace_server.agent.events import EventTable


class Interceptor(Protocol):
    """Changes or drops events, in the order in which they came."""

    def intercept(self, table: EventTable) -> EventTable:
        """The events as they go on: the same table, changed or not, or one with fewer of its events."""


class InterceptorConfig(BaseModel, ABC, frozen=True, extra="forbid"):
    """What interceptors of every type have."""

    @abstractmethod
    def make(self) -> Interceptor:
        """The interceptor, for one source."""
