"""Malicious or broken callers: the server continues to serve the others."""

import asyncio
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from millrace.v1 import admin_service_pb2
from millrace.v1 import channel_service_pb2 as pb
from millrace_server.access.control import AccessControl
from millrace_server.access.settings import AuthSettings
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.grpc_services import guarded_handlers
from millrace_server.grpc_services import server as grpc_server
from millrace_server.grpc_services.server import STREAMS_MAX
from tests.conftest import StartMillraced
from tests.forward_targets import served
from tests.integration.raw_http2 import Frame, FrameKind, call_headers, raw_connection, reset
from tests.millraced import Millraced
from tests.process_figures import resident_bytes, thread_count
from tests.rpc import TIMEOUT_SECONDS, Rpc, connected, events

LIST_CHANNELS = "/millrace.v1.AdminService/ListChannels"
PING, GOAWAY = FrameKind.PING, FrameKind.GOAWAY
ENHANCE_YOUR_CALM = 11
MIB = 1 << 20
WAIT_SECONDS = 60.0


@contextmanager
def files_max(count: int) -> Iterator[None]:
    """Limits the number of open files of processes that are started in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def registry() -> ChannelRegistry:
    return ChannelRegistry(message_bytes_max=MIB, open_transactions_max=10)


async def outlast(address: str, preface: bytes) -> None:
    """Connects, sends the preface, and waits until the server closes the connection."""
    async with raw_connection(address, preface) as silent:
        await silent.receive_all()


async def test_rapid_reset_is_survived(shared_server: Millraced, rpc: Rpc) -> None:
    """20,000 calls that are cancelled at once cost little memory and no thread, and others are served meanwhile."""
    pid = shared_server.process.pid
    name = await rpc.make_channel()
    before, threads = resident_bytes(pid), thread_count(pid)
    async with raw_connection(shared_server.grpc) as abuser:
        for hundred in range(200):
            streams = range(200 * hundred + 1, 200 * hundred + 201, 2)
            await abuser.send(
                *(frame for number in streams for frame in (call_headers(number, LIST_CHANNELS), reset(number)))
            )
        assert (await rpc.append(name, b"a")).first_sequence == 1
    assert resident_bytes(pid) - before < 128 * MIB
    assert thread_count(pid) <= threads + 2
    assert shared_server.faults == []


async def test_ping_flood_is_ended(shared_server: Millraced, rpc: Rpc) -> None:
    """A connection that only sends pings is closed with GOAWAY, too_many_pings."""
    async with raw_connection(shared_server.grpc) as abuser:
        goaway = None
        while goaway is None:
            await abuser.send(Frame(PING, 0, 0, bytes(8)))
            while (response := await abuser.receive()) is not None and response.kind not in {PING, GOAWAY}:
                pass
            assert response is not None
            goaway = response if response.kind == GOAWAY else None
        assert int.from_bytes(goaway.payload[4:8], "big") == ENHANCE_YOUR_CALM
        assert b"too_many_pings" in goaway.payload
        assert await abuser.receive_kind(GOAWAY) is None
    await rpc.make_channel()


_CALL = call_headers(1, LIST_CHANNELS)
_FLOODS = {
    "settings": [Frame(FrameKind.SETTINGS, 0, 0, b"")],
    "changed settings": [Frame(FrameKind.SETTINGS, 0, 0, b"\0\3" + bytes([0, 0, 0, n])) for n in (1, 9)],
    "window updates": [Frame(FrameKind.WINDOW_UPDATE, 0, 0, b"\0\0\0\1")],
    "empty messages": [_CALL, Frame(FrameKind.DATA, 0, 1, b"")],
    "empty continuations": [replace(_CALL, flags=0), Frame(FrameKind.CONTINUATION, 0, 1, b"")],
    "continuations": [replace(_CALL, flags=0), Frame(FrameKind.CONTINUATION, 0, 1, b"\0\x01x\x7e" + b"x" * 126)],
    "unknown frames": [Frame(99, 0, 0, bytes(100))],
}


@pytest.mark.parametrize("flood", _FLOODS.values(), ids=_FLOODS)
async def test_flood_of_frames_costs_no_memory(shared_server: Millraced, rpc: Rpc, flood: list[Frame]) -> None:
    """100,000 frames that require the server to act get responses, are ignored or end the connection."""
    pid = shared_server.process.pid
    name = await rpc.make_channel()
    before = resident_bytes(pid)
    async with raw_connection(shared_server.grpc) as abuser:
        try:
            async with asyncio.timeout(1):
                await abuser.send(*flood)
                for _ in range(100):
                    await abuser.send(*flood[-1:] * 1_000)
        except (ConnectionError, TimeoutError):
            # The server has ended the connection, or reads no more until its responses are read.
            pass
        assert (await rpc.append(name, b"a")).first_sequence == 1
    assert resident_bytes(pid) - before < 64 * MIB
    assert shared_server.faults == []


async def test_calls_whose_request_never_comes_leave_others_their_slots(shared_server: Millraced, rpc: Rpc) -> None:
    """A connection full of calls without messages costs some kilobytes per call, and does not affect other calls."""
    before = resident_bytes(shared_server.process.pid)
    half_a_message = b"\0" + MIB.to_bytes(4, "big")
    async with raw_connection(shared_server.grpc) as abuser:
        for number in range(1, 2 * STREAMS_MAX, 2):
            await abuser.send(call_headers(number, LIST_CHANNELS), Frame(FrameKind.DATA, 0, number, half_a_message))
        # One more is refused, so all the others have been accepted.
        await abuser.send(call_headers(2 * STREAMS_MAX + 1, LIST_CHANNELS))
        refused = await abuser.receive_kind(FrameKind.RST_STREAM)
        assert refused is not None
        assert refused.stream == 2 * STREAMS_MAX + 1
        name = await rpc.make_channel()
        assert (await rpc.append(name, b"a")).first_sequence == 1
        assert resident_bytes(shared_server.process.pid) - before < STREAMS_MAX * 32 * 1024
    assert shared_server.faults == []


@pytest.fixture
async def closed_server(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """The address of a server on which everybody is a stranger, whose probes may take this long to arrive."""
    monkeypatch.setattr(guarded_handlers, "_UNAUTHENTICATED_SECONDS", getattr(request, "param", WAIT_SECONDS))
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    access = AccessControl(AuthSettings(tokens_file=tokens), {}, {})
    async with served(registry(), tmp_path, access) as address, asyncio.timeout(WAIT_SECONDS):
        yield address


@pytest.mark.parametrize("service", ["ChannelService/Append", "ChannelService/AppendStream", "AdminService/PeekEvents"])
async def test_unauthenticated_requests_are_refused_before_they_come(closed_server: str, service: str) -> None:
    """The server keeps nothing of a message without a token, however much of it there is."""
    async with raw_connection(closed_server) as abuser:
        for number in range(1, 101, 2):
            head = call_headers(number, f"/millrace.v1.{service}")
            await abuser.send(head, Frame(FrameKind.DATA, 0, number, b"\0" + MIB.to_bytes(4, "big") + bytes(1_000)))
            response = await abuser.receive_kind(FrameKind.HEADERS)
            while response is not None and b"grpc-status" not in response.payload:
                response = await abuser.receive_kind(FrameKind.HEADERS)
            assert response is not None
            assert response.stream == number


@pytest.mark.parametrize("closed_server", [0.1], indirect=True)
async def test_unauthenticated_health_probes_have_requests_that_come_at_once(closed_server: str) -> None:
    """Half a request is refused after a while."""
    async with raw_connection(closed_server) as abuser:
        half = Frame(FrameKind.DATA, 0, 1, b"\0" + MIB.to_bytes(4, "big"))
        await abuser.send(call_headers(1, "/grpc.health.v1.Health/Check"), half)
        response = await abuser.receive_kind(FrameKind.HEADERS)
        assert response is not None
        assert b"grpc-status\x014" in response.payload


async def test_unauthenticated_health_watches_are_few(closed_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More watches than there may be are refused; checks do not count."""
    monkeypatch.setattr(guarded_handlers, "_OPEN_STREAMS_MAX", 1)
    async with aio.insecure_channel(closed_server) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        asked = health_pb2.HealthCheckRequest()
        for _ in range(3):
            assert (await health.Check(asked)).status == health_pb2.HealthCheckResponse.SERVING
        watched = health.Watch(asked)
        assert (await watched.read()).status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(aio.AioRpcError, match="too many watches without a token"):
            await health.Watch(asked).read()
        watched.cancel()


