import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager

import pytest

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import OverloadedError
from millrace_server.grpc_services import streams
from millrace_server.grpc_services.rpc import Answer, InflightBytes, MessageStream
from millrace_server.grpc_services.streams import AppendStreamCall
from tests.channel_events import limits_of, queued


class FakeStream(MessageStream):
    """The requests of a caller, and the answers to it."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.got: list[pb.AppendStreamResponse] = []
        self.may_get = asyncio.Event()
        self.may_get.set()
        self.inflight = InflightBytes(1 << 20, 1 << 20)

    async def read(self) -> bytes | None:
        return await self.sent.get()

    def admit(self, raw: bytes) -> AbstractContextManager[None]:
        return self.inflight.admit(len(raw), "peer")

    async def write(self, answer: Answer) -> None:
        await self.may_get.wait()
        assert isinstance(answer, pb.AppendStreamResponse)
        self.got.append(answer)

    def send(self, *bodies: bytes, channel: str = "orders") -> int:
        """Sends an append; returns its bytes."""
        events = [event_pb2.Event(body=body) for body in bodies]
        raw = pb.AppendStreamRequest(channel=channel, events=events).SerializeToString()
        self.sent.put_nowait(raw)
        return len(raw)

    @property
    def sequences(self) -> Sequence[int]:
        return [answer.first_sequence for answer in self.got]

    @property
    def reasons(self) -> Sequence[str]:
        """The messages of the errors, empty for successes."""
        return [answer.error.message for answer in self.got]


class Running:
    """A stream being served, on a channel for 4 events whose commits wait long for room."""

    def __init__(self) -> None:
        self.stream = FakeStream()
        self.registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=10)
        self.channel: Channel = self.registry.create("orders", limits_of(capacity=4, keep_alive_seconds=60)).channel
        self.serving = asyncio.ensure_future(AppendStreamCall(self.registry, self.stream).run())

    async def turn(self) -> None:
        """Lets all ready tasks run."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def end(self) -> None:
        """Ends the caller's side of the stream."""
        self.stream.sent.put_nowait(None)
        await self.serving


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    running = Running()
    yield running
    running.serving.cancel()
    await asyncio.wait({running.serving})


async def test_appends_of_a_stream_are_answered_in_their_order(running: Running) -> None:
    """Errors are answered in order, and do not end the stream."""
    stream = running.stream
    stream.send(b"a", b"b")
    stream.send(b"x", channel="none")
    stream.send()
    stream.sent.put_nowait(b"\xff")
    stream.send(b"c")
    await running.end()
    assert stream.sequences == [1, 0, 0, 0, 3]
    assert [bool(reason) for reason in stream.reasons] == [False, True, True, True, False]
    assert "there is none called 'none'" in stream.reasons[1]
    assert "events: has none" in stream.reasons[2]
    assert queued(running.channel) == [b"a", b"b", b"c"]


async def test_appends_that_wait_are_all_under_way_and_keep_their_order(running: Running) -> None:
    """An append after a large one is neither answered nor stored before it."""
    stream = running.stream
    for bodies in ([b"a"] * 3, [b"b"] * 2, [b"c"]):
        stream.send(*bodies)
    await running.turn()
    assert stream.sequences == [1]
    assert len(running.channel._contents.capacity.waiters) == 2
    await running.channel.purge()
    await running.end()
    assert stream.sequences == [1, 4, 6]
    assert queued(running.channel) == [b"b", b"b", b"c"]


async def test_appends_beyond_those_under_way_are_not_read(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number and the bytes of requests in progress are bounded; a single large one is served alone."""
    stream = running.stream
    byte_count = stream.send(b"a" * 100, b"b", b"c", b"d")
    monkeypatch.setattr(streams, "UNDER_WAY_BYTES_MAX", byte_count - 1)
    for _ in range(2):
        stream.send(b"a" * 50)
    stream.send(b"a" * 100, b"b", b"c", b"d")
    await running.turn()
    assert stream.sequences == [1]
    # One more request is read and waits until fewer are in progress.
    assert stream.sent.qsize() < 2
    for _ in range(4):
        await running.channel.purge()
        await running.turn()
    await running.end()
    assert stream.sequences == [1, 5, 6, 7]


async def test_answers_to_a_caller_that_is_slow_hold_back_what_it_sends(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory does not grow while the caller does not read."""
    stream = running.stream
    stream.may_get.clear()
    for _ in range(streams.UNDER_WAY_MAX + 20):
        stream.send(channel="none")
    await asyncio.sleep(0)
    await running.turn()
    for _ in range(10):
        await running.turn()
    assert 0 < stream.sent.qsize() <= 20
    stream.may_get.set()
    await running.end()
    assert len(stream.got) == streams.UNDER_WAY_MAX + 20


async def test_stream_whose_caller_leaves_ends_what_only_waits(running: Running) -> None:
    """Appends that still wait for room have no effect."""
    stream = running.stream
    for bodies in ([b"a"] * 4, [b"b"], [b"c"]):
        stream.send(*bodies)
    await running.turn()
    assert len(running.channel._contents.capacity.waiters) == 2
    running.serving.cancel()
    await asyncio.wait({running.serving})
    await running.turn()
    assert len(running.channel._contents.capacity.waiters) == 0
    await running.channel.purge()
    await running.turn()
    assert queued(running.channel) == []


async def test_append_that_is_too_much_for_the_server_is_refused_alone(running: Running) -> None:
    """The stream continues."""
    stream = running.stream
    with stream.inflight.admit(1 << 20, "other"):
        stream.send(b"a")
        await running.turn()
    stream.send(b"b")
    await running.end()
    assert OverloadedError.reason in stream.got[0].error.details[0].value.decode(errors="replace")
    assert queued(running.channel) == [b"b"]


async def test_stream_that_breaks_while_it_is_written_to_ends(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream ends with the reason."""

    async def refuse(_answer: Answer) -> None:
        raise ConnectionError("gone")

    monkeypatch.setattr(running.stream, "write", refuse)
    running.stream.send(b"a")
    with pytest.raises(ConnectionError):
        await running.serving
