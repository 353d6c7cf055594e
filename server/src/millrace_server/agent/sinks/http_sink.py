"""The sink `http` at work."""

import asyncio
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from millrace_server.agent.channel_reader import ChannelReader, Delivery, EventsRejectedError
from millrace_server.agent.sinks.http_config import HttpSinkConfig, split_url
from millrace_server.agent.sinks.http_connection import HttpAnswer, HttpConnection, HttpConnectionError
from millrace_server.agent.sinks.http_progress import HttpProgress
from millrace_server.agent.sinks.http_requests import CONTENT_TYPES, encode, idempotency_key
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.batches import StoredBatch


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
