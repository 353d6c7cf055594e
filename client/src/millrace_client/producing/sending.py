"""The arguments of `send` and `send_many`, checked and taken apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from millrace_client.errors import BadArgumentError
from millrace_client.events import Event
from millrace_client.producing.pages import EVENT_BYTES, HEAD_BYTES, HEADER_BYTES, SIZE_BYTES

NO_HEADERS: Mapping[str, str] = {}


def parts_of(event: object) -> tuple[bytes, Mapping[str, str]]:
    """Returns an event's body and headers; raises BadArgumentError or TypeError if it is malformed."""
    if isinstance(event, str):
        try:
            return event.encode(), NO_HEADERS
        except UnicodeEncodeError:
            raise BadArgumentError(f"event: is {event!r}; it must be UTF-8") from None
    if isinstance(event, bytes):
        return event, NO_HEADERS
    if isinstance(event, Event):
        check_body(event.body)
        return event.body, event.headers
    raise TypeError(f"event: is a {type(event).__name__}; give Event, bytes or str")


def check_body(body: object) -> None:
    """Raises TypeError if a body is not bytes."""
    if not isinstance(body, bytes):
        raise TypeError(f"body: is a {type(body).__name__}; give bytes")


def check_key(key: object) -> None:
    """Raises TypeError if a key is neither text nor bytes."""
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"key: is a {type(key).__name__}; give str or bytes")


def check_channel(name: object) -> None:
    """Raises TypeError or BadArgumentError if a channel's name cannot be encoded."""
    if not isinstance(name, str):
        raise TypeError(f"channel: is a {type(name).__name__}; give str")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise BadArgumentError(f"channel: is {name!r}; it must be UTF-8") from None


def header_value_bytes(name: object, value: object) -> int:
    """Returns the encoded bytes of a header's value; raises BadArgumentError or TypeError if it is malformed."""
    if not (isinstance(name, str) and isinstance(value, str)):
        raise TypeError(f"headers: holds {name!r}: {value!r}; keys and values must be str")
    try:
        name.encode()
        return len(value.encode())
    except UnicodeEncodeError as error:
        raise BadArgumentError(f"headers: hold {error.object!r}; they must be UTF-8") from None


@dataclass(slots=True)
class Bulk:
    """Events in columns: all without headers, or all with the same header names and ASCII values.

    A few passes over all events create the columns, instead of several steps for each event.
    """

    bodies: list[bytes]
    columns: dict[str, list[str]]
    """Header name to the value of each event."""
    encoded_bytes: int
    """The maximum number of bytes that they take on the wire, without the header names, which each page holds once."""

    def add_headers(self, headers: Mapping[str, str]) -> None:
        """Adds the same headers to all events, except those that the events have."""
        for name, value in headers.items():
            if name not in self.columns:
                self.columns[name] = [value] * len(self.bodies)
                self.encoded_bytes += (len(value) + SIZE_BYTES) * len(self.bodies)

    @property
    def bytes_on_new_page(self) -> int:
        """The same with the header names, for a page that does not hold them yet."""
        return self.encoded_bytes + HEAD_BYTES * (1 + len(self.columns)) + sum(map(len, self.columns))

    @property
    def event_bytes_bound(self) -> int:
        """An upper bound of the bytes that any one of them takes on the wire."""
        longest = [max(map(len, self.bodies)), *[max(map(len, values)) for values in self.columns.values()]]
        return sum(longest) + SIZE_BYTES * len(longest)

    @property
    def held_bytes(self) -> int:
        """Bytes of the buffer that they take."""
        return self.encoded_bytes + len(self.bodies) * (EVENT_BYTES + HEADER_BYTES * len(self.columns))


def bulk_of(events: Sequence[object]) -> Bulk | None:
    """Returns the events in columns; None if their headers differ or one of them is malformed."""
    kinds = set(map(type, events))
    columns: dict[str, list[str]] = {}
    if kinds == {bytes}:
        bodies = list(cast("Sequence[bytes]", events))
    elif kinds == {Event}:
        alike = cast("Sequence[Event]", events)
        bodies = [event.body for event in alike]
        headers = [event.headers for event in alike]
        try:
            names = list(headers[0])
            if set(map(type, bodies)) != {bytes} or sum(map(len, headers)) != len(names) * len(headers):
                return None
            columns = {name: [each[name] for each in headers] for name in names}
        except (KeyError, TypeError):
            # Names differ, or headers are no mapping.
            return None
    else:
        return None
    try:
        keys, *texts = "".join(columns), *map("".join, columns.values())
    except TypeError:
        # A name or a value is not text.
        return None
    if not (keys.isascii() and all(map(str.isascii, texts))):
        return None
    sizes_bytes = SIZE_BYTES * len(bodies) * (1 + len(columns))
    return Bulk(bodies, columns, sum(map(len, bodies)) + sum(map(len, texts)) + sizes_bytes)
