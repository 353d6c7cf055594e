"""The source `http`: the handling of requests and of their idempotency keys."""

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
    HttpRefusalError,
    InflightBytes,
    Reserve,
    bad_request,
    retry_later,
)
from millrace_server.agent.sources.http.config import HttpSourceConfig
from millrace_server.agent.sources.http.events import Event, read_events
from millrace_server.agent.sources.listening import ListenAddress, source_tls
from millrace_server.channels.stamps import PASSING_PREFIX, Stamp
from millrace_server.errors import (
    BadArgumentError,
    EventTooLargeError,
    InternalError,
    MillraceError,
    TxnCapacityError,
)
from millrace_server.network.http_requests import RequestCheck
from millrace_server.network.http_server import EmbeddedHttp, HttpLimits

_KEY_LENGTH_MAX = 256
_KEY_DIGEST_BYTES = 16
_FINGERPRINT_BYTES = 7
"""The size of a fingerprint, so small that the numbers of a request's further events can follow it."""


class RequestStamps(NamedTuple):
    """The stamps of a request's events."""

    producer_id: str
    first_number: int
    """The number of its first event, which those of the others follow. It is the fingerprint, so different events have
    different numbers."""

    def stamp(self, first_index: int, count: int) -> Stamp:
        first = self.first_number + first_index
        return Stamp(self.producer_id, first, first + count - 1)


class IdempotencyKeys:
    """The idempotency keys of a source's requests.

    For the channels, each key is a producer, so they remember what was stored with it.
    """

    def __init__(self, source: str, writer: ChannelWriter) -> None:
        self._source = source
        self._writer = writer
        self._in_progress: set[str] = set()

    def key_of(self, request: Request) -> str | None:
        key = request.headers.get("idempotency-key")
        if key is not None and not 0 < len(key) <= _KEY_LENGTH_MAX:
            raise bad_request(f"Idempotency-Key has {len(key)} characters; 1 to {_KEY_LENGTH_MAX} are allowed")
        return key

    @contextmanager
    def claim(self, key: str | None, first_number: int, count: int) -> Iterator[RequestStamps | None]:
        """Yields the stamps of a request; None if it has no key.

        Raises:
            HttpRefusalError: A request with this key is being stored, or different events were stored with it.
        """
        if key is None:
            yield None
            return
        digest = blake2b(key.encode(), digest_size=_KEY_DIGEST_BYTES).hexdigest()
        stamps = RequestStamps(f"{PASSING_PREFIX}{self._source}/{digest}", first_number)
        if stamps.producer_id in self._in_progress:
            sentence = "a request with the same Idempotency-Key is being stored; repeat this one once it has a response"
            raise HttpRefusalError(503, "KEY_IN_WORK", sentence, retry_seconds=RETRY_SECONDS)
        self._check_same_events(stamps, count)
        self._in_progress.add(stamps.producer_id)
        try:
            yield stamps
        finally:
            self._in_progress.discard(stamps.producer_id)

    def _check_same_events(self, stamps: RequestStamps, count: int) -> None:
        try:
            stored = self._writer.stored_ranges(stamps.producer_id)
        except MillraceError as error:
            raise retry_later(error) from None
        for first, last in chain.from_iterable(stored):
            if not stamps.first_number <= first <= last < stamps.first_number + count:
                raise HttpRefusalError(
                    422,
                    "KEY_REUSED",
                    "this Idempotency-Key was used before with different events, so nothing was stored; give each "
                    "request its own key, and repeat a request only unchanged",
                )


def fingerprint(events: Iterable[Event]) -> int:
    """Returns a number that identifies the events."""
    found = blake2b(digest_size=_FINGERPRINT_BYTES)
    for headers, body in events:
        # Encoded such that the end of each key, value and body is unambiguous.
        found.update(f"{sorted(headers.items())!a}{len(body)} ".encode("ascii"))
        found.update(body)
    return int.from_bytes(found.digest())


CLOSING_SECONDS_MAX = 5
"""How long requests that are being stored may take once the source stops."""

STORING_SECONDS_MAX = 30.0
"""A request gets 503 if the channels have not stored its events after this time."""

_BATCH_BYTES_MAX = 1024 * 1024
_INLINE_BYTES_MAX = 16 * 1024

_log = structlog.stdlib.get_logger(__name__)


class HttpSource:
    """Listens for connections, and responds to each request once its events are stored or refused."""

    def __init__(self, name: str, config: HttpSourceConfig) -> None:
        self._name = name
        self._config = config
        self._listen = ListenAddress(name, config)

    async def run(self, writer: ChannelWriter) -> None:
        handler = _RequestHandler(self._name, self._config, writer)
        config = self._config
        limits = HttpLimits(
            config.connections_max, config.connections_per_address_max, closing_seconds_max=CLOSING_SECONDS_MAX
        )
        async with source_tls(config, self._name) as tls:
            await self._serve(handler, EmbeddedHttp(handler.app(), limits, tls), writer)

    async def _serve(self, handler: "_RequestHandler", server: EmbeddedHttp, writer: ChannelWriter) -> None:
        scheme = "http" if self._config.tls is None else "https"
        with await self._listen.open() as bound:
            try:
                await server.start(bound)
                _log.info(
                    "listening", source=self._name, address=f"{scheme}://{self._listen.address}{self._config.path}"
                )
                writer.report_running()
                await server.wait_ended()
            finally:
                handler.close()
                await server.stop()


