"""Request bodies, which are read and decompressed within limits, and the refusals of requests."""

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

import zstandard
from starlette.requests import Request
from starlette.responses import Response

from millrace_server.agent.sources.http.config import HttpSourceConfig
from millrace_server.errors import MillraceError
from millrace_server.network.http_requests import Refusal

RETRY_SECONDS = 1.0
"""The default of `Retry-After`."""


class HttpRefusalError(Exception):
    """Raised when a request is not stored.

    Args:
        reason: The stable name of the refusal.
        retry_seconds: The delay after which to repeat the request; None if a repetition cannot succeed.
        is_unread: Whether a part of the body was not read, so that the connection must be closed.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        *,
        retry_seconds: float | None = None,
        is_unread: bool = False,
    ) -> None:
        super().__init__(message)
        self.refusal = Refusal(status, reason, message, retry_seconds)
        self._headers = {"Connection": "close"} if is_unread else {}

    def response(self) -> Response:
        return self.refusal.response(self._headers)


def bad_request(message: str) -> HttpRefusalError:
    """Returns the refusal of a request that can never be stored."""
    return HttpRefusalError(400, "BAD_ARGUMENT", message)


def retry_later(error: MillraceError) -> HttpRefusalError:
    """Returns the refusal of a request that the channels cannot store at the moment."""
    return HttpRefusalError(503, error.reason, str(error), retry_seconds=error.retry_delay_seconds or RETRY_SECONDS)


def too_large(message: str, *, is_unread: bool = False) -> HttpRefusalError:
    """Returns the refusal of a request above a limit."""
    return HttpRefusalError(413, "TOO_LARGE", message, is_unread=is_unread)


_MEMBERS_MAX = 1_000
_GZIP_WINDOW_BITS = 31
# RFC 8878 recommends that every decoder supports this.
_ZSTD_WINDOW_BYTES_MAX = 8 * 1024 * 1024


class _Decompressor(Protocol):
    """Decompresses a gzip member or a zstd frame."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class ContentCoding(NamedTuple):
    """A content coding of HTTP."""

    name: str
    chunk_bytes: int
    """The size of compressed chunks, so small that none decompresses to more than a few MiB."""
    create_decompressor: Callable[[], _Decompressor]

    def decode(self, encoded: bytes, bytes_max: int) -> bytes:
        """Returns the decompressed data.

        Raises:
            HttpRefusalError: The decompressed data is larger than `bytes_max`, which is detected shortly after the
                limit; or the data is invalid or incomplete.
        """
        decoded = bytearray()
        position = member_count = 0
        while position < len(encoded):
            member_count += 1
            if member_count > _MEMBERS_MAX:
                raise bad_request(
                    f"the body has more than {_MEMBERS_MAX} parts of {self.name}; compress it as one part"
                )
            member = self.create_decompressor()
            while not member.eof:
                chunk = encoded[position : position + self.chunk_bytes]
                if not chunk:
                    raise bad_request(f"the body ends in the middle of its {self.name} data")
                position += len(chunk)
                decoded += self._decode_chunk(member, chunk)
                if len(decoded) > bytes_max:
                    raise too_large(
                        f"the body has more than {bytes_max} bytes when it is decompressed; send it in several requests"
                    )
            position -= len(member.unused_data)
        return bytes(decoded)

    def _decode_chunk(self, member: _Decompressor, chunk: bytes) -> bytes:
        try:
            return member.decompress(chunk)
        except (zlib.error, zstandard.ZstdError) as error:
            raise bad_request(f"the body is not {self.name}, although Content-Encoding says so: {error}") from None


# A byte of gzip decompresses to at most 1,032 bytes; four bytes of zstd, to at most 128 KiB.
_GZIP = ContentCoding("gzip", 4 * 1024, lambda: zlib.decompressobj(_GZIP_WINDOW_BITS))
_ZSTD = ContentCoding(
    "zstd", 256, lambda: zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX).decompressobj()
)


