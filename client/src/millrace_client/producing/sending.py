"""What `send` is given, where it is not what it most often is."""

from collections.abc import Mapping

from millrace_client.errors import BadArgumentError
from millrace_client.events import Event

_NO_HEADERS: Mapping[str, str] = {}


def parts_of(event: object) -> tuple[bytes, Mapping[str, str]]:
    """An event's body and headers.

    Raises:
        BadArgumentError: It is text that is not UTF-8.
        TypeError: It is no event.
    """
    if isinstance(event, str):
        try:
            return event.encode(), _NO_HEADERS
        except UnicodeEncodeError:
            raise BadArgumentError(f"event: is {event!r}; it must be UTF-8") from None
    if isinstance(event, bytes):
        return event, _NO_HEADERS
    if isinstance(event, Event):
        refuse_body(event.body)
        return event.body, event.headers
    raise TypeError(f"event: is a {type(event).__name__}; give Event, bytes or str")


def refuse_body(body: object) -> None:
    """Raises TypeError, unless it is bytes after all."""
    if not isinstance(body, bytes):
        raise TypeError(f"body: is a {type(body).__name__}; give bytes")


def refuse_key(key: object) -> None:
    """Raises TypeError, unless it is text or bytes after all."""
    if not isinstance(key, (str, bytes)):
        raise TypeError(f"key: is a {type(key).__name__}; give str or bytes")
