"""An HTTP server whose responses a test controls."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesHeaderParser

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CLOSE = b""
"""Closes the connection instead of responding."""
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


def response(status: int, *headers: str, body: bytes = b"") -> bytes:
    """A response in bytes."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@dataclass(frozen=True)
class Received:
    """A request."""

    line: str
    headers: Message
    body: bytes
    connection: int
    """The number of its connection."""


class HttpReceiver:
    """Records requests and responds to them.

    Attributes:
        url: The URL to send to.
        requests: All requests received as a whole.
        responses: The responses of the next requests; afterwards all get `OK`.
        hold: While it is true, no request gets a response.
        connection_count: The number of connections so far.
        before_response: Called with each request before it gets a response.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[Received] = []
        self.responses: list[bytes] = []
        self.hold = False
        self.connection_count = 0
        self.before_response: Callable[[Received], None] = lambda _request: None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        self.connection_count += 1
        try:
            await self._serve(reader, writer, self.connection_count)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            """The other side has gone, or the test is over."""
        finally:
            del self._connections[task]
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: int) -> None:
        while True:
            line, _, rest = (await reader.readuntil(b"\r\n\r\n")).partition(b"\r\n")
            headers = BytesHeaderParser().parsebytes(rest)
            body = await reader.readexactly(int(headers["content-length"]))
            self.requests.append(Received(line.decode(), headers, body, connection))
            self.before_response(self.requests[-1])
            if self.hold:
                await asyncio.Event().wait()
            said = self.responses.pop(0) if self.responses else OK
            if said == CLOSE:
                return
            writer.write(said)

    def close_connections(self) -> None:
        """Closes all open connections."""
        for task in self._connections:
            task.cancel()

    def reset_connections(self) -> None:
        """Resets all open connections, as after a restart of the machine."""
        for writer in self._connections.values():
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            writer.transport.abort()


@asynccontextmanager
async def receiving() -> AsyncIterator[HttpReceiver]:
    """A server on loopback."""
    receiver = HttpReceiver()
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    receiver.url = f"http://{host}:{port}/in?key=secret"
    async with server:
        yield receiver
        receiver.close_connections()
        await asyncio.sleep(0)