def find_content_coding(content_encoding: str) -> ContentCoding | None:
    """Returns a content coding; None for `identity`. Raises HttpRefusalError if it is not supported."""
    match content_encoding.strip().lower():
        case "" | "identity":
            return None
        case "gzip" | "x-gzip":
            return _GZIP
        case "zstd":
            return _ZSTD
        case _:
            sentence = f"Content-Encoding is {content_encoding!r}; it must be gzip, zstd or identity"
            raise HttpRefusalError(415, "BAD_ENCODING", sentence, is_unread=True)


_UNREAD_SECONDS_MAX = 2.0

Reserve = Callable[[int], None]
"""Reserves memory for a request; a negative number releases memory. Raises HttpRefusalError if there is not enough."""


class InflightBytes:
    """The total size of the bodies that are being processed."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._byte_count = 0

    @contextmanager
    def reservation(self) -> Iterator[Reserve]:
        """Yields a function that reserves memory until the context ends."""
        reserved = 0

        def reserve(byte_count: int) -> None:
            nonlocal reserved
            if self._byte_count + byte_count > self._bytes_max:
                raise HttpRefusalError(
                    503,
                    "OVERLOADED",
                    f"pending requests hold {self._byte_count} of at most {self._bytes_max} bytes; send less at a time",
                    retry_seconds=RETRY_SECONDS,
                    is_unread=True,
                )
            self._byte_count += byte_count
            reserved += byte_count

        try:
            yield reserve
        finally:
            self._byte_count -= reserved


class BodyReader:
    """Reads the bodies of a source's requests."""

    def __init__(self, config: HttpSourceConfig) -> None:
        self._config = config
        self._deadlines: set[asyncio.Timeout] = set()
        self._is_closing = False

    def close(self) -> None:
        """Refuses requests that are not complete yet."""
        self._is_closing = True
        for deadline in self._deadlines:
            if not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time())

    async def read(self, request: Request, reserve: Reserve) -> bytes:
        """Returns the complete, decompressed body; raises HttpRefusalError or ClientDisconnect."""
        coding = find_content_coding(request.headers.get("content-encoding", ""))
        encoded = await self._read_with_deadline(request, reserve)
        if coding is None:
            return encoded
        bytes_max = self._config.body_bytes_max
        # The decompressed size is known only afterwards.
        reserve(bytes_max)
        decoded = await asyncio.to_thread(coding.decode, encoded, bytes_max)
        reserve(len(decoded) - bytes_max)
        return decoded

    async def _read_with_deadline(self, request: Request, reserve: Reserve) -> bytes:
        if self._is_closing:
            raise _closing()
        try:
            async with asyncio.timeout(self._config.request_seconds_max) as deadline:
                self._deadlines.add(deadline)
                try:
                    return await self._read_whole(request, reserve)
                finally:
                    self._deadlines.discard(deadline)
        except TimeoutError:
            if self._is_closing:
                raise _closing() from None
            seconds = self._config.request_seconds_max
            sentence = f"the body was not complete after {seconds:g} seconds; send less at a time, or faster"
            raise HttpRefusalError(408, "TOO_SLOW", sentence, is_unread=True) from None

    async def _read_whole(self, request: Request, reserve: Reserve) -> bytes:
        stream = request.stream()
        bytes_max = self._config.body_bytes_max
        if int(request.headers.get("content-length", 0)) > bytes_max:
            await self._reject_large(request, stream)
        chunks: list[bytes] = []
        byte_count = 0
        async for chunk in stream:
            byte_count += len(chunk)
            if byte_count > bytes_max:
                chunks.clear()
                await self._reject_large(request, stream)
            reserve(len(chunk))
            chunks.append(chunk)
        return b"".join(chunks)

    async def _reject_large(self, request: Request, stream: AsyncIterator[bytes]) -> None:
        if "expect" not in request.headers:
            # A client whose connection is closed while it sends does not read the response, so let it send for a while.
            with suppress(TimeoutError):
                async with asyncio.timeout(_UNREAD_SECONDS_MAX):
                    async for _ in stream:
                        pass
        bytes_max = self._config.body_bytes_max
        raise too_large(f"the body has more than {bytes_max} bytes; send it in several requests", is_unread=True)


def _closing() -> HttpRefusalError:
    return HttpRefusalError(
        503, "DRAINING", "the source is stopping; retry the request later", retry_seconds=RETRY_SECONDS, is_unread=True
    )
