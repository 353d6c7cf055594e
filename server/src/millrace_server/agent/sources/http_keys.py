"""Requests that have an Idempotency-Key: sent again they are stored once, and other ones are refused."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

from starlette.requests import Request

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.sources.http_events import Event
from millrace_server.agent.sources.http_refusals import RETRY_SECONDS, HttpRefusalError, bad_request, come_again
from millrace_server.channels.stamps import PASSING_PREFIX, Stamp
from millrace_server.errors import MillraceError

_KEY_LENGTH_MAX = 256
_KEY_DIGEST_BYTES = 16
_FINGERPRINT_BYTES = 7
"""So many bytes make a number that leaves room for those of a request's events behind it."""


class Content:
    """What a request holds.

    Args:
        events: The events.
        has_key: Whether it is to be told apart from others.

    Attributes:
        fingerprint: A number that other events do not have; 0 without a key.
    """

    def __init__(self, events: list[Event], *, has_key: bool) -> None:
        self.events = events
        self.fingerprint = fingerprint(events) if has_key else 0


class RequestName(NamedTuple):
    """How the channels remember the events of a request."""

    producer_id: str
    """Its key's."""
    first_number: int
    """That of its first event, which the others follow. It is the content's fingerprint: other events have others."""

    def stamp(self, first_index: int, count: int) -> Stamp:
        """Names some of the events, from an index on."""
        first = self.first_number + first_index
        return Stamp(self.producer_id, first, first + count - 1)


class RequestKeys:
    """The keys of a source's requests.

    Each is a producer to the channels, which so remember what was stored with it.

    Args:
        source: The source's name.
        writer: Knows what the channels have stored.
    """

    def __init__(self, source: str, writer: ChannelWriter) -> None:
        self._source = source
        self._writer = writer
        self._in_work: set[str] = set()

    def key_of(self, request: Request) -> str | None:
        """The key of a request; None where it has none.

        Raises:
            HttpRefusalError: It is too long, or empty.
        """
        key = request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= _KEY_LENGTH_MAX:
            raise bad_request(f"Idempotency-Key has {len(key)} characters; 1 to {_KEY_LENGTH_MAX} are allowed")
        return key

    @contextmanager
    def named(self, key: str | None, content: Content) -> Iterator[RequestName | None]:
        """How the events of a request are remembered; None where it has no key.

        No other request with its key is stored meanwhile.

        Raises:
            HttpRefusalError: One is just now, or other events were stored with this key.
        """
        if key is None:
            yield None
            return
        digest = blake2b(key.encode(), digest_size=_KEY_DIGEST_BYTES).hexdigest()
        name = RequestName(f"{PASSING_PREFIX}{self._source}/{digest}", content.fingerprint)
        if name.producer_id in self._in_work:
            sentence = "a request with the same Idempotency-Key is being stored; come again once it was answered"
            raise HttpRefusalError(503, "KEY_IN_WORK", sentence, retry_seconds=RETRY_SECONDS)
        self._refuse_others(name, len(content.events))
        self._in_work.add(name.producer_id)
        try:
            yield name
        finally:
            self._in_work.discard(name.producer_id)

    def _refuse_others(self, name: RequestName, count: int) -> None:
        try:
            accepted = self._writer.accepted(name.producer_id)
        except MillraceError as error:
            raise come_again(error) from None
        for first, last in chain.from_iterable(accepted):
            if not name.first_number <= first <= last < name.first_number + count:
                raise HttpRefusalError(
                    422,
                    "KEY_REUSED",
                    "this Idempotency-Key was used before, with other events, and nothing was stored now; give each "
                    "request a key of its own, and repeat a request only as it was",
                )


def fingerprint(events: Iterable[Event]) -> int:
    """A number that other events do not have."""
    found = blake2b(digest_size=_FINGERPRINT_BYTES)
    for headers, body in events:
        # Written so that it can be told where each key, value and body ends.
        found.update(f"{sorted(headers.items())!a}{len(body)} ".encode("ascii"))
        found.update(body)
    return int.from_bytes(found.digest())
