import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace_server.channels import append_queue, queue
from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import DiskFullError, OverloadedError
from millrace_server.grpc_services import streams
from millrace_server.grpc_services.rpc import InflightBytes, MessageStream
from millrace_server.grpc_services.streams import AppendStreamCall
from tests.channel_events import check_accounts, limits_of, queued
from tests.slow_commits import SlowCommits

REQUESTS = st.builds(
    lambda bodies, headers, stamp, channel: pb.AppendStreamRequest(
        channel=channel,
        events=[event_pb2.Event(headers=headers, body=body) for body in bodies],
        stamp=stamp and event_pb2.ProducerStamp(producer_id=stamp[0], first_sequence=stamp[1], last_sequence=stamp[2]),
    ).SerializeToString(),
    st.lists(st.sampled_from([b"", b"a", b"b" * 200, b"c" * 5_000]), max_size=3),
    st.dictionaries(st.sampled_from(["k", "l"]), st.sampled_from(["", "v"]), max_size=2),
    st.none() | st.sampled_from([("p", n, n + m) for n in range(5) for m in range(3)] + [("q", 1, 1), ("q", 2, 2)]),
    st.sampled_from(["orders", "orders", "orders", "others", "none"]),
)


class FakeStream(MessageStream):
    """The requests of a caller, and the responses to it."""

    def __init__(self) -> None:
        self.sent: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.got: list[pb.AppendStreamResponse] = []
        self.may_get = asyncio.Event()
        self.may_get.set()
        self.inflight = InflightBytes(1 << 20, 1 << 20)

    async def read(self) -> bytes | None:
        return await self.sent.get()

    def count(self, byte_count: int) -> None:
        self.inflight.count(byte_count, "peer")

    def release(self, byte_count: int) -> None:
        self.inflight.release(byte_count, "peer")

    async def write(self, response: bytes) -> None:
        await self.may_get.wait()
        self.got.append(pb.AppendStreamResponse.FromString(response))

    def send(self, *bodies: bytes, channel: str = "orders", number: int | None = None) -> int:
        """Sends an append, with the producer's number of its event if given; returns its bytes."""
        events = [event_pb2.Event(body=body) for body in bodies]
        stamp = None if number is None else event_pb2.ProducerStamp(first_sequence=number, last_sequence=number)
        if stamp:
            stamp.producer_id = "p"
        raw = pb.AppendStreamRequest(channel=channel, events=events, stamp=stamp).SerializeToString()
        self.sent.put_nowait(raw)
        return len(raw)

    @property
    def sequences(self) -> Sequence[int]:
        return [response.first_sequence for response in self.got]

    @property
    def reasons(self) -> Sequence[str]:
        """The messages of the errors, empty for successes."""
        return [response.error.message for response in self.got]


class Running:
    """A stream being served, on a channel for 4 events whose commits wait long for space."""

    def __init__(self, capacity: int = 4) -> None:
        self.stream = FakeStream()
        self.registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=10)
        limits = limits_of(capacity=capacity, transaction_capacity=min(capacity, 100), keep_alive_seconds=60)
        self.channel: Channel = self.registry.create("orders", limits).channel
        self.other = self.registry.create("others", limits).channel
        self.serving = asyncio.ensure_future(AppendStreamCall(self.registry, self.stream).run())
        self.second_stream = FakeStream()
        self.second_serving = asyncio.ensure_future(AppendStreamCall(self.registry, self.second_stream).run())

    async def turn(self) -> None:
        """Lets all ready tasks run."""
        for _ in range(50):
            await asyncio.sleep(0)

    async def send_each(self, *bodies: bytes) -> None:
        """Sends appends one after the other."""
        for body in bodies:
            self.stream.send(body)
            await self.turn()

    async def finish(self, slow: SlowCommits) -> None:
        """Makes everything in flight durable, and runs what waited for it."""
        slow.let_last()
        await self.turn()

    async def end(self) -> None:
        """Ends the caller's side of the stream."""
        self.stream.sent.put_nowait(None)
        await self.serving


