"""Which events a receiver has, although they have not left their channel yet."""

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from millrace_server.agent.channel_reader import ChannelReader, Delivery, EventsRejectedError
from millrace_server.agent.sinks.http_config import HttpSinkConfig, split_url
from millrace_server.agent.sinks.http_requests import (
    CONTENT_TYPES,
    HttpAnswer,
    HttpConnection,
    HttpConnectionError,
    encode,
    idempotency_key,
)
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.stamps import IntervalSet

_INTERVALS_MAX = 1_000


class HttpProgress:
    """Remembers how the requests for a channel's events ended, for as long as the process lives.

    Args:
        is_single: Whether each request has one event.
    """

    def __init__(self, *, is_single: bool) -> None:
        self._is_single = is_single
        self._channel_id = ""
        self._accepted = IntervalSet()
        self._in_doubt: tuple[int, int] | None = None

    def requests(self, channel_id: str, batches: Sequence[StoredBatch]) -> Iterator[Sequence[StoredBatch]]:
        """The events that are to be sent, cut into requests.

        Events that the receiver has are left out. A request that was sent without an answer comes again with the same
        events, where they are there, so that the receiver knows it by its key.
        """
        if channel_id != self._channel_id or len(self._accepted) > _INTERVALS_MAX:
            self._channel_id = channel_id
            self._accepted = IntervalSet()
            self._in_doubt = None
        rest = [part for batch in batches for part in self._unaccepted(batch)]
        if self._is_single:
            yield from ((batch.part(index, index + 1),) for batch in rest for index in range(batch.count))
            return
        repeated, new = self._cut_at_doubt(rest)
        yield from (part for part in (repeated, new) if part)

    def _unaccepted(self, batch: StoredBatch) -> Iterator[StoredBatch]:
        for first, last in self._accepted.gaps(batch.first_sequence, batch.end_sequence - 1):
            yield batch.between(first, last + 1)

    def _cut_at_doubt(self, rest: Sequence[StoredBatch]) -> tuple[Sequence[StoredBatch], Sequence[StoredBatch]]:
        if not rest or self._in_doubt is None:
            return (), rest
        first, last = self._in_doubt
        if rest[0].first_sequence != first or rest[-1].end_sequence <= last:
            return (), rest
        repeated = [part.between(first, last + 1) for part in rest if part.first_sequence <= last]
        new = [part.between(last + 1, part.end_sequence) for part in rest if part.end_sequence > last + 1]
        return repeated, new

    def begins(self, request: Sequence[StoredBatch]) -> None:
        """A request is sent; whether its events arrive is not known."""
        self._in_doubt = (request[0].first_sequence, request[-1].end_sequence - 1)

    def note_refused(self) -> None:
        """The receiver has answered that it has none of the request's events."""
        self._in_doubt = None

    def note_accepted(self, request: Sequence[StoredBatch]) -> None:
        """The receiver has the request's events."""
        self._in_doubt = None
        for batch in request:
            self._accepted.add(batch.first_sequence, batch.end_sequence - 1)


class HttpSink:
    """Posts deliveries, and settles each once all its events were answered well."""

    def __init__(self, config: HttpSinkConfig) -> None:
        self._config = config
        self._url = split_url(config.url)
        # A query may hold a secret.
        self._shown_url = f"{self._url.scheme}://{self._url.netloc}{self._url.path}"
        self._progress = HttpProgress(is_single=config.format == "single")
        self._headers = self._fixed_headers()

    def _fixed_headers(self) -> list[tuple[str, str]]:
        headers = dict(self._config.headers)
        if not any(name.lower() == "content-type" for name in headers):
            headers["Content-Type"] = CONTENT_TYPES[self._config.format]
        if self._config.compression == "gzip":
            headers["Content-Encoding"] = "gzip"
        return list(headers.items())

    async def run(self, reader: ChannelReader) -> None:
        """See `Sink.run`."""
        tls = await asyncio.to_thread(self._tls) if self._url.scheme == "https" else None
        connection = HttpConnection(self._url, self._config.connect_seconds_max, tls)
        try:
            while (delivery := await reader.take(self._config.request_bytes_max)) is not None:
                try:
                    await self._send_all(connection, delivery)
                except EventsRejectedError as error:
                    await reader.reject(delivery, error)
                else:
                    await delivery.settle()
        finally:
            connection.close()

    def _tls(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._config.ca_file)
        except OSError as error:
            raise ComponentError(f"ca_file {self._config.ca_file} cannot be read: {error}") from None

    async def _send_all(self, connection: HttpConnection, delivery: Delivery) -> None:
        for request in self._progress.requests(delivery.channel_id, delivery.batches):
            await self._send(connection, delivery.channel_id, request)

    async def _send(self, connection: HttpConnection, channel_id: str, request: Sequence[StoredBatch]) -> None:
        is_packed = self._config.compression == "gzip"
        body = await asyncio.to_thread(encode, request, self._config.format, is_packed=is_packed)
        headers = [*self._headers, ("Idempotency-Key", idempotency_key(channel_id, request))]
        self._progress.begins(request)
        try:
            async with asyncio.timeout(self._config.answer_seconds_max):
                answer = await connection.post(headers, body)
        except TimeoutError:
            connection.close()
            seconds = self._config.answer_seconds_max
            raise ComponentError(f"{self._shown_url} has not answered after {seconds:g} seconds") from None
        except HttpConnectionError as error:
            raise ComponentError(f"{self._shown_url}: {error}") from None
        match self._config.verdict(answer.status):
            case "settle":
                self._progress.note_accepted(request)
            case "reject":
                self._progress.note_refused()
                raise EventsRejectedError(self._told(answer))
            case "retry":
                raise ComponentError(self._told(answer), _retry_seconds(answer.retry_after))

    def _told(self, answer: HttpAnswer) -> str:
        try:
            phrase = f" {HTTPStatus(answer.status).phrase}"
        except ValueError:
            phrase = ""
        said = answer.beginning.decode(errors="replace").strip()
        return f"{self._shown_url} answered {answer.status}{phrase}" + (f": {said}" if said else "")


def _retry_seconds(retry_after: str | None) -> float | None:
    """What the header asks for, in seconds or as a date; None where it says neither."""
    if retry_after is None:
        return None
    if retry_after.isascii() and retry_after.isdecimal():
        return float(retry_after[:9])
    try:
        at = parsedate_to_datetime(retry_after)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max((at - datetime.now(UTC)).total_seconds(), 0.0)