async def test_message_declared_huge_is_refused_at_once(shared_server: Millraced) -> None:
    """The server neither waits for four gigabytes nor reserves memory for them."""
    async with raw_connection(shared_server.grpc) as abuser:
        await abuser.send(call_headers(1, LIST_CHANNELS), Frame(FrameKind.DATA, 0, 1, b"\0\xff\xff\xff\xff"))
        response = await abuser.receive_kind(FrameKind.HEADERS)
        assert response is not None
        assert b"grpc-status\x018" in response.payload


async def test_connections_that_do_not_begin_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections without a complete HTTP/2 preface are closed within the handshake's time."""
    assert grpc_server.HANDSHAKE_SECONDS <= 15
    monkeypatch.setattr(grpc_server, "HANDSHAKE_SECONDS", 0.2)
    async with served(registry(), tmp_path) as address, asyncio.timeout(WAIT_SECONDS):
        await asyncio.gather(outlast(address, b""), outlast(address, b"PRI * HTTP/2.0\r\n"))


async def test_connections_that_begin_with_nonsense_are_closed_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time for a handshake does not matter."""
    monkeypatch.setattr(grpc_server, "HANDSHAKE_SECONDS", 3_600.0)
    async with served(registry(), tmp_path) as address, asyncio.timeout(WAIT_SECONDS):
        await outlast(address, b"GET / HTTP/1.1\r\n\r\n")


async def test_streams_cancelled_while_they_are_written_are_no_faults(shared_server: Millraced, rpc: Rpc) -> None:
    """Readers that leave in the middle of large responses cause no log entry and leave no transaction open."""
    name = await rpc.make_channel(capacity=10_000, byte_capacity=1 << 30)
    for _ in range(20):
        await rpc.append(name, bytes(MIB))
    async with connected(shared_server.grpc) as leaver:
        for number in range(60):
            start = pb.ConsumeRequest(start=pb.ConsumeRequest.Start(channel=name, max_events=1, prefetch=20))
            consumed = leaver.channels.Consume(timeout=TIMEOUT_SECONDS)
            await consumed.write(start)
            peeked = leaver.admin.PeekEvents(admin_service_pb2.PeekEventsRequest(channel=name, max_events=20))
            watched = leaver.admin.WatchChannels(admin_service_pb2.WatchChannelsRequest())
            appended = leaver.channels.AppendStream(timeout=TIMEOUT_SECONDS)
            await appended.write(pb.AppendStreamRequest(channel="none", events=events(b"a")))
            for call in (consumed, peeked, watched, appended)[: number % 4 + 1]:
                await call.read()
            for call in (consumed, peeked, watched, appended):
                call.cancel()
    await rpc.until(name, open_transactions=0, queued_events=20)
    assert shared_server.faults == []


async def test_connections_beyond_the_limit_are_closed(start_millraced: StartMillraced) -> None:
    """The limit is slightly below the number of files that the process may open; existing connections continue."""
    with files_max(256):
        server = start_millraced()
    async with connected(server.grpc) as rpc, AsyncExitStack() as idle:
        name = await rpc.make_channel()
        for _ in range(200):
            await idle.enter_async_context(raw_connection(server.grpc))
        async with connected(server.grpc) as late:
            with pytest.raises(aio.AioRpcError) as raised:
                await late.append(name, b"a")
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        assert (await rpc.append(name, b"a")).first_sequence == 1
        await rpc.make_channel()
