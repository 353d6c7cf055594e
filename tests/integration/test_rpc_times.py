"""The times of commits on the wire, and what is found by them."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from millrace.v1 import admin_service_pb2, event_pb2
from millrace.v1 import channel_service_pb2 as pb
from millrace_server.grpc_services.messages import duration_of
from tests.rpc import NO_WAIT, TIMEOUT_SECONDS, Rpc, events, refused


async def append(rpc: Rpc, channel: str, *bodies: bytes) -> Timestamp:
    """Appends events; returns the time of their commit."""
    request = pb.AppendRequest(channel=channel, events=events(*bodies))
    response: pb.AppendResponse = await rpc.channels.Append(request, timeout=TIMEOUT_SECONDS)
    return response.commit_time


async def find(rpc: Rpc, channel: str, time: Timestamp) -> pb.FindSequenceResponse:
    request = pb.FindSequenceRequest(channel=channel, time=time)
    found: pb.FindSequenceResponse = await rpc.channels.FindSequence(request, timeout=TIMEOUT_SECONDS)
    return found


def micros(time: Timestamp) -> int:
    assert time.nanos % 1000 == 0
    return time.ToMicroseconds()


def later(time: Timestamp, nanos: int) -> Timestamp:
    moved = Timestamp()
    moved.FromNanoseconds(time.ToNanoseconds() + nanos)
    return moved


def times_in(batches: Iterable[event_pb2.EventBatch]) -> list[int]:
    """The time of each event in microseconds."""
    times: list[int] = []
    for batch in batches:
        count = batch.columns.count or len(batch.events)
        assert len(batch.commit_offsets) in {0, count}
        times += [micros(batch.commit_time) + offset for offset in batch.commit_offsets or [0] * count]
    return times


async def peek(rpc: Rpc, channel: str, **fields: Any) -> list[event_pb2.EventBatch]:
    request = admin_service_pb2.PeekEventsRequest(channel=channel, max_events=100, **fields)
    return [response.batch async for response in rpc.admin.PeekEvents(request, timeout=TIMEOUT_SECONDS)]


@pytest.fixture(params=["memory", "file"])
async def channel(rpc: Rpc, request: pytest.FixtureRequest) -> str:
    """A channel, in which file channels keep single events as runs."""
    kind = getattr(admin_service_pb2, f"CHANNEL_TYPE_{request.param.upper()}")
    return await rpc.make_channel(type=kind, min_free_bytes=0 if request.param == "file" else None)


@pytest.mark.parametrize("columns", [True, False], ids=["columns", "rows"])
async def test_events_have_the_time_of_their_commit_in_every_response(rpc: Rpc, channel: str, *, columns: bool) -> None:
    """This includes single events, many of which are one batch, and parts of batches."""
    expected = [micros(await append(rpc, channel, b"x")) for _ in range(5)]
    expected += [micros(await append(rpc, channel, b"a", b"b"))] * 2
    assert all(one <= other for one, other in pairwise(expected))
    assert times_in(await peek(rpc, channel, columns=columns)) == expected
    assert times_in(await peek(rpc, channel, columns=columns, from_sequence=3)) == expected[2:]
    txn_id = await rpc.begin(channel)
    taken = [await rpc.take(txn_id, max_events=3, columns=columns) for _ in range(2)]
    assert times_in([batch for response in taken for batch in response.batches]) == expected[:6]
    await rpc.rollback(txn_id)
    start = pb.ConsumeRequest.Start(channel=channel, columns=columns)
    stream = rpc.channels.Consume(timeout=TIMEOUT_SECONDS)
    await stream.write(pb.ConsumeRequest(start=start))
    assert times_in((await stream.read()).batches) == expected
    stream.cancel()
    await rpc.until(channel, taken_events=0)
    await rpc.channels.Claim(pb.ClaimRequest(channel=channel, reader_id="r"), timeout=TIMEOUT_SECONDS)
    request = pb.ReadRequest(channel=channel, reader_id="r", from_sequence=2, columns=columns)
    read = [response.batch async for response in rpc.channels.Read(request, timeout=TIMEOUT_SECONDS)]
    assert times_in(read) == expected[1:]


async def test_response_of_a_stream_and_of_a_commit_have_the_time(rpc: Rpc, channel: str) -> None:
    """An append that was dropped as a repeat has none; a commit of takes has its own."""
    stamp = event_pb2.ProducerStamp(producer_id="p", first_sequence=1, last_sequence=1)
    stream = rpc.channels.AppendStream(timeout=TIMEOUT_SECONDS)
    responses = []
    for _ in range(2):
        await stream.write(pb.AppendStreamRequest(channel=channel, events=events(b"a"), stamp=stamp))
        responses.append(await stream.read())
    await stream.done_writing()
    assert [response.HasField("commit_time") for response in responses] == [True, False]
    txn_id = await rpc.begin(channel)
    await rpc.take(txn_id)
    response = await rpc.commit(txn_id)
    assert micros(response.commit_time) >= micros(responses[0].commit_time)
    assert await rpc.commit(txn_id) == response


async def test_find_sequence_returns_the_first_event_since(rpc: Rpc, channel: str) -> None:
    """A time between two microseconds is rounded up; taken events count, and removed ones do not."""
    first, second = await append(rpc, channel, b"a"), await append(rpc, channel, b"b", b"c")
    assert await find(rpc, channel, first) == pb.FindSequenceResponse(sequence=1, commit_time=first)
    assert await find(rpc, channel, Timestamp()) == pb.FindSequenceResponse(sequence=1, commit_time=first)
    assert await find(rpc, channel, later(first, 1)) == pb.FindSequenceResponse(sequence=2, commit_time=second)
    assert await find(rpc, channel, second) == pb.FindSequenceResponse(sequence=2, commit_time=second)
    assert await find(rpc, channel, later(second, 1)) == pb.FindSequenceResponse(sequence=4)
    txn_id = await rpc.begin(channel)
    await rpc.take(txn_id, max_events=2)
    assert (await find(rpc, channel, first)).sequence == 1
    await rpc.commit(txn_id)
    assert (await find(rpc, channel, first)).sequence == 3


async def test_find_sequence_without_a_proper_time_is_refused(rpc: Rpc, channel: str) -> None:
    """The error names the field."""
    for request in (
        pb.FindSequenceRequest(channel=channel),
        pb.FindSequenceRequest(channel=channel, time=Timestamp(nanos=-1)),
    ):
        async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "time: "):
            await rpc.channels.FindSequence(request, timeout=TIMEOUT_SECONDS)


async def test_peek_from_a_time_shows_what_was_committed_since(rpc: Rpc, channel: str) -> None:
    """Together with a sequence it is refused; with `follow` later commits come too."""
    first, second = await append(rpc, channel, b"a"), await append(rpc, channel, b"b")
    assert times_in(await peek(rpc, channel, from_time=first)) == [micros(first), micros(second)]
    assert times_in(await peek(rpc, channel, from_time=second)) == [micros(second)]
    assert await peek(rpc, channel, from_time=later(second, 1)) == []
    request = admin_service_pb2.PeekEventsRequest(channel=channel, from_time=second, from_sequence=1)
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "from_sequence"):
        await rpc.admin.PeekEvents(request, timeout=TIMEOUT_SECONDS).read()
    request = admin_service_pb2.PeekEventsRequest(channel=channel, from_time=second, follow=True)
    following = rpc.admin.PeekEvents(request, timeout=TIMEOUT_SECONDS)
    assert (await following.read()).batch.first_sequence == 2
    third = await append(rpc, channel, b"c")
    assert (await following.read()).batch.commit_time == third
    following.cancel()


async def test_gauges_say_when_the_channel_was_used(rpc: Rpc, channel: str) -> None:
    """Of a channel that nobody has used they are absent."""
    times = ("oldest_commit_time", "last_put_time", "last_take_time")
    gauges = (await rpc.look(channel)).gauges
    assert not any(gauges.HasField(time) for time in times)
    first, second = await append(rpc, channel, b"a"), await append(rpc, channel, b"b")
    gauges = (await rpc.look(channel)).gauges
    assert (gauges.oldest_commit_time, gauges.last_put_time) == (first, second)
    assert not gauges.HasField("last_take_time")
    txn_id = await rpc.begin(channel)
    await rpc.take(txn_id, max_events=1, wait=NO_WAIT)
    gauges = (await rpc.look(channel)).gauges
    assert gauges.oldest_commit_time == first
    assert micros(gauges.last_take_time) >= micros(second)
    await rpc.commit(txn_id)
    assert (await rpc.look(channel)).gauges.oldest_commit_time == second


async def test_retention_removes_what_is_older_and_can_be_changed(rpc: Rpc, channel: str) -> None:
    """It is one of the channel's limits, also for longer than leases may last, and zero means none."""
    await append(rpc, channel, b"a")
    for seconds, shown in ((0.25, 0.25), (7 * 86_400.0, 7 * 86_400.0), (0.0, None)):
        config = admin_service_pb2.ChannelConfig(retention=duration_of(seconds))
        request = admin_service_pb2.UpdateChannelRequest(name=channel, config=config)
        response = await rpc.admin.UpdateChannel(request, timeout=TIMEOUT_SECONDS)
        kept = response.channel.config
        assert (kept.retention.ToTimedelta().total_seconds() if kept.HasField("retention") else None) == shown
        if shown == 0.25:
            await rpc.until(channel, queued_events=0)
        else:
            await append(rpc, channel, b"b")
    described = await rpc.look(channel)
    assert (described.gauges.queued_events, described.counters.event_expired_count) == (2, 1)
    assert described.counters.event_take_success_count == 0
    negative = admin_service_pb2.ChannelConfig(retention=duration_of(-1.0))
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "config.retention"):
        await rpc.admin.UpdateChannel(
            admin_service_pb2.UpdateChannelRequest(name=channel, config=negative), timeout=TIMEOUT_SECONDS
        )
