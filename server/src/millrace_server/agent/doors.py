"""Where a program hands its events to the sources of type `embedded`."""

from collections.abc import Iterator
from contextlib import contextmanager

from millrace_server.agent.intake import Intake


class Doors:
    """The intakes of embedded sources, by the source's name, while they are at work."""

    def __init__(self) -> None:
        self._intakes: dict[str, Intake] = {}

    @contextmanager
    def open_for(self, name: str, intake: Intake) -> Iterator[None]:
        """Inside, a program finds the intake."""
        self._intakes[name] = intake
        try:
            yield
        finally:
            del self._intakes[name]

    def find(self, name: str) -> Intake | None:
        """The intake of a source; None while the source is not at work."""
        return self._intakes.get(name)
