"""How lines become events."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace_client import Event
from millrace_client.cli.json_lines import event_of_line
from millrace_client.cli.line_source import InputError


@dataclass(frozen=True)
class LineFormat:
    """What the lines of an input are."""

    headers: Mapping[str, str]
    """For every event; what a line says itself wins."""
    is_json: bool = False
    """Whether lines are JSON, with headers of their own."""

    def events(self, lines: list[bytes], first_line: int) -> tuple[Sequence[Event | bytes], InputError | None]:
        """The events of all lines, or of those before the first that holds none, and what is wrong with that.

        Args:
            lines: Some of the input.
            first_line: How many were before them.
        """
        if not self.is_json:
            return ([Event(line, self.headers) for line in lines] if self.headers else lines), None
        events: list[Event] = []
        for line in lines:
            try:
                event = event_of_line(line)
            except ValueError as error:
                return events, InputError(f"line {first_line + len(events) + 1:,} {error}")
            events.append(Event(event.body, {**self.headers, **event.headers}))
        return events, None
