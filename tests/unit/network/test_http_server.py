import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from millrace_server.network import Address, http_server, open_socket
from millrace_server.network.http_server import EmbeddedHttp, HttpLimits

pytestmark = pytest.mark.usefixtures("prompt_http_stop")

WAIT_SECONDS_MAX = 60.0


class OnePageServer:
    """A server with one page, which responds when the test lets it."""

    def __init__(self, address: tuple[str, int], server: EmbeddedHttp) -> None:
        self.address = address
        self.server = server
        self.asked = asyncio.Event()
        self.may_respond = asyncio.Event()
        self.page = "page"

    async def connect(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        writer.write(sent)
        return reader, writer

    async def respond_then_limit(self, idle_seconds_max: float) -> None:
        """Responds to the request that has arrived; connections then wait no longer than this for another one."""
        await self.asked.wait()
        self.server._server.config.limits = HttpLimits(10, idle_seconds_max=idle_seconds_max)
        self.may_respond.set()


Start = Callable[[HttpLimits], Awaitable[OnePageServer]]

REQUEST = b"GET /page HTTP/1.1\r\nHost: mill\r\n\r\n"


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    async with AsyncExitStack() as stopping:

        async def start_guest(limits: HttpLimits) -> OnePageServer:
            async def page(_request: Request) -> PlainTextResponse:
                page_server.asked.set()
                await page_server.may_respond.wait()
                return PlainTextResponse(page_server.page)

            bound = await open_socket(Address("127.0.0.1", 0), "test")
            server = EmbeddedHttp(Starlette(routes=[Route("/page", page)]), limits)
            page_server = OnePageServer(bound.getsockname(), server)
            await server.start(bound)
            stopping.push_async_callback(server.stop)
            return page_server

        yield start_guest


async def _end_of(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize("sent", [b"", b"GET /page HTT"])
async def test_connection_without_a_whole_request_is_closed(start: Start, sent: bytes) -> None:
    """Connections that send nothing, or a header byte by byte, are closed."""
    page_server = await start(HttpLimits(10, idle_seconds_max=0.05))
    reader, writer = await page_server.connect(sent)
    assert await _end_of(reader) == b""
    writer.close()


async def test_connection_that_drips_its_header_is_closed(start: Start) -> None:
    """Further bytes do not prolong the time, in the first request and in later ones."""
    page_server = await start(HttpLimits(10, idle_seconds_max=WAIT_SECONDS_MAX))
    for before in (REQUEST, b""):
        reader, writer = await page_server.connect(before)
        if before:
            await page_server.respond_then_limit(0.1)
            await reader.readuntil(b"page")
        ended = asyncio.create_task(_end_of(reader))
        with suppress(ConnectionError):
            while not ended.done():
                writer.write(b"G" if before else b"X")
                await asyncio.wait({ended}, timeout=0.02)
        assert await ended == b""
        writer.close()


async def test_connection_between_requests_is_closed_after_a_while(start: Start) -> None:
    """The idle time starts again with each response, and includes the time of the next request's header."""
    page_server = await start(HttpLimits(10, idle_seconds_max=WAIT_SECONDS_MAX))
    reader, writer = await page_server.connect(REQUEST)
    await page_server.respond_then_limit(WAIT_SECONDS_MAX)
    assert (await reader.readuntil(b"page")).startswith(b"HTTP/1.1 200 ")
    page_server.asked.clear()
    page_server.may_respond.clear()
    writer.write(REQUEST)
    await page_server.respond_then_limit(0.1)
    assert (await reader.readuntil(b"page")).startswith(b"HTTP/1.1 200 ")
    writer.write(REQUEST[:10])
    assert await _end_of(reader) == b""
    writer.close()


async def test_response_that_takes_longer_than_the_idle_time_comes(start: Start) -> None:
    """The idle time does not run while a request is being processed."""
    page_server = await start(HttpLimits(10, idle_seconds_max=WAIT_SECONDS_MAX))
    reader, writer = await page_server.connect(REQUEST)
    await page_server.asked.wait()
    [connection] = page_server.server._server.server_state.connections
    assert isinstance(connection, http_server._UvicornProtocol)
    assert connection._idle.cancelled()
    page_server.may_respond.set()
    response = await reader.readuntil(b"page")
    assert b"connection: close" not in response
    writer.close()


async def test_requests_above_the_limit_get_503_and_connections_far_above_none(start: Start) -> None:
    """Above the limit requests get 503; far above it, connections that only wait are closed."""
    page_server = await start(HttpLimits(2))
    busy = []
    for _ in range(2):
        page_server.asked.clear()
        busy.append(await page_server.connect(REQUEST))
        await page_server.asked.wait()
    halves = [await page_server.connect(REQUEST[:10]) for _ in range(2)]
    reader, writer = await page_server.connect(REQUEST)
    assert await _end_of(halves[0][0]) == b""
    assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 503 ")
    page_server.may_respond.set()
    for responded, _ in busy:
        await responded.readuntil(b"page")
    for _, each in (*busy, *halves, (reader, writer)):
        each.close()


async def test_connection_at_the_limit_closes_the_one_that_waited_longest(start: Start) -> None:
    """A complete request gets a response however many connections are half open; a request in progress continues."""
    page_server = await start(HttpLimits(3))
    busy = await page_server.connect(REQUEST)
    await page_server.asked.wait()
    halves = [await page_server.connect(REQUEST[:10])]
    halves.append(await page_server.connect(REQUEST[:10]))
    for round_number in range(5):
        halves.append(await page_server.connect(REQUEST[:10]))
        assert await _end_of(halves[round_number][0]) == b""
    reader, writer = await page_server.connect(REQUEST)
    page_server.may_respond.set()
    for responded in (reader, busy[0]):
        assert (await responded.readuntil(b"page")).startswith(b"HTTP/1.1 200 ")
    halves[-1][1].write(REQUEST[10:])
    assert (await halves[-1][0].readuntil(b"page")).startswith(b"HTTP/1.1 200 ")
    for _, each in (busy, (reader, writer), *halves):
        each.close()


async def test_client_that_does_not_read_its_responses_is_closed(start: Start) -> None:
    """Requests sent in advance do not hold a connection whose responses nobody reads."""
    page_server = await start(HttpLimits(10, idle_seconds_max=WAIT_SECONDS_MAX))
    page_server.page = "x" * (4 << 20)
    with socket.create_connection(page_server.address) as client:
        client.sendall(REQUEST * 3)
        await page_server.respond_then_limit(0.1)
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while page_server.server._server.server_state.connections:  # noqa: ASYNC110 - the client sees nothing of it
                await asyncio.sleep(0.01)


async def test_requests_that_are_broken_leave_no_line_in_the_log(
    start: Start, logged_here: Callable[[], list[str]]
) -> None:
    """Untrusted clients cannot fill the log."""
    page_server = await start(HttpLimits(10))
    reader, writer = await page_server.connect(b"\x16\x03\x01 nonsense\r\n\r\n")
    assert (await _end_of(reader)).startswith(b"HTTP/1.1 400 ")
    writer.close()
    assert logged_here() == []


async def test_stop_with_a_request_in_work_lets_it_complete(start: Start) -> None:
    """The port is closed at once; requests in progress still get their responses."""
    page_server = await start(HttpLimits(10, closing_seconds_max=10))
    reader, writer = await page_server.connect(REQUEST)
    await page_server.asked.wait()
    stopping = asyncio.create_task(page_server.server.stop())
    await asyncio.wait({stopping}, timeout=0.05)
    assert not stopping.done()
    page_server.may_respond.set()
    assert (await _end_of(reader)).endswith(b"page")
    await asyncio.wait_for(stopping, WAIT_SECONDS_MAX)
    await asyncio.wait_for(page_server.server.wait_ended(), WAIT_SECONDS_MAX)
    writer.close()
    with pytest.raises(ConnectionRefusedError), socket.create_connection(page_server.address):
        pytest.fail("the port is still open")