@pytest.fixture
async def running(request: pytest.FixtureRequest) -> AsyncIterator[Running]:
    """A stream that is being served; its parameter is the capacity of the channel."""
    running = Running(getattr(request, "param", 4))
    yield running
    running.serving.cancel()
    running.second_serving.cancel()
    await asyncio.wait({running.serving, running.second_serving})


with_space = pytest.mark.parametrize("running", [100], indirect=True, ids=["with_space"])
"""Has a channel on which no append waits for space."""


async def test_appends_of_a_stream_get_responses_in_order(running: Running) -> None:
    """Errors get responses in order, and do not end the stream; each is timed by its code."""
    stream = running.stream
    stream.send(b"a", b"b")
    stream.send(b"x", channel="none")
    stream.send()
    stream.sent.put_nowait(b"\xff")
    stream.send(b"c")
    await running.end()
    assert stream.sequences == [1, 0, 0, 0, 3]
    assert [bool(reason) for reason in stream.reasons] == [False, True, True, True, False]
    assert "'none' does not exist" in stream.reasons[1]
    assert "events: is empty" in stream.reasons[2]
    assert queued(running.channel) == [b"a", b"b", b"c"]
    timed = {labels: sum(each.counts) for labels, each in running.registry.histograms.stream_appends}
    assert timed == {("OK",): 2, ("NOT_FOUND",): 1, ("INVALID_ARGUMENT",): 2}


async def test_appends_that_wait_are_all_under_way_and_keep_their_order(running: Running) -> None:
    """An append after a large one is not stored, and gets no response, before it."""
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