class _Batch(NamedTuple):
    first_index: int
    """The index of its first event in the request."""
    events: list[Event]


class _RequestHandler:
    def __init__(self, source: str, config: HttpSourceConfig, writer: ChannelWriter) -> None:
        self._source = source
        self._config = config
        self._writer = writer
        self._inflight = InflightBytes(config.inflight_bytes_max)
        self._bodies = BodyReader(config)
        self._failure_log = FailureLog()
        self._keys = IdempotencyKeys(source, writer)
        self._check = RequestCheck(config.listen, config.http_hosts, f"sources.{source}.http_hosts")
        self._is_closing = False

    def app(self) -> Starlette:
        return Starlette(routes=[Route(self._config.path, self._post, methods=["POST"])])

    def close(self) -> None:
        """Refuses new requests; complete ones are still stored."""
        self._is_closing = True
        self._bodies.close()

    async def _post(self, request: Request) -> Response:
        try:
            self._require_no_foreign_page(request)
            with self._inflight.reservation() as reserve:
                return JSONResponse({"events": await self._receive(request, reserve)})
        except HttpRefusalError as refusal:
            return refusal.response()
        except ClientDisconnect:
            return Response(status_code=400)
        except asyncio.CancelledError:
            if not self._is_closing:
                raise
            # The time limit for stopping has passed. It is better to report an unknown outcome than not to respond.
            return _outcome_unknown("the source is stopping").response()
        except Exception as error:  # noqa: BLE001 - a bug, or a user-defined interceptor; other requests continue
            if self._failure_log.admits(f"{type(error).__name__}: {error}"):
                _log.exception("a request could not be stored", source=self._source)
            return _internal_error().response()

    def _require_no_foreign_page(self, request: Request) -> None:
        if (refused := self._check.refusal_of_browser(request.scope)) is not None:
            raise HttpRefusalError(refused.status, refused.reason, refused.message, is_unread=True)

    async def _receive(self, request: Request, reserve: Reserve) -> int:
        key = self._keys.key_of(request)
        body = await self._bodies.read(request, reserve)
        content_type = request.headers.get("content-type", "")

        def read() -> tuple[list[Event], int]:
            events = read_events(content_type, body, self._config.request_events_max)
            return events, 0 if key is None else fingerprint(events)

        events, first_number = await asyncio.to_thread(read) if len(body) > _INLINE_BYTES_MAX else read()
        with self._keys.claim(key, first_number, len(events)) as stamps:
            try:
                async with asyncio.timeout(STORING_SECONDS_MAX):
                    for batch in self._batches(events):
                        await self._store(request, batch, stamps)
            except TimeoutError:
                raise _outcome_unknown(
                    f"the channels have not accepted the events after {STORING_SECONDS_MAX:g} seconds"
                ) from None
        return len(events)

    def _batches(self, events: list[Event]) -> list[_Batch]:
        """Returns the events in batches that are the same in each repetition, so that stored events are recognized.

        They must not depend on the channels' limits, which may change; the writer splits batches further if necessary.
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

    async def _store(self, request: Request, batch: _Batch, stamps: RequestStamps | None) -> None:
        table = EventTable.of_rows(batch.events)
        for request_header, header in self._config.request_headers.items():
            if (value := request.headers.get(request_header)) is not None:
                table.fill(header, value)
        stamp = (
            self._writer.next_stamp(len(batch.events))
            if stamps is None
            else stamps.stamp(batch.first_index, len(batch.events))
        )
        try:
            await self._writer.try_deliver(table, stamp)
        except (EventTooLargeError, TxnCapacityError) as error:
            raise HttpRefusalError(413, error.reason, str(error)) from None
        except BadArgumentError as error:
            raise HttpRefusalError(400 if stamps is None else 409, error.reason, str(error)) from None
        except InternalError:
            # The writer has logged the reason.
            raise _internal_error() from None
        except MillraceError as error:
            raise retry_later(error) from None


def _internal_error() -> HttpRefusalError:
    sentence = "the source itself failed; its log has the reason"
    return HttpRefusalError(500, "INTERNAL", sentence, retry_seconds=RETRY_SECONDS)


def _outcome_unknown(reason: str) -> HttpRefusalError:
    sentence = (
        f"{reason}; it is not known whether they are stored: send the request again, with the same Idempotency-Key"
    )
    return HttpRefusalError(503, "UNAVAILABLE", sentence, retry_seconds=RETRY_SECONDS)
