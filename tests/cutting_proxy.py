"""A network that loses responses: a proxy that cuts a connection when a response arrives through it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

_FRAME_HEAD_BYTES = 9
_RESPONSE_FRAMES = {0, 1}
"""DATA and HEADERS, one of which a response begins with: on a stream that has had one, or on a new stream."""


class CuttingProxy:
    """Forwards bytes until it must lose a response.

    A server begins its response when the call has taken effect. A client whose connection is cut just then cannot know
    that the call was done.

    Attributes:
        address: Where to connect, `host:port`.
        cut_count: Responses lost so far.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._is_armed = False
        self._connections: set[asyncio.Task[None]] = set()
        self.address = ""
        self.cut_count = 0

    def lose_next_response(self) -> None:
        """Cuts the connection on which the next response arrives, and loses the response."""
        self._is_armed = True

    def serve(self, client_reads: asyncio.StreamReader, client_writes: asyncio.StreamWriter) -> None:
        """Serves a new connection."""
        connection = asyncio.ensure_future(self._pass(client_reads, client_writes))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def wait_closed(self) -> None:
        """Waits until all connections have ended."""
        await asyncio.gather(*self._connections)

    async def _pass(self, client_reads: asyncio.StreamReader, client_writes: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        server_reads, server_writes = await asyncio.open_connection(host, int(port))
        try:
            async with asyncio.TaskGroup() as passing:
                passing.create_task(_pass_bytes(client_reads, server_writes))
                passing.create_task(self._pass_frames(server_reads, client_writes))
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            client_writes.transport.abort()
            server_writes.transport.abort()

    async def _pass_frames(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while True:
            head = await source.readexactly(_FRAME_HEAD_BYTES)
            payload = await source.readexactly(int.from_bytes(head[:3], "big"))
            if self._is_armed and head[3] in _RESPONSE_FRAMES:
                self._is_armed = False
                self.cut_count += 1
                raise ConnectionResetError
            target.write(head + payload)
            await target.drain()


class CuttingAppends(CuttingProxy):
    """The same before a nats-server, whose responses to appends are lost."""

    async def _pass_frames(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while piece := await source.read(1 << 16):
            if self._is_armed and b'"seq":' in piece and b'"stream":' in piece:
                self._is_armed = False
                self.cut_count += 1
                raise ConnectionResetError
            target.write(piece)
            await target.drain()
        raise ConnectionResetError


@asynccontextmanager
async def cutting_proxy(target: str, kind: type[CuttingProxy] = CuttingProxy) -> AsyncGenerator[CuttingProxy]:
    """A proxy before a server's address."""
    proxy = kind(target)
    async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as listening:
        host, port = listening.sockets[0].getsockname()
        proxy.address = f"{host}:{port}"
        yield proxy
        await proxy.wait_closed()


async def _pass_bytes(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(1 << 16):
        target.write(piece)
        await target.drain()
    raise ConnectionResetError