async def test_responses_to_a_caller_that_is_slow_hold_back_what_it_sends(
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
    """Appends that still wait for space have no effect."""
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

    async def refuse(_response: bytes) -> None:
        raise ConnectionError("gone")

    monkeypatch.setattr(running.stream, "write", refuse)
    running.stream.send(b"a")
    with pytest.raises(ConnectionError):
        await running.serving


async def test_small_appends_behind_one_that_is_being_stored_become_one_commit(running: Running) -> None:
    """They share its records, and each gets its own sequences."""
    slow = SlowCommits(running.channel)
    running.stream.send(b"a")
    await running.turn()
    running.stream.send(b"b", b"c")
    running.stream.send(b"d")
    await running.turn()
    assert [commit.put_count for commit in slow.in_flight] == [1]
    await running.finish(slow)
    assert [(commit.put_count, len(commit.puts)) for commit in slow.in_flight] == [(3, 1)]
    assert running.stream.sequences == [1]
    slow.let_last()
    await running.end()
    assert running.stream.sequences == [1, 2, 4]
    assert [response.last_sequence for response in running.stream.got] == [1, 3, 4]
    assert running.channel.counters.put_attempts == running.channel.counters.put_successes == 4


async def _store_three_appends_in_two_commits(running: Running, slow: SlowCommits) -> None:
    await running.send_each(b"a", b"b", b"c")
    for _ in range(2):
        await running.finish(slow)
    assert running.stream.sequences == [1, 2, 3]


@with_space
async def test_small_appends_after_some_that_were_stored_together_wait_for_as_many(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One commit stores them, though nothing else is being stored; then again as many are awaited."""
    monkeypatch.setattr(append_queue, "COMMIT_DELAY_SECONDS", 60)
    slow = SlowCommits(running.channel)
    await _store_three_appends_in_two_commits(running, slow)
    for bodies in ([b"d"], [b"e"], [b"f"]):
        running.stream.send(*bodies)
        running.second_stream.send(*bodies)
        await running.turn()
        assert [commit.put_count for commit in slow.in_flight] == [2]
        slow.let_last()
    # What cannot wait ends the wait of those before it.
    running.stream.send(b"g")
    running.second_stream.send(b"h" * 5_000)
    await running.turn()
    assert [commit.put_count for commit in slow.in_flight] == [1, 1]
    slow.let_last()
    await running.end()


@with_space
@pytest.mark.parametrize(("many_waiting", "together_max", "awaited_count"), [(2, 256, 2), (1, 256, 3), (1, 2, 2)])
async def test_small_appends_that_come_while_others_are_stored_together_wait_for_as_many_again(
    running: Running, monkeypatch: pytest.MonkeyPatch, many_waiting: int, together_max: int, awaited_count: int
) -> None:
    """Two got responses, and one waits: if that is many, three are awaited, unless one commit takes fewer."""
    monkeypatch.setattr(append_queue, "COMMIT_DELAY_SECONDS", 60)
    monkeypatch.setattr(append_queue, "_LONG_DELAY_SECONDS", 60)
    monkeypatch.setattr(append_queue, "_MANY_WAITING", many_waiting)
    monkeypatch.setattr(append_queue, "_TOGETHER_MAX", together_max)
    slow = SlowCommits(running.channel)
    await _store_three_appends_in_two_commits(running, slow)
    for body in (b"d", b"e", b"f"):
        running.stream.send(body)
    await running.turn()
    await running.finish(slow)
    for _ in range(awaited_count - 1):
        assert slow.in_flight == []
        running.stream.send(b"g")
        await running.turn()
    assert [commit.put_count for commit in slow.in_flight] == [awaited_count]
    slow.let_last()
    await running.end()


@with_space
async def test_small_append_after_some_that_were_stored_together_waits_no_longer_than_the_delay(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller who leaves delays the others once: the append behind one that was stored alone waits for none."""
    monkeypatch.setattr(append_queue, "COMMIT_DELAY_SECONDS", 0)
    slow = SlowCommits(running.channel)
    await _store_three_appends_in_two_commits(running, slow)
    for body in (b"d", b"e"):
        running.stream.send(body)
        await running.turn()
        assert [commit.put_count for commit in slow.in_flight] == [1]
        slow.let_last()
        monkeypatch.setattr(append_queue, "COMMIT_DELAY_SECONDS", 60)
    await running.end()


@with_space
async def test_small_append_after_some_that_went_to_memory_together_waits_for_none(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no write to be shared."""
    monkeypatch.setattr(append_queue, "COMMIT_DELAY_SECONDS", 60)
    slow = SlowCommits(running.channel)
    await running.send_each(b"a", b"b", b"c")
    await running.finish(slow)
    slow.in_flight[0].keep_in_memory()
    slow.let_last()
    running.stream.send(b"d")
    await running.turn()
    assert [commit.put_count for commit in slow.in_flight] == [1]
    slow.let_last()
    await running.end()


@with_space
async def test_small_appends_with_many_headers_become_several_commits(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merged, each key has a size for each event: so the events of one commit are bounded by their headers too."""
    monkeypatch.setattr(queue, "HEADER_CELLS_MAX", 100)
    slow = SlowCommits(running.channel)
    event = event_pb2.Event(headers={f"{index:02}": "" for index in range(5)})
    for _ in range(11):
        request = pb.AppendStreamRequest(channel="orders", events=[event])
        running.stream.sent.put_nowait(request.SerializeToString())
    await running.turn()
    await running.finish(slow)
    assert [commit.put_count for commit in slow.in_flight] == [4, 4, 2]
    slow.let_last()
    await running.end()
    assert running.stream.sequences == list(range(1, 12))


async def test_appends_that_have_no_space_together_wait_for_it_in_their_order(running: Running) -> None:
    """Those that fit are stored, and none overtakes another."""
    slow = SlowCommits(running.channel)
    for bodies in ([b"a"], [b"b", b"b"], [b"c", b"c"], [b"d"]):
        running.stream.send(*bodies)
    await running.turn()
    await running.finish(slow)
    assert [commit.put_count for commit in slow.in_flight] == [2]
    slow.let_last()
    purging = asyncio.ensure_future(running.channel.purge())
    await running.turn()
    for _ in range(4):
        await running.finish(slow)
    await running.end()
    assert await purging == 3
    assert running.stream.sequences == [1, 2, 4, 6]
    assert running.channel.counters.put_attempts == 6


async def test_appends_behind_one_that_waits_for_space_do_not_take_it_together(running: Running) -> None:
    """They could not have one commit with it, and would overtake it."""
    slow = SlowCommits(running.channel)
    running.stream.send(b"a", b"b")
    running.stream.send(b"c", b"d", b"e")
    for number in range(2):
        running.stream.send(b"%d" % number, number=number)
    await running.turn()
    await running.finish(slow)
    assert slow.in_flight == []


async def test_commit_of_several_appends_that_is_refused_fails_each_of_them(running: Running) -> None:
    """The stream continues, and the next append gets the sequence of the first that failed."""
    slow = SlowCommits(running.channel)
    await running.send_each(b"a", b"b", b"c")
    await running.finish(slow)
    slow.refuse(DiskFullError("no space"))
    await running.turn()
    running.stream.send(b"d")
    await running.turn()
    slow.let_last()
    await running.end()
    assert running.stream.reasons == ["", "no space", "no space", ""]
    assert running.stream.sequences == [1, 0, 0, 2]


async def test_large_append_stores_those_that_wait_before_it(running: Running) -> None:
    """It waits for no other commit, and its events come behind those of the earlier appends."""
    slow = SlowCommits(running.channel)
    for body in (b"a", b"b", b"c" * 5_000):
        running.stream.send(body)
    await running.turn()
    assert [commit.put_count for commit in slow.in_flight] == [1, 1, 1]
    slow.let_last()
    await running.end()
    assert [body[:1] for body in queued(running.channel)] == [b"a", b"b", b"c"]


async def test_stream_whose_caller_leaves_stores_no_append_that_has_not_begun(running: Running) -> None:
    """What has begun is stored, and nothing counts as in progress any more."""
    slow = SlowCommits(running.channel)
    for body in (b"a", b"b", b"c"):
        running.stream.send(body)
    await running.turn()
    running.serving.cancel()
    await asyncio.wait({running.serving})
    await running.finish(slow)
    assert not slow.in_flight
    assert queued(running.channel) == [b"a"]
    assert running.stream.inflight._total == 0


async def test_small_appends_of_several_streams_become_one_commit(running: Running) -> None:
    """Each stream gets its own responses."""
    slow = SlowCommits(running.channel)
    for stream in (running.stream, running.second_stream, running.stream):
        stream.send(b"x")
        await running.turn()
    await running.finish(slow)
    assert [commit.put_count for commit in slow.in_flight] == [2]
    slow.let_last()
    await running.end()
    assert (running.stream.sequences, running.second_stream.sequences) == ([1, 3], [2])


async def test_numbers_of_a_caller_who_has_left_are_not_accepted(running: Running) -> None:
    """Not even between the numbers of another stream that are stored together."""
    slow = SlowCommits(running.channel)
    for number, stream in enumerate([running.stream, running.stream, running.second_stream, running.stream]):
        stream.send(b"%d" % number, number=number)
        await running.turn()
    running.second_serving.cancel()
    for _ in range(2):
        await running.turn()
        slow.let_last()
    await running.end()
    assert queued(running.channel) == [b"0", b"1", b"3"]
    assert list(running.channel._contents.ledger.intervals_of("p")) == [(0, 1), (3, 3)]


@given(st.lists(st.tuples(REQUESTS, st.booleans()), max_size=12))
def test_appends_of_a_stream_have_the_effect_of_single_ones(steps: list[tuple[bytes, bool]]) -> None:
    """Responses, events, accepted numbers and counters do not depend on what was stored together."""

    async def serve(*, is_slow: bool) -> list[object]:
        running = Running(capacity=1_000)
        channels = [running.channel, running.other]
        for channel in channels:
            # The times of commits would differ.
            channel._contents.clock = lambda: 0
        slow = [SlowCommits(channel) for channel in channels] if is_slow else []
        for raw, ends in steps:
            running.stream.sent.put_nowait(raw)
            if ends:
                await running.turn()
                for commits in slow:
                    commits.let_last()
        running.stream.sent.put_nowait(None)
        while not running.serving.done():
            for commits in slow:
                commits.let_last()
            await running.turn()
        await running.serving
        running.second_serving.cancel()
        for channel in channels:
            check_accounts(channel)
        return [
            running.stream.got,
            [queued(channel) for channel in channels],
            [list(channel._contents.ledger.producers()) for channel in channels],
            [channel.counters for channel in channels],
        ]

    assert asyncio.run(serve(is_slow=True)) == asyncio.run(serve(is_slow=False))
