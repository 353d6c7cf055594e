"""Consume over the wire: deliveries, acks, nacks, and the end of streams."""

import asyncio
from typing import Any

import grpc
import pytest

from millrace.v1 import channel_service_pb2 as pb
from tests.conftest import StartMillraced
from tests.rpc import TIMEOUT_SECONDS, Rpc, Stream, bodies_of, connected, refused, seconds, sequences_of

RUNS_REPLICATED = True


async def consume(rpc: Rpc, channel: str, **fields: Any) -> Stream:
    stream = Stream(rpc.channels.Consume(timeout=TIMEOUT_SECONDS))
    await stream.send(pb.ConsumeRequest(start=pb.ConsumeRequest.Start(channel=channel, **fields)))
    return stream


def ack(*delivery_ids: int) -> pb.ConsumeRequest:
    return pb.ConsumeRequest(ack=pb.ConsumeRequest.Ack(delivery_ids=delivery_ids))


def nack(*delivery_ids: int) -> pb.ConsumeRequest:
    return pb.ConsumeRequest(nack=pb.ConsumeRequest.Nack(delivery_ids=delivery_ids))


@pytest.mark.parametrize("in_columns", [False, True])
async def test_consume_delivers_what_is_there_and_what_comes(rpc: Rpc, *, in_columns: bool) -> None:
    """Deliveries are numbered from 1, contain events in order, and need no request."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a", b"b", b"c")
    stream = await consume(rpc, name, max_events=2, columns=in_columns)
    deliveries = [await stream.receive() for _ in range(2)]
    await rpc.append(name, b"d")
    deliveries.append(await stream.receive())
    assert [delivery.delivery_id for delivery in deliveries] == [1, 2, 3]
    assert [bodies_of(delivery.batches) for delivery in deliveries] == [[b"a", b"b"], [b"c"], [b"d"]]
    assert {batch.HasField("columns") for delivery in deliveries for batch in delivery.batches} == {in_columns}
    stream.cancel()


async def test_ack_removes_and_half_close_returns_the_rest(rpc: Rpc) -> None:
    """After half-close earlier acks take effect, nothing more is delivered, and the stream ends with OK."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a", b"b", b"c", b"d")
    stream = await consume(rpc, name, max_events=1, prefetch=3)
    for _ in range(3):
        await stream.receive()
    await stream.send(ack(1, 3))
    await stream.half_close()
    while await stream.receive() is not None:
        pass
    assert await rpc.peek(name) == [b"b", b"d"]
    channel = await rpc.look(name)
    assert (channel.gauges.taken_events, channel.gauges.open_transactions) == (0, 0)
    assert channel.counters.event_take_success_count == 2


async def test_ack_repeated_is_harmless(rpc: Rpc) -> None:
    """An ack or nack of a settled delivery is ignored."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a", b"b")
    stream = await consume(rpc, name, max_events=1)
    await stream.receive()
    await stream.receive()
    for message in (ack(1), ack(1, 1), nack(1), ack(2)):
        await stream.send(message)
    await rpc.until(name, taken_events=0)
    assert await rpc.peek(name) == []
    stream.cancel()


async def test_nack_returns_events_to_be_delivered_again(rpc: Rpc) -> None:
    """Returned events come again in a new delivery, before later ones."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a", b"b", b"c")
    stream = await consume(rpc, name, max_events=1, prefetch=1)
    assert bodies_of((await stream.receive()).batches) == [b"a"]
    await stream.send(nack(1))
    again = await stream.receive()
    assert (again.delivery_id, sequences_of(again.batches)) == (2, [1])
    stream.cancel()


async def test_prefetch_bounds_what_is_out(rpc: Rpc) -> None:
    """No more deliveries are open than prefetch allows."""
    name = await rpc.make_channel()
    await rpc.append(name, *[b"x"] * 20)
    stream = await consume(rpc, name, max_events=1, prefetch=4)
    for _ in range(4):
        await stream.receive()
    await rpc.append(name, b"y")
    assert (await rpc.look(name)).gauges.taken_events == 4
    await stream.send(ack(2, 3))
    for delivery_id in (5, 6):
        assert (await stream.receive()).delivery_id == delivery_id
    # Those that were acked count until the log has their removal.
    while (taken_count := (await rpc.look(name)).gauges.taken_events) > 4:
        pass
    assert taken_count == 4
    stream.cancel()


async def test_prefetch_absent_is_eight(rpc: Rpc) -> None:
    """By default a stream has at most 8 open deliveries."""
    name = await rpc.make_channel()
    await rpc.append(name, *[b"x"] * 20)
    stream = await consume(rpc, name, max_events=1)
    for _ in range(8):
        await stream.receive()
    await rpc.append(name, b"y")
    assert (await rpc.look(name)).gauges.taken_events == 8
    stream.cancel()


