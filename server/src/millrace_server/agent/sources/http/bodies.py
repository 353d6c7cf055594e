"""What a request gets that is not stored."""

import asyncio
import math
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol

import zstandard
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from millrace_server.agent.sources.http.config import HttpSourceConfig
from millrace_server.errors import MillraceError

RETRY_SECONDS = 1.0
"""When to come again where nobody knows better."""


class HttpRefusalError(Exception):
    """Returned when a request is not stored.

    Attributes:
        status: The status of the answer.
        reason: Stable name of the refusal.
        message: Why, in a sentence: what it was, what is allowed.
        retry_seconds: After how long a repeat makes sense; None where it makes none.
        is_unread: Whether some of the request's body was not read, so that its connection cannot go on.
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
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_seconds = retry_seconds
        self.is_unread = is_unread

    def answer(self) -> Response:
        """The answer."""
        headers = {}
        if self.retry_seconds is not None:
            headers["Retry-After"] = str(max(math.ceil(self.retry_seconds), 1))
        if self.is_unread:
            headers["Connection"] = "close"
        return JSONResponse({"reason": self.reason, "message": self.message}, self.status, headers)


def bad_request(message: str) -> HttpRefusalError:
    """The refusal of a request that can never be stored."""
    return HttpRefusalError(400, "BAD_ARGUMENT", message)


def come_again(error: MillraceError) -> HttpRefusalError:
    """The refusal of a request that the channels cannot store now."""
    return HttpRefusalError(503, error.reason, str(error), retry_seconds=error.retry_delay_seconds or RETRY_SECONDS)


def too_large(message: str, *, is_unread: bool = False) -> HttpRefusalError:
    """The refusal of a request that is larger than may be."""
    return HttpRefusalError(413, "TOO_LARGE", message, is_unread=is_unread)


_MEMBERS_MAX = 1_000
_GZIP_WINDOW_BITS = 31
# What RFC 8878 asks of every receiver.
_ZSTD_WINDOW_BYTES_MAX = 8 * 1024 * 1024


class _Member(Protocol):
    """What unpacks one member of gzip, or one frame of zstd."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, /) -> bytes: ...


class Packing(NamedTuple):
    """One way of packing."""

    name: str
    portion_bytes: int
    """So much is unpacked at once: small enough that it never becomes more than some MiB."""
    start_member: Callable[[], _Member]

    def unpack(self, packed: bytes, bytes_max: int) -> bytes:
        """What was packed.

        Raises:
            HttpRefusalError: It is larger than `bytes_max`, found out little later than there is so much of it; or it
                was not packed so, or not as a whole.
        """
        unpacked = bytearray()
        position = member_count = 0
        while position < len(packed):
            member_count += 1
            if member_count > _MEMBERS_MAX:
                raise bad_request(f"the body has more than {_MEMBERS_MAX} parts of {self.name}; pack it as one")
            member = self.start_member()
            while not member.eof:
                portion = packed[position : position + self.portion_bytes]
                if not portion:
                    raise bad_request(f"the body is {self.name} that ends in the middle")
                position += len(portion)
                unpacked += self._unpack_portion(member, portion)
                if len(unpacked) > bytes_max:
                    raise too_large(
                        f"the body has more than {bytes_max} bytes when it is unpacked; send it in several requests"
                    )
            position -= len(member.unused_data)
        return bytes(unpacked)

    def _unpack_portion(self, member: _Member, portion: bytes) -> bytes:
        try:
            return member.decompress(portion)
        except (zlib.error, zstandard.ZstdError) as error:
            raise bad_request(f"the body is not {self.name}, although Content-Encoding says so: {error}") from None


def _start_zstd() -> _Member:
    return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX).decompressobj()


# A byte of gzip becomes 1,032 at most; four of zstd become 128 KiB.
_GZIP = Packing("gzip", 4 * 1024, lambda: zlib.decompressobj(_GZIP_WINDOW_BITS))
_ZSTD = Packing("zstd", 256, _start_zstd)


