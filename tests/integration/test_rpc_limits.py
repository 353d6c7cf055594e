"""The limits of memory: the sizes of messages and metadata, and the bytes of requests in progress."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import grpc
import pytest
from grpc import aio

from millrace.v1 import admin_service_pb2, event_pb2
from millrace.v1 import channel_service_pb2 as pb
from tests.conftest import StartMillraced
from tests.millraced import Millraced
from tests.process_figures import resident_bytes
from tests.rpc import NO_WAIT, TIMEOUT_SECONDS, Rpc, Stream, bodies_of, columns, connected, refused, seconds

KIB = 1024
MIB = 1024 * KIB
MESSAGE_BYTES_MAX = 64 * KIB
CONFIG_TOML = f"""
[server]
message_bytes_max = {MESSAGE_BYTES_MAX}
shutdown_grace_seconds = 0.0
"""
SERVICE = "/millrace.v1.ChannelService"
ADMIN = "/millrace.v1.AdminService"


@pytest.fixture
def small_server(start_millraced: StartMillraced) -> Millraced:
    """A server with small limits for messages."""
    return start_millraced(CONFIG_TOML)


@pytest.fixture
async def rpc(small_server: Millraced) -> AsyncGenerator[Rpc]:
    async with connected(small_server.grpc) as connection:
        yield connection


def many_small() -> list[event_pb2.EventColumns]:
    return [columns(*[b"body"] * 1000, host="web-1") for _ in range(5)]


def few_large() -> list[event_pb2.EventColumns]:
    return [columns(bytes(30 * KIB), b"", bytes(20 * KIB)) for _ in range(5)]


def one_large_header_for_all() -> list[event_pb2.EventColumns]:
    """A header with a few bytes per event in columns, and kilobytes in rows."""
    return [columns(*[b"x"] * 500, key="v" * 9 * KIB)]


def many_headers() -> list[event_pb2.EventColumns]:
    return [columns(*[b"x"] * 3, **{f"key-{number}": "v" * 20 for number in range(256)}) for _ in range(6)]


def sparse_headers() -> list[event_pb2.EventColumns]:
    headers = [
        event_pb2.HeaderColumn(
            key=f"k{number}", sizes=[2 if index == number else 0 for index in range(100)], values=b"v"
        )
        for number in range(100)
    ]
    return [event_pb2.EventColumns(count=100, body_sizes=[1] * 100, bodies=b"x" * 100, headers=headers)] * 5


CONTENTS = [many_small, few_large, one_large_header_for_all, many_headers, sparse_headers]


async def unary(rpc: Rpc, method: str, request: Any) -> bytes:
    call: Any = rpc.connection.unary_unary(f"{SERVICE}/{method}")
    response: bytes = await call(request.SerializeToString(), timeout=TIMEOUT_SECONDS)
    return response


async def taken(rpc: Rpc, name: str, *, in_columns: bool) -> AsyncIterator[bytes]:
    txn_id = await rpc.begin(name)
    while True:
        response = await unary(rpc, "Take", pb.TakeRequest(txn_id=txn_id, wait=NO_WAIT, columns=in_columns))
        if not pb.TakeResponse.FromString(response).batches:
            await rpc.rollback(txn_id)
            return
        yield response


async def consumed(rpc: Rpc, name: str, *, in_columns: bool) -> AsyncIterator[bytes]:
    method: Any = rpc.connection.stream_stream(f"{SERVICE}/Consume")
    stream = method(timeout=TIMEOUT_SECONDS)
    start = pb.ConsumeRequest.Start(channel=name, columns=in_columns, prefetch=1000)
    await stream.write(pb.ConsumeRequest(start=start).SerializeToString())
    left = (await rpc.look(name)).gauges
    left_count = left.queued_events + left.taken_events
    while left_count:
        response = await stream.read()
        yield response
        left_count -= count_of(pb.ConsumeResponse.FromString(response).batches)
    stream.cancel()
    await rpc.until(name, taken_events=0)


async def read(rpc: Rpc, name: str, *, in_columns: bool) -> AsyncIterator[bytes]:
    await rpc.claim(name, "reader")
    method: Any = rpc.connection.unary_stream(f"{SERVICE}/Read")
    request = pb.ReadRequest(channel=name, reader_id="reader", columns=in_columns)
    async for response in method(request.SerializeToString(), timeout=TIMEOUT_SECONDS):
        yield response
    await rpc.channels.Release(pb.ReleaseRequest(channel=name, reader_id="reader"))


async def peeked(rpc: Rpc, name: str, *, in_columns: bool) -> AsyncIterator[bytes]:
    method: Any = rpc.connection.unary_stream(f"{ADMIN}/PeekEvents")
    request = admin_service_pb2.PeekEventsRequest(channel=name, max_events=1_000_000, columns=in_columns)
    async for response in method(request.SerializeToString(), timeout=TIMEOUT_SECONDS):
        yield response


def count_of(batches: Any) -> int:
    return sum(batch.columns.count or len(batch.events) for batch in batches)


def batches_in(kind: Any, responses: list[bytes]) -> list[event_pb2.EventBatch]:
    parsed = [kind.FromString(response) for response in responses]
    return [
        batch
        for response in parsed
        for batch in (response.batches if hasattr(response, "batches") else [response.batch])
    ]


@pytest.mark.parametrize("contents", CONTENTS)
async def test_responses_never_exceed_the_message_limit(rpc: Rpc, contents: Any) -> None:
    """Every stored event is returned by every call, in messages within the limit."""
    name = await rpc.make_channel(capacity=100_000, transaction_capacity=100_000)
    stored = contents()
    for batch in stored:
        await rpc.channels.Append(pb.AppendRequest(channel=name, columns=batch))
    expected = [(1, sum(batch.count for batch in stored))]
    for in_columns in (False, True):
        for kind, responding in (
            (pb.TakeResponse, taken),
            (pb.ConsumeResponse, consumed),
            (pb.ReadResponse, read),
            (admin_service_pb2.PeekEventsResponse, peeked),
        ):
            responses = [response async for response in responding(rpc, name, in_columns=in_columns)]
            assert max(map(len, responses)) <= MESSAGE_BYTES_MAX, (kind, in_columns)
            batches = batches_in(kind, responses)
            ends = [(batch.first_sequence, batch.first_sequence + count_of([batch]) - 1) for batch in batches]
            assert [last + 1 for _, last in ends[:-1]] == [first for first, _ in ends[1:]]
            assert [(ends[0][0], ends[-1][1])] == expected


async def test_event_that_would_not_fit_an_response_is_refused(rpc: Rpc) -> None:
    """The largest body that is accepted can be fetched in both forms."""
    name = await rpc.make_channel(byte_capacity=1 << 30)
    low, high = 1, MESSAGE_BYTES_MAX - 64
    async with refused(
        grpc.StatusCode.INVALID_ARGUMENT, "EVENT_TOO_LARGE", r"events\[0\]: .* would not fit into a response"
    ):
        await rpc.append(name, bytes(high))
    while low < high:
        middle = (low + high + 1) // 2
        try:
            await rpc.append(name, bytes(middle))
        except aio.AioRpcError:
            high = middle - 1
        else:
            low = middle
        await rpc.purge(name)
    assert low > MESSAGE_BYTES_MAX * 0.7
    await rpc.append(name, bytes(low))
    for in_columns in (False, True):
        txn_id = await rpc.begin(name)
        assert [len(body) for body in bodies_of((await rpc.take(txn_id, columns=in_columns)).batches)] == [low]
        await rpc.rollback(txn_id)


async def test_message_above_the_limit_is_refused_by_grpc(rpc: Rpc) -> None:
    """The status is RESOURCE_EXHAUSTED without a handler; the connection and the channel continue."""
    name = await rpc.make_channel()
    async with rpc.unchanged(name):
        with pytest.raises(aio.AioRpcError) as raised:
            await rpc.append(name, bytes(MESSAGE_BYTES_MAX))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in (raised.value.details() or "")


async def test_compressed_message_above_the_limit_is_refused_by_grpc(rpc: Rpc) -> None:
    """The size after decompression counts, and a compressed bomb is not inflated."""
    name = await rpc.make_channel()
    request = pb.AppendRequest(channel=name, events=[event_pb2.Event(body=bytes(50 * MIB))])
    with pytest.raises(aio.AioRpcError) as raised:
        await rpc.channels.Append(request, timeout=TIMEOUT_SECONDS, compression=grpc.Compression.Gzip)
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    request = pb.AppendRequest(channel=name, events=[event_pb2.Event(body=bytes(10_000))])
    response = await rpc.channels.Append(request, timeout=TIMEOUT_SECONDS, compression=grpc.Compression.Gzip)
    assert response.first_sequence == 1


@pytest.mark.parametrize("value_bytes", [15_000, 16_384, 100_000])
async def test_metadata_above_16_kib_is_refused_by_grpc(rpc: Rpc, value_bytes: int) -> None:
    """Smaller metadata is accepted."""
    call = rpc.admin.ListChannels(
        admin_service_pb2.ListChannelsRequest(), metadata=(("x-test", "v" * value_bytes),), timeout=TIMEOUT_SECONDS
    )
    if value_bytes < 16_000:
        assert list((await call).channels) == []
        return
    with pytest.raises(aio.AioRpcError) as raised:
        await call
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_refused_requests_are_not_kept(start_millraced: StartMillraced) -> None:
    """The memory of refused requests is freed with the response, not by a later garbage collection."""
    server = start_millraced("server.shutdown_grace_seconds = 0.0")
    pid = server.process.pid
    large = pb.AppendRequest(events=[event_pb2.Event(body=bytes(20 * MIB))])
    async with connected(server.grpc) as rpc:
        large.channel = await rpc.make_channel(byte_capacity=MIB)
        stream = Stream(rpc.channels.AppendStream(timeout=TIMEOUT_SECONDS))
        streamed = pb.AppendStreamRequest.FromString(large.SerializeToString())
        before = resident_bytes(pid)
        for _ in range(6):
            async with refused(grpc.StatusCode.INVALID_ARGUMENT, "EVENT_TOO_LARGE"):
                await rpc.channels.Append(large, timeout=TIMEOUT_SECONDS)
            await stream.send(streamed)
            assert (await stream.receive()).error.message.startswith("events: a body has 20971520 bytes")
        # gRPC keeps some buffers, about as much as was in progress at the same time.
        assert resident_bytes(pid) - before < 200 * MIB
        stream.cancel()


async def waiting_appends(rpc: Rpc, name: str, count: int) -> list["asyncio.Task[pb.AppendResponse]"]:
    """Appends of almost a whole message each, to a channel without space."""
    before = (await rpc.look(name)).gauges.waiting_commits
    appends = [asyncio.ensure_future(rpc.append(name, bytes(40 * KIB))) for _ in range(count)]
    await rpc.until(name, waiting_commits=before + count)
    return appends


async def test_requests_in_work_are_bounded_for_each_connection(small_server: Millraced, rpc: Rpc) -> None:
    """One connection may have two messages in progress; more get OVERLOADED, and others are not affected."""
    name = await rpc.make_channel(capacity=1, keep_alive=seconds(3600))
    await rpc.append(name, b"full")
    appends = await waiting_appends(rpc, name, 3)
    async with rpc.unchanged(name), refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", "this conn") as caught:
        await rpc.append(name, bytes(40 * KIB))
    assert caught.refusal.retry_delay_seconds
    async with connected(small_server.grpc) as other:
        appends += await waiting_appends(other, name, 1)
        for _ in appends:
            await rpc.purge(name)
            await asyncio.wait(appends, return_when=asyncio.FIRST_COMPLETED)
            appends = [append for append in appends if not append.done()]
        assert appends == []
    # The requests in progress have ended, and their bytes are free again.
    await rpc.purge(name)
    assert (await rpc.append(name, bytes(40 * KIB))).first_sequence == 6


async def test_requests_in_work_are_bounded_in_all(small_server: Millraced, rpc: Rpc) -> None:
    """All connections together may have eight messages in progress; small calls are still accepted."""
    name = await rpc.make_channel(capacity=1, keep_alive=seconds(3600))
    await rpc.append(name, b"full")
    async with AsyncExitStack() as connections:
        others = [await connections.enter_async_context(connected(small_server.grpc)) for _ in range(5)]
        appends = [append for other in others[:4] for append in await waiting_appends(other, name, 3)]
        async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", "the server that are in progress"):
            await others[4].append(name, bytes(40 * KIB))
        assert (await rpc.look(name)).gauges.waiting_commits == 12
        for append in appends:
            append.cancel()
        await rpc.until(name, waiting_commits=0)
        await rpc.purge(name)
        assert (await others[4].append(name, bytes(40 * KIB))).first_sequence == 2
