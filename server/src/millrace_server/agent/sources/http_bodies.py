"""The bodies of requests: read and unpacked within limits."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress

from starlette.requests import Request

from millrace_server.agent.sources.http_config import HttpSourceConfig
from millrace_server.agent.sources.http_packing import find_packing
from millrace_server.agent.sources.http_refusals import RETRY_SECONDS, HttpRefusalError, too_large

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
