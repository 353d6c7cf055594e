import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from millrace_server.network import Address, open_socket
from millrace_server.network.http_server import EmbeddedHttp, HttpLimits

WAIT_SECONDS_MAX = 10.0


class Guest:
    """A server whose one page answers when it is let."""

    def __init__(self, address: tuple[str, int], server: EmbeddedHttp) -> None:
        self.address = address
        self.server = server
        self.asked = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(sent)
        return reader, writer


Start = Callable[[HttpLimits], Awaitable[Guest]]

REQUEST = b"GET /page HTTP/1.1\r\nHost: mill\r\n\r\n"


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stopping:

        async def start_guest(limits: HttpLimits) -> Guest:
            async def page(_request: Request) -> PlainTextResponse:
                guest.asked.set()
                await guest.may_answer.wait()
                return PlainTextResponse("page")

            bound = await open_socket(Address("127.0.0.1", 0), "test")
            server = EmbeddedHttp(Starlette(routes=[Route("/page", page)]), limits)
            guest = Guest(bound.getsockname(), server)
            await server.start(bound)
            stopping.push_async_callback(server.stop)
            return guest

        yield start_guest


async def _end_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("sent", [b"", b"GET /page HTT"])
async def test_connection_without_a_whole_request_is_closed(start: Start, sent: bytes) -> None:
    """Nobody holds a connection by saying nothing, nor by sending a header letter by letter."""
    guest = await start(HttpLimits(10, idle_seconds_max=0.05))
    reader, writer = await guest.connect(sent)
    assert await _end_of(reader) == b""
    writer.close()


async def test_connection_between_requests_is_closed_after_a_while(start: Start) -> None:
    """The time begins anew with each answer, and then runs as before the first request."""
    guest = await start(HttpLimits(10, idle_seconds_max=0.2))
    guest.may_answer.set()
    reader, writer = await guest.connect(REQUEST)
    assert (await reader.readuntil(b"page")).startswith(b"HTTP/1.1 200 ")
    writer.write(REQUEST)
    assert (await reader.readuntil(b"page")).startswith(b"HTTP/1.1 200 ")
    writer.write(REQUEST[:10])
    assert await _end_of(reader) == b""
    writer.close()


async def test_answer_that_takes_longer_than_the_idle_time_comes(start: Start) -> None:
    """The time does not run while a request is being answered."""
    guest = await start(HttpLimits(10, idle_seconds_max=0.05))
    reader, writer = await guest.connect(REQUEST)
    await guest.asked.wait()
    await asyncio.sleep(0.1)
    guest.may_answer.set()
    answer = await reader.readuntil(b"page")
    assert b"connection: close" not in answer
    writer.close()


async def test_connections_above_the_limit_get_503_and_far_above_nothing(start: Start) -> None:
    """Who asks when too many do is told so; who comes when far too many are there is not even let in."""
    guest = await start(HttpLimits(2))
    opened = [await guest.connect() for _ in range(4)]
    reader, writer = opened[3]
    writer.write(REQUEST)
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 503 ")
    opened += [await guest.connect() for _ in range(2)]
    assert await _end_of(opened[5][0]) == b""
    for _, each in opened:
        each.close()


async def test_requests_that_are_broken_leave_no_line_in_the_log(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger cannot fill the log."""
    guest = await start(HttpLimits(10))
    with caplog.at_level(logging.WARNING):
        reader, writer = await guest.connect(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert (await _end_of(reader)).startswith(b"HTTP/1.1 400 ")
    writer.close()
    assert caplog.records == []


async def test_stop_with_a_request_in_work_lets_it_be_answered(start: Start) -> None:
    """The port is closed at once; who is being answered still gets the answer."""
    guest = await start(HttpLimits(10, closing_seconds_max=10))
    reader, writer = await guest.connect(REQUEST)
    await guest.asked.wait()
    stopping = asyncio.create_task(guest.server.stop())
    await asyncio.wait({stopping}, timeout=0.05)
    assert not stopping.done()
    guest.may_answer.set()
    assert (await _end_of(reader)).endswith(b"page")
    await asyncio.wait_for(stopping, WAIT_SECONDS_MAX)
    await asyncio.wait_for(guest.server.wait_ended(), WAIT_SECONDS_MAX)
    writer.close()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(guest.address):
        pytest.fail("the port is still open")
