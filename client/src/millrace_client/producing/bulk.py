"""Events that are alike, in columns: made by a few passes over all of them, not by several steps for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from millrace_client.events import Event
from millrace_client.producing.pages import EVENT_BYTES, HEAD_BYTES, HEADER_BYTES, SIZE_BYTES


@dataclass(slots=True)
class Bulk:
    """Events that are alike: all bodies alone, or all with the same headers, whose values are ASCII."""

    bodies: list[bytes]
    columns: dict[str, list[str]]
    """The values of each header."""
    encoded_bytes: int
    """What they take on the wire, at most; without the headers' names, which each page has once."""

    @property
    def bytes_on_new_page(self) -> int:
        """The same with what a page needs for its headers' names, where it does not have them yet."""
        return self.encoded_bytes + HEAD_BYTES * (1 + len(self.columns)) + sum(map(len, self.columns))

    @property
    def event_bytes_bound(self) -> int:
        """At least as many bytes as any one of them takes on the wire."""
        longest = [max(map(len, self.bodies)), *[max(map(len, values)) for values in self.columns.values()]]
        return sum(longest) + SIZE_BYTES * len(longest)

    @property
    def held_bytes(self) -> int:
        """What they take of the buffer."""
        return self.encoded_bytes + len(self.bodies) * (EVENT_BYTES + HEADER_BYTES * len(self.columns))


def bulk_of(events: Sequence[object]) -> Bulk | None:
    """The events in columns; None where they are not alike, or something is wrong with one of them."""
    kinds = set(map(type, events))
    columns: dict[str, list[str]] = {}
    if kinds == {bytes}:
        bodies = list(cast("Sequence[bytes]", events))
    elif kinds == {Event}:
        alike = cast("Sequence[Event]", events)
        bodies = [event.body for event in alike]
        headers = [event.headers for event in alike]
        names = list(headers[0])
        if set(map(type, bodies)) != {bytes} or sum(map(len, headers)) != len(names) * len(headers):
            return None
        try:
            columns = {name: [each[name] for each in headers] for name in names}
        except KeyError:
            return None
    else:
        return None
    try:
        keys, *texts = "".join(columns), *map("".join, columns.values())
    except TypeError:
        # A name or a value is no text.
        return None
    if not (keys.isascii() and all(map(str.isascii, texts))):
        return None
    sizes_bytes = SIZE_BYTES * len(bodies) * (1 + len(columns))
    return Bulk(bodies, columns, sum(map(len, bodies)) + sum(map(len, texts)) + sizes_bytes)
