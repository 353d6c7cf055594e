"""The sink `http`, which posts deliveries, and settles each once all its requests have been accepted."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from millrace_server.agent.channel_reader import ChannelReader, Delivery, EventsRejectedError
from millrace_server.agent.setting_types import revealed
from millrace_server.agent.sinks.http.client import HttpClient, HttpConnectionError, HttpResponse
from millrace_server.agent.sinks.http.config import HttpSinkConfig, shown_url, split_url
from millrace_server.agent.sinks.http.requests import CONTENT_TYPES, RequestPlanner, encode, idempotency_key
from millrace_server.agent.spans import context_headers
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.batches import StoredBatch


class HttpSink:
    """Posts events to a URL."""

    def __init__(self, config: HttpSinkConfig) -> None:
        self._config = config
        self._url = split_url(config.url)
        self._shown_url = shown_url(config.url)
        self._planner = RequestPlanner(is_single=config.format == "single")
        self._headers = revealed(config.headers)
        if not any(name.lower() == "content-type" for name in config.headers):
            self._headers["Content-Type"] = CONTENT_TYPES[config.format]
        if config.compression == "gzip":
            self._headers["Content-Encoding"] = "gzip"

    async def run(self, reader: ChannelReader) -> None:
        tls = await asyncio.to_thread(self._config.tls_context)
        client = HttpClient(self._url, self._config.connect_seconds_max, tls)
        try:
            while (delivery := await reader.take(self._config.request_bytes_max)) is not None:
                try:
                    for request in self._planner.requests(delivery.channel_id, delivery.batches):
                        await self._send(client, delivery, request)
                except EventsRejectedError as error:
                    await reader.reject(delivery, error)
                else:
                    await delivery.settle()
        finally:
            client.close()

    async def _send(self, client: HttpClient, delivery: Delivery, request: Sequence[StoredBatch]) -> None:
        is_compressed = self._config.compression == "gzip"
        body = await asyncio.to_thread(encode, request, self._config.format, is_compressed=is_compressed)
        headers = [*self._headers.items(), ("Idempotency-Key", idempotency_key(delivery.channel_id, request))]
        headers += context_headers(delivery.span)
        self._planner.record_sent(request)
        try:
            async with asyncio.timeout(self._config.answer_seconds_max):
                response = await client.post(headers, body)
        except TimeoutError:
            client.close()
            seconds = self._config.answer_seconds_max
            raise ComponentError(f"{self._shown_url} has not responded after {seconds:g} seconds") from None
        except HttpConnectionError as error:
            raise ComponentError(f"{self._shown_url}: {error}") from None
        match self._config.verdict(response.status):
            case "settle":
                self._planner.record_accepted(request)
            case "reject":
                self._planner.record_rejected()
                raise EventsRejectedError(self._describe(response))
            case "retry":
                raise ComponentError(self._describe(response), _retry_seconds(response.retry_after))

    def _describe(self, response: HttpResponse) -> str:
        try:
            phrase = f" {HTTPStatus(response.status).phrase}"
        except ValueError:
            phrase = ""
        text = response.body_start.decode(errors="replace").strip()
        return f"{self._shown_url} returned {response.status}{phrase}" + (f": {text}" if text else "")


def _retry_seconds(retry_after: str | None) -> float | None:
    """Returns the delay that `Retry-After` requests, in seconds or as a date; None if it is neither."""
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