def find_packing(content_encoding: str) -> Packing | None:
    """How a body is packed; None where it is not.

    Raises:
        HttpRefusalError: It is not known here.
    """
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

Hold = Callable[[int], None]
"""Counts so many bytes more as held by a request, fewer where it is negative; raises HttpRefusalError where there is no
room for them."""


class InflightBytes:
    """How many bytes of bodies are in work."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._byte_count = 0

    @contextmanager
    def share(self) -> Iterator[Hold]:
        """What one request holds is counted until its end."""
        share = 0

        def hold(byte_count: int) -> None:
            nonlocal share
            if self._byte_count + byte_count > self._bytes_max:
                raise HttpRefusalError(
                    503,
                    "OVERLOADED",
                    f"requests in work hold {self._byte_count} bytes of at most {self._bytes_max}; send less at once",
                    retry_seconds=RETRY_SECONDS,
                    is_unread=True,
                )
            self._byte_count += byte_count
            share += byte_count

        try:
            yield hold
        finally:
            self._byte_count -= share


class BodyReader:
    """Reads the bodies of a source's requests."""

    def __init__(self, config: HttpSourceConfig) -> None:
        self._config = config
        self._deadlines: set[asyncio.Timeout] = set()
        self._is_closing = False

    def close(self) -> None:
        """Reads no more: requests that have not come as a whole are refused."""
        self._is_closing = True
        for deadline in self._deadlines:
            if not deadline.expired():
                deadline.reschedule(asyncio.get_running_loop().time())

    async def read(self, request: Request, hold: Hold) -> bytes:
        """The whole body, unpacked.

        Raises:
            HttpRefusalError: It is too large, too slow, not packed as it says, or there is no room for it now.
            ClientDisconnect: Nobody waits for an answer any more.
        """
        packing = find_packing(request.headers.get("content-encoding", ""))
        packed = await self._read_in_time(request, hold)
        if packing is None:
            return packed
        bytes_max = self._config.body_bytes_max
        # How much it will be shows only when it is there.
        hold(bytes_max)
        unpacked = await asyncio.to_thread(packing.unpack, packed, bytes_max)
        hold(len(unpacked) - bytes_max)
        return unpacked

    async def _read_in_time(self, request: Request, hold: Hold) -> bytes:
        if self._is_closing:
            raise _closing()
        try:
            async with asyncio.timeout(self._config.request_seconds_max) as deadline:
                self._deadlines.add(deadline)
                try:
                    return await self._read_whole(request, hold)
                finally:
                    self._deadlines.discard(deadline)
        except TimeoutError:
            if self._is_closing:
                raise _closing() from None
            seconds = self._config.request_seconds_max
            sentence = f"the body was not there as a whole after {seconds:g} seconds; send less at once, or faster"
            raise HttpRefusalError(408, "TOO_SLOW", sentence, is_unread=True) from None

    async def _read_whole(self, request: Request, hold: Hold) -> bytes:
        stream = request.stream()
        bytes_max = self._config.body_bytes_max
        if int(request.headers.get("content-length", 0)) > bytes_max:
            await self._refuse_large(request, stream)
        portions: list[bytes] = []
        byte_count = 0
        async for portion in stream:
            byte_count += len(portion)
            if byte_count > bytes_max:
                portions.clear()
                await self._refuse_large(request, stream)
            hold(len(portion))
            portions.append(portion)
        return b"".join(portions)

    async def _refuse_large(self, request: Request, stream: AsyncIterator[bytes]) -> None:
        if "expect" not in request.headers:
            # Who is cut off while sending reads no answer, so let it send for a while.
            with suppress(TimeoutError):
                async with asyncio.timeout(_UNREAD_SECONDS_MAX):
                    async for _ in stream:
                        pass
        bytes_max = self._config.body_bytes_max
        raise too_large(f"the body has more than {bytes_max} bytes; send it in several requests", is_unread=True)


def _closing() -> HttpRefusalError:
    return HttpRefusalError(
        503, "DRAINING", "the source is stopping; send it again later", retry_seconds=RETRY_SECONDS, is_unread=True
    )