async def test_broken_stream_returns_its_events_at_once(rpc: Rpc) -> None:
    """Another consumer gets the events in order, without waiting for a lease."""
    name = await rpc.make_channel(lease=seconds(3600))
    await rpc.append(name, b"a", b"b", b"c")
    stream = await consume(rpc, name, max_events=1)
    for _ in range(3):
        await stream.receive()
    await stream.send(ack(2))
    await rpc.until(name, taken_events=2)
    stream.cancel()
    await rpc.until(name, taken_events=0, open_transactions=0)
    taken = await rpc.take(await rpc.begin(name))
    assert bodies_of(taken.batches) == [b"a", b"c"]


async def test_broken_connection_returns_its_events_at_once(start_millraced: StartMillraced) -> None:
    """The same if the whole connection is closed."""
    server = start_millraced("server.shutdown_grace_seconds = 0.0")
    async with connected(server.grpc) as rpc:
        name = await rpc.make_channel(lease=seconds(3600))
        await rpc.append(name, b"a", b"b")
        async with connected(server.grpc) as other:
            stream = await consume(other, name)
            assert bodies_of((await stream.receive()).batches) == [b"a", b"b"]
        await rpc.until(name, queued_events=2, open_transactions=0)


async def test_consume_when_the_channel_is_claimed_is_refused(rpc: Rpc) -> None:
    """A waiting stream is ended by a claim, with the reader's id; a new one is refused."""
    name = await rpc.make_channel()
    stream = await consume(rpc, name)
    await rpc.until(name, waiting_takes=1)
    await rpc.claim(name, "reader-1")
    for ended in (stream, await consume(rpc, name)):
        async with refused(grpc.StatusCode.FAILED_PRECONDITION, "CHANNEL_CLAIMED", "'reader-1'") as caught:
            await ended.receive()
        assert caught.refusal.retry_delay_seconds


async def test_consume_when_the_channel_is_deleted_is_refused(rpc: Rpc) -> None:
    """A waiting stream ends with CHANNEL_NOT_FOUND."""
    name = await rpc.make_channel()
    stream = await consume(rpc, name)
    await rpc.until(name, waiting_takes=1)
    await rpc.delete(name, force=True)
    async with refused(grpc.StatusCode.NOT_FOUND, "CHANNEL_NOT_FOUND", "deleted"):
        await stream.receive()


@pytest.mark.parametrize(
    ("messages", "code", "reason", "sentence"),
    [
        ([], grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "start: is missing"),
        ([ack(1)], grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "first message of a Consume stream must be start"),
        (
            ["start", "start"],
            grpc.StatusCode.INVALID_ARGUMENT,
            "BAD_ARGUMENT",
            "after start, only ack and nack are allowed",
        ),
        (["start", pb.ConsumeRequest()], grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "message: is None"),
        (["start", ack(0)], grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "ack.delivery_ids: holds 0"),
        (["start", nack(9)], grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "nack.delivery_ids: holds 9"),
    ],
)
async def test_consume_with_messages_out_of_place_is_refused(
    rpc: Rpc, messages: list[Any], code: grpc.StatusCode, reason: str, sentence: str
) -> None:
    """The stream ends with the reason, and its open deliveries return."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a")
    start = pb.ConsumeRequest(start=pb.ConsumeRequest.Start(channel=name))
    stream = Stream(rpc.channels.Consume(timeout=TIMEOUT_SECONDS))
    async with refused(code, reason, sentence):
        for message in messages:
            await stream.send(start if message == "start" else message)
        await stream.half_close()
        while await stream.receive() is not None:
            pass
    await rpc.until(name, queued_events=1, open_transactions=0)


async def test_consume_refused_while_a_delivery_is_sent_reports_it_each_time(rpc: Rpc) -> None:
    """The refusal arrives even if it coincides with the first delivery."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a")
    start = pb.ConsumeRequest(start=pb.ConsumeRequest.Start(channel=name))

    async def end_at_once() -> None:
        stream = Stream(rpc.channels.Consume(timeout=TIMEOUT_SECONDS))
        async with refused(
            grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "after start, only ack and nack are allowed"
        ):
            await stream.send(start)
            await stream.send(start)
            while await stream.receive() is not None:
                pass

    for _ in range(10):
        await asyncio.gather(*[end_at_once() for _ in range(20)])


async def test_consume_with_too_large_a_prefetch_is_refused(rpc: Rpc) -> None:
    """At most 1,000 deliveries may be open."""
    name = await rpc.make_channel()
    stream = await consume(rpc, name, prefetch=1001)
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "start.prefetch: is 1001; at most 1000"):
        await stream.receive()


async def test_consume_of_bytes_that_are_no_protobuf_is_refused(rpc: Rpc) -> None:
    """An unreadable first message ends the stream."""
    call: Any = rpc.connection.stream_stream("/millrace.v1.ChannelService/Consume")(timeout=TIMEOUT_SECONDS)
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "not a valid millrace.v1.ConsumeRequest"):
        await call.write(b"\xff\xff no protobuf")
        await call.read()
