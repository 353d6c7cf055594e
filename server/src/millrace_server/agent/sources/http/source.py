"""Requests that have an Idempotency-Key: sent again they are stored once, and other ones are refused."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

import structlog
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable
from millrace_server.agent.rate_limited_log import FailureLog
from millrace_server.agent.sources.http.bodies import (
    RETRY_SECONDS,
    BodyReader,
    Hold,
    HttpRefusalError,
    InflightBytes,
    bad_request,
    come_again,
)
from millrace_server.agent.sources.http.config import HttpSourceConfig
from millrace_server.agent.sources.http.events import Event, read_events
from millrace_server.agent.sources.source import address_of, open_source_socket
from millrace_server.channels.stamps import PASSING_PREFIX, Stamp
from millrace_server.errors import (
    BadArgumentError,
    EventTooLargeError,
    InternalError,
    MillraceError,
    TxnCapacityError,
)
from millrace_server.network.addresses import Address
from millrace_server.network.http_server import EmbeddedHttp, HttpLimits

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


CLOSING_SECONDS_MAX = 5
"""How long requests that are being stored may take when the source ends."""

STORING_SECONDS_MAX = 30.0
"""Who sends a request is told to come again where the channels have not taken its events after so long."""

_BATCH_BYTES_MAX = 1024 * 1024
_INLINE_BYTES_MAX = 16 * 1024

_log = structlog.stdlib.get_logger(__name__)


class HttpSource:
    """Listens, and answers each request once its events are stored, or cannot be."""

    def __init__(self, name: str, config: HttpSourceConfig) -> None:
        self._name = name
        self._config = config
        # A port that was found is kept when the source begins anew.
        self._address = Address.parse(config.listen)

    async def run(self, writer: ChannelWriter) -> None:
        """See `Source.run`."""
        receiver = _Receiver(self._name, self._config, writer)
        limits = HttpLimits(self._config.connections_max, closing_seconds_max=CLOSING_SECONDS_MAX)
        with await open_source_socket(self._address, self._name) as bound:
            self._address = address_of(bound)
            server = EmbeddedHttp(receiver.app(), limits)
            try:
                await server.start(bound)
                _log.info("listening", source=self._name, address=f"http://{self._address}{self._config.path}")
                writer.note_ready()
                await server.wait_ended()
            finally:
                receiver.close()
                await server.stop()


class _Batch(NamedTuple):
    first_index: int
    """Which of the request's events is its first."""
    events: list[Event]


class _Receiver:
    """Answers requests."""

    def __init__(self, source: str, config: HttpSourceConfig, writer: ChannelWriter) -> None:
        self._source = source
        self._config = config
        self._writer = writer
        self._inflight = InflightBytes(config.inflight_bytes_max)
        self._bodies = BodyReader(config)
        self._troubles = FailureLog()
        self._keys = RequestKeys(source, writer)
        self._is_closing = False

    def app(self) -> Starlette:
        """The one page."""
        return Starlette(routes=[Route(self._config.path, self._post, methods=["POST"])])

    def close(self) -> None:
        """Lets no more in; what has come as a whole is still stored."""
        self._is_closing = True
        self._bodies.close()

    async def _post(self, request: Request) -> Response:
        try:
            with self._inflight.share() as hold:
                return JSONResponse({"events": await self._receive(request, hold)})
        except HttpRefusalError as refusal:
            return refusal.answer()
        except ClientDisconnect:
            return Response(status_code=400)
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
            # The time for stopping is over. It is better to say that nobody knows than to say nothing.
            return _unknown("the source is stopping").answer()
        except Exception as error:  # noqa: BLE001 - a bug, or an interceptor of the user's; other requests go on
            if self._troubles.admits(f"{type(error).__name__}: {error}"):
                _log.exception("a request could not be stored", source=self._source)
            return _internal().answer()

    async def _receive(self, request: Request, hold: Hold) -> int:
        """Stores a request's events; returns how many it had."""
        key = self._keys.key_of(request)
        body = await self._bodies.read(request, hold)
        content_type = request.headers.get("content-type", "")

        def read() -> Content:
            return Content(read_events(content_type, body, self._config.request_events_max), has_key=key is not None)

        content = await asyncio.to_thread(read) if len(body) > _INLINE_BYTES_MAX else read()
        with self._keys.named(key, content) as name:
            try:
                async with asyncio.timeout(STORING_SECONDS_MAX):
                    for batch in self._batches(content.events):
                        await self._store(request, batch, name)
            except TimeoutError:
                raise _unknown(
                    f"the channels have not taken the events after {STORING_SECONDS_MAX:g} seconds"
                ) from None
        return len(content.events)

    def _batches(self, events: list[Event]) -> list[_Batch]:
        """The events in portions that are the same each time, so that a repeat finds what was stored before.

        What channels take at once may change meanwhile: the writer cuts them further where it must.
        """
        batches = [_Batch(0, [])]
        byte_count = 0
        for index, event in enumerate(events):
            byte_count += len(event[1])
            current = batches[-1].events
            if current and (len(current) >= self._config.batch_events_max or byte_count > _BATCH_BYTES_MAX):
                batches.append(_Batch(index, []))
                byte_count = len(event[1])
            batches[-1].events.append(event)
        return batches if events else []

    async def _store(self, request: Request, batch: _Batch, name: RequestName | None) -> None:
        table = EventTable.of_rows(batch.events)
        for request_header, header in self._config.request_headers.items():
            if (value := request.headers.get(request_header)) is not None:
                table.fill(header, value)
        stamp = (
            self._writer.numbered(len(batch.events))
            if name is None
            else name.stamp(batch.first_index, len(batch.events))
        )
        try:
            await self._writer.offer(table, stamp)
        except (EventTooLargeError, TxnCapacityError) as error:
            raise HttpRefusalError(413, error.reason, str(error)) from None
        except BadArgumentError as error:
            raise HttpRefusalError(400 if name is None else 409, error.reason, str(error)) from None
        except InternalError:
            # The writer has told the log.
            raise _internal() from None
        except MillraceError as error:
            raise come_again(error) from None


def _internal() -> HttpRefusalError:
    sentence = "the source itself is at fault; its log tells why"
    return HttpRefusalError(500, "INTERNAL", sentence, retry_seconds=RETRY_SECONDS)


def _unknown(why: str) -> HttpRefusalError:
    sentence = f"{why}; whether they are stored is not known: send the request again, with the same Idempotency-Key"
    return HttpRefusalError(503, "UNAVAILABLE", sentence, retry_seconds=RETRY_SECONDS)
