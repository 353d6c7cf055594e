"""Events as the bodies of requests."""

import asyncio
import gzip
import json
import ssl
from base64 import b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import NamedTuple
from urllib.parse import SplitResult

import h11

from millrace_server.agent.sinks.http_config import Format
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.stamps import IntervalSet

CONTENT_TYPES: dict[Format, str] = {
    "json": "application/json",
    "json_lines": "application/x-ndjson",
    "single": "application/octet-stream",
}

_GZIP_LEVEL = 5
_KEY_LENGTH_MAX = 128
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode(batches: Sequence[StoredBatch], form: Format, *, is_packed: bool) -> bytes:
    """The body of a request with these events; with one only where the form is `single`."""
    if form == "single":
        [(_, body)] = _rows(batches)
    elif form == "json_lines":
        body = b"".join(_json(headers, body) + b"\n" for headers, body in _rows(batches))
    else:
        body = b"[" + b",".join(_json(headers, body) for headers, body in _rows(batches)) + b"]"
    return gzip.compress(body, _GZIP_LEVEL, mtime=0) if is_packed else body


def idempotency_key(channel_id: str, batches: Sequence[StoredBatch]) -> str:
    """Names these events for ever: no others ever have this key."""
    ranges = ",".join(f"{first}-{last}" for first, last in _ranges(batches))
    key = f"{channel_id}:{ranges}"
    return (
        key if len(key) <= _KEY_LENGTH_MAX else f"{channel_id}:{blake2b(ranges.encode(), digest_size=16).hexdigest()}"
    )


def _ranges(batches: Sequence[StoredBatch]) -> list[tuple[int, int]]:
    """The events' sequences, first and last of each range: the same however they were cut into batches."""
    sequences = IntervalSet()
    for batch in batches:
        sequences.add(batch.first_sequence, batch.end_sequence - 1)
    return list(sequences)


def _rows(batches: Sequence[StoredBatch]) -> Iterator[tuple[dict[str, str], bytes]]:
    for batch in batches:
        yield from batch.window.rows()


def _json(headers: dict[str, str], body: bytes) -> bytes:
    try:
        event = {"headers": headers, "body": body.decode()}
    except UnicodeDecodeError:
        event = {"headers": headers, "body_base64": b64encode(body).decode()}
    return _ENCODER.encode(event).encode()


_READ_BYTES = 64 * 1024
_ANSWER_HEAD_BYTES_MAX = 64 * 1024
_ANSWER_BODY_BYTES_MAX = 1024 * 1024
_SHOWN_BYTES = 200
_DEFAULT_PORTS = {"http": 80, "https": 443}


class HttpAnswer(NamedTuple):
    """What a server says to a request."""

    status: int
    retry_after: str | None
    """The header, if it is there."""
    beginning: bytes
    """Of the body."""


class HttpConnectionError(Exception):
    """Returned when there is no answer, for a reason that the message says. What became of the request is not known."""


class _ClosedError(HttpConnectionError):
    """Returned when a connection was closed before a byte of an answer had come."""


class HttpConnection:
    """Posts to one URL, one request after the other.

    Args:
        url: Where.
        connect_seconds_max: How long connecting may take.
        tls: For https.
    """

    def __init__(self, url: SplitResult, connect_seconds_max: float, tls: ssl.SSLContext | None) -> None:
        assert url.hostname is not None, "checked with the configuration"
        self._host = url.hostname
        self._port = url.port or _DEFAULT_PORTS[url.scheme]
        self._target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        self._host_header = url.netloc
        self._connect_seconds_max = connect_seconds_max
        self._tls = tls
        self._open: _OpenConnection | None = None

    async def post(self, headers: Sequence[tuple[str, str]], body: bytes) -> HttpAnswer:
        """Sends a request and reads the answer. Whoever cancels it must close the connection.

        Raises:
            HttpConnectionError: There is no answer.
        """
        is_kept = self._open is not None
        try:
            return await self._exchange(headers, body)
        except _ClosedError:
            if not is_kept:
                raise
            # The server has closed a connection that was idle, as it may at any time.
            return await self._exchange(headers, body)

    async def _exchange(self, headers: Sequence[tuple[str, str]], body: bytes) -> HttpAnswer:
        if self._open is None:
            self._open = await self._connect()
        request = h11.Request(
            method="POST",
            target=self._target,
            headers=[("Host", self._host_header), ("Content-Length", str(len(body))), *headers],
        )
        try:
            answer = await self._open.exchange(request, body)
        except HttpConnectionError:
            self.close()
            raise
        if not self._open.can_go_on():
            self.close()
        return answer

    async def _connect(self) -> "_OpenConnection":
        try:
            async with asyncio.timeout(self._connect_seconds_max):
                return _OpenConnection(*await asyncio.open_connection(self._host, self._port, ssl=self._tls))
        except TimeoutError:
            raise HttpConnectionError(f"connecting took longer than {self._connect_seconds_max:g} seconds") from None
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise HttpConnectionError(f"cannot connect: {error}") from None

    def close(self) -> None:
        """Closes the connection; the next request has a new one."""
        if self._open is not None:
            self._open.close()
            self._open = None


class _OpenConnection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_ANSWER_HEAD_BYTES_MAX)
        self._has_answered = False

    async def exchange(self, request: h11.Request, body: bytes) -> HttpAnswer:
        self._has_answered = False
        if self._writer.is_closing():
            # It broke while nobody looked; uvloop's transports take it for a bug to write to them then.
            raise _ClosedError("the connection was closed before the request was sent")
        for event in (request, h11.Data(data=body), h11.EndOfMessage()):
            # Nobody waits until all is sent: a server may answer, and refuse, before it has read everything.
            self._writer.write(self._http.send(event) or b"")
        try:
            return await self._read_answer()
        except h11.RemoteProtocolError as error:
            if not self._has_answered:
                raise _ClosedError("the connection was closed before an answer came") from None
            raise HttpConnectionError(f"the answer is not HTTP: {error}") from None
        except OSError as error:
            kind = HttpConnectionError if self._has_answered else _ClosedError
            raise kind(f"the connection broke: {error}") from None

    async def _read_answer(self) -> HttpAnswer:
        response = await self._next_event()
        while not isinstance(response, h11.Response):
            # Such as 103 Early Hints.
            response = await self._next_event()
        beginning = b""
        byte_count = 0
        while byte_count <= _ANSWER_BODY_BYTES_MAX and isinstance(part := await self._next_event(), h11.Data):
            beginning += part.data[: _SHOWN_BYTES - len(beginning)]
            byte_count += len(part.data)
        retry_after = dict(response.headers).get(b"retry-after")
        return HttpAnswer(response.status_code, retry_after.decode("latin-1") if retry_after else None, beginning)

    async def _next_event(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            data = await self._reader.read(_READ_BYTES)
            self._has_answered = self._has_answered or bool(data)
            self._http.receive_data(data)
        return event

    def can_go_on(self) -> bool:
        """Whether another request may follow."""
        if self._reader.at_eof() or self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        return True

    def close(self) -> None:
        with suppress(OSError):
            self._writer.transport.abort()
