"""Interceptors and selectors as users write them, found by import path."""

import threading
from collections.abc import Mapping, Sequence

from millrace_server.agent.events import EventTable
from millrace_server.agent.supervision import ComponentError
from tests.waiting import WAIT_SECONDS_MAX


class Uppercase:
    """Changes bodies to upper case in place, which is not allowed; records its threads."""

    def __init__(self, mark: bytes = b"!") -> None:
        self._mark = mark
        self.threads: set[str] = set()

    def intercept(self, table: EventTable) -> EventTable:
        self.threads.add(threading.current_thread().name)
        assert isinstance(table.bodies, list)
        for index, body in enumerate(table.bodies):
            table.bodies[index] = body.upper() + self._mark
        table.headers["shouted"] = "yes"
        return table


class FailingOn:
    """Raises on some bodies, and counts its calls."""

    def __init__(self, *bad: bytes, error: Exception | None = None) -> None:
        self._bad = bad
        self._error = error or ValueError("cannot be read")
        self.calls = 0

    def intercept(self, table: EventTable) -> EventTable:
        self.calls += 1
        if any(body in self._bad for body in table.bodies):
            raise self._error
        return table


def failing_on(text: str) -> FailingOn:
    """For configurations, which have no bytes."""
    return FailingOn(text.encode())


class Blocking:
    """Blocks until it is released."""

    def __init__(self) -> None:
        self.is_entered = threading.Event()
        self.is_released = threading.Event()

    def intercept(self, table: EventTable) -> EventTable:
        self.is_entered.set()
        assert self.is_released.wait(WAIT_SECONDS_MAX)
        return table


class FixedResult:
    """An interceptor that returns a fixed value."""

    def __init__(self, result: object) -> None:
        self._result = result

    def intercept(self, _table: EventTable) -> object:
        return self._result


class FirstLetter:
    """Selects the channel named by an event's first letter; raises if it does not exist."""

    def __init__(self, channels: Sequence[str], lost: str = "") -> None:
        self._channels = channels
        self._lost = lost

    def select(self, table: EventTable) -> Mapping[str, Sequence[bool]]:
        if any(body == b"down" for body in table.bodies):
            raise ComponentError("the book of letters is closed")
        letters = [body[:1].decode() or self._lost for body in table.bodies]
        if unknown := set(letters) - set(self._channels):
            raise KeyError(min(unknown))
        return {name: [letter == name for letter in letters] for name in self._channels}


class FixedSelection:
    """A selector that returns a fixed value."""

    def __init__(self, channels: Sequence[str], response: object = None) -> None:
        self._response = response

    def select(self, _table: EventTable) -> object:
        return self._response


NOT_CALLABLE = 3
