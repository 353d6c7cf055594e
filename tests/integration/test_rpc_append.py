"""Append and AppendStream over the wire."""

from typing import Any

import grpc
import pytest

from millrace.googleapis import status_pb2
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from tests.rpc import TIMEOUT_SECONDS, Refusal, Rpc, Stream, columns, events, seconds

RUNS_REPLICATED = True

NO_KEEP_ALIVE = seconds(0)


def open_stream(rpc: Rpc) -> Stream:
    return Stream(rpc.channels.AppendStream(timeout=TIMEOUT_SECONDS))


def stamp(first: int, last: int) -> event_pb2.ProducerStamp:
    return event_pb2.ProducerStamp(producer_id="p", first_sequence=first, last_sequence=last)


def refusal_in(response: pb.AppendStreamResponse) -> Refusal:
    assert response.HasField("error")
    assert (response.first_sequence, response.last_sequence, response.deduplicated) == (0, 0, False)
    status: status_pb2.Status = response.error
    return Refusal.of_status(status)


@pytest.mark.parametrize("in_columns", [False, True])
async def test_append_stores_and_commits_at_once(rpc: Rpc, *, in_columns: bool) -> None:
    """Once the response comes, the events are stored under the sequences in it."""
    name = await rpc.make_channel()
    contents = {"columns": columns(b"a", b"b")} if in_columns else {"events": events(b"a", b"b")}
    responses = [await rpc.channels.Append(pb.AppendRequest(channel=name, **contents)) for _ in range(2)]
    assert [(response.first_sequence, response.last_sequence) for response in responses] == [(1, 2), (3, 4)]
    assert await rpc.peek(name) == [b"a", b"b", b"a", b"b"]


async def test_append_with_a_stamp_repeated_stores_nothing_twice(rpc: Rpc) -> None:
    """The response to a repeat says so, without sequences; an overlap stores the new events."""
    name = await rpc.make_channel()
    first = await rpc.append(name, b"a", b"b", stamp=stamp(10, 11))
    again = await rpc.append(name, b"a", b"b", stamp=stamp(10, 11))
    overlapping = await rpc.append(name, b"b", b"c", stamp=stamp(11, 12))
    assert [(it.first_sequence, it.last_sequence, it.deduplicated) for it in (first, again, overlapping)] == [
        (1, 2, False),
        (0, 0, True),
        (3, 3, True),
    ]
    assert (await rpc.look(name)).counters.deduplicated_count == 3


async def test_append_stream_responses_each_request_in_order(rpc: Rpc) -> None:
    """Many requests may be in progress, each with its channel and form; after half-close the rest gets a response."""
    first, second = await rpc.make_channel(), await rpc.make_channel()
    stream = open_stream(rpc)
    for number in range(20):
        name = (first, second)[number % 2]
        contents = {"columns": columns(b"%d" % number)} if number % 3 else {"events": events(b"%d" % number)}
        await stream.send(pb.AppendStreamRequest(channel=name, **contents))
    await stream.half_close()
    assert [response.first_sequence async for response in stream] == [number // 2 + 1 for number in range(20)]
    assert await rpc.peek(second) == [b"%d" % number for number in range(1, 20, 2)]


async def test_append_stream_after_an_error_goes_on(rpc: Rpc) -> None:
    """A refused request stores nothing, gets its response in order, and does not affect others."""
    name = await rpc.make_channel(capacity=2, keep_alive=NO_KEEP_ALIVE)
    stream = open_stream(rpc)
    for request in (
        pb.AppendStreamRequest(channel=name, events=events(b"a"), stamp=stamp(1, 1)),
        pb.AppendStreamRequest(channel="none", events=events(b"x")),
        pb.AppendStreamRequest(channel=name),
        pb.AppendStreamRequest(channel=name, events=events(b"x", b"x", b"x")),
        pb.AppendStreamRequest(channel=name, events=events(b"a"), stamp=stamp(1, 1)),
        pb.AppendStreamRequest(channel=name, events=events(b"x", b"x")),
        pb.AppendStreamRequest(channel=name, events=events(b"b")),
    ):
        await stream.send(request)
    await stream.half_close()
    responses = [response async for response in stream]
    assert [(response.first_sequence, response.deduplicated) for response in responses] == [
        (1, False),
        (0, False),
        (0, False),
        (0, False),
        (0, True),
        (0, False),
        (2, False),
    ]
    refusals = [refusal_in(responses[index]) for index in (1, 2, 3, 5)]
    assert [(refusal.code, refusal.reason) for refusal in refusals] == [
        (grpc.StatusCode.NOT_FOUND, "CHANNEL_NOT_FOUND"),
        (grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT"),
        (grpc.StatusCode.INVALID_ARGUMENT, "TXN_CAPACITY"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "CHANNEL_FULL"),
    ]
    assert refusals[0].metadata == {"channel": "none"}
    assert refusals[3].retry_delay_seconds
    assert await rpc.peek(name) == [b"a", b"b"]


async def test_append_stream_of_bytes_that_are_no_protobuf_responds_and_goes_on(rpc: Rpc) -> None:
    """Invalid bytes are one bad request, not the end of the stream."""
    name = await rpc.make_channel()
    method: Any = rpc.connection.stream_stream(
        "/millrace.v1.ChannelService/AppendStream", response_deserializer=pb.AppendStreamResponse.FromString
    )
    call = method(timeout=TIMEOUT_SECONDS)
    await call.write(b"\xff\xff no protobuf")
    await call.write(pb.AppendStreamRequest(channel=name, events=events(b"a")).SerializeToString())
    await call.done_writing()
    responses = [response async for response in call]
    assert refusal_in(responses[0]).reason == "BAD_ARGUMENT"
    assert responses[1].first_sequence == 1


async def test_append_stream_that_waits_for_space_responds_when_there_is_some(rpc: Rpc) -> None:
    """A full channel delays the requests of the stream in order, up to the keep-alive."""
    name = await rpc.make_channel(capacity=1, keep_alive=seconds(3600))
    stream = open_stream(rpc)
    for body in (b"a", b"b"):
        await stream.send(pb.AppendStreamRequest(channel=name, events=events(body)))
    assert (await stream.receive()).first_sequence == 1
    await rpc.until(name, waiting_commits=1)
    await rpc.purge(name)
    assert (await stream.receive()).first_sequence == 2
    await stream.half_close()
    assert await stream.receive() is None


async def test_append_stream_broken_off_while_it_waits_stores_nothing(rpc: Rpc) -> None:
    """A request whose caller is gone leaves the queue and has no effect."""
    name = await rpc.make_channel(capacity=1, keep_alive=seconds(3600))
    await rpc.append(name, b"a")
    stream = open_stream(rpc)
    await stream.send(pb.AppendStreamRequest(channel=name, events=events(b"lost")))
    await rpc.until(name, waiting_commits=1)
    stream.cancel()
    await rpc.until(name, waiting_commits=0)
    await rpc.purge(name)
    assert (await rpc.append(name, b"b")).first_sequence == 2
    assert await rpc.peek(name) == [b"b"]
