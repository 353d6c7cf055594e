"""Deliveries against a scripted server, in both variants."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc
import pytest

import millrace_client as millrace
from millrace.columns import columns_from_events
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import aio
from tests.client_variants import Connect
from tests.free_ports import free_port
from tests.unit.client.fake_server import FakeServer, RefusalError, unavailable
from tests.waiting import until

WAIT_SECONDS = 60.0


class UserCodeError(Exception):
    """An exception of the user's own code."""


class Deliverer:
    """Serves one Consume stream: delivers the scripted deliveries, then reads to the end.

    Attributes:
        acked, nacked: The delivery ids received, in order.
        half_closed: Set when the client has ended its side.
        cancelled: Set when the stream ended before that.
    """

    def __init__(self, *bodies: bytes, goes_on: bool = False) -> None:
        self.acked: list[int] = []
        self.nacked: list[int] = []
        self.half_closed = threading.Event()
        self.over = threading.Event()
        self.settled = threading.Condition()
        self._bodies = bodies
        self._goes_on = goes_on

    def __call__(self, requests: Iterator[pb.ConsumeRequest], context: Any) -> Iterator[pb.ConsumeResponse]:
        context.add_callback(self.over.set)
        assert next(requests).HasField("start")
        for number, body in enumerate(self._bodies, 1):
            yield delivery(number, body)
        for request in requests:
            with self.settled:
                self.acked.extend(request.ack.delivery_ids)
                self.nacked.extend(request.nack.delivery_ids)
                self.settled.notify_all()
        self.half_closed.set()
        if self._goes_on:
            yield delivery(99, b"too late")

    def wait_for_settlements(self, count: int) -> None:
        """Waits until this many deliveries are acknowledged or returned."""
        with self.settled:
            assert self.settled.wait_for(lambda: len(self.acked) + len(self.nacked) >= count, WAIT_SECONDS)


TIME = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


def delivery(number: int, *bodies: bytes) -> pb.ConsumeResponse:
    """A delivery with one batch for each body, with gaps between."""
    batches = []
    for index, body in enumerate(bodies):
        [columns] = columns_from_events([({}, body)])
        first, time = number * 10 + index * 2, TIME + timedelta(seconds=index)
        batches.append({"first_sequence": first, "columns": columns, "commit_time": time})
    return pb.ConsumeResponse(delivery_id=number, batches=batches)


def test_consume_says_what_it_wants(client: Any, server: FakeServer) -> None:
    """The stream begins with the limits, and asks for columns."""
    server.script("Consume", Deliverer(b"a"))
    with client.channel("orders").consume(max_events=3, max_bytes=1000, prefetch=2) as deliveries:
        next(iter(deliveries))
    start = server.requests["Consume"][0].start
    assert (start.channel, start.max_events, start.max_bytes, start.prefetch) == ("orders", 3, 1000, 2)
    assert start.columns


def test_consume_makes_no_call_before_it_is_iterated(client: Any, server: FakeServer) -> None:
    """No events are leased until deliveries are requested."""
    with client.channel("orders").consume():
        pass
    assert not server.requests


def test_delivery_gives_events_of_all_its_batches(client: Any, server: FakeServer) -> None:
    """One delivery may hold several batches; they are acknowledged as a whole."""

    def deliver(requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        yield delivery(1, b"a", b"b")
        yield from ()
        list(requests)

    server.script("Consume", deliver)
    with client.channel("orders").consume() as deliveries:
        one = next(iter(deliveries))
        assert (one.delivery_id, one.first_sequence, one.last_sequence, len(one)) == (1, 10, 12, 2)
        assert [(event.sequence, event.body) for event in one] == [(10, b"a"), (12, b"b")]
        assert one.bodies() == [b"a", b"b"]
        assert [batch.count for batch in one.batches] == [1, 1]
        assert [event.commit_time for event in one] == [one.commit_time, TIME + timedelta(seconds=1)]
        assert one.commit_time == TIME


def test_acks_and_nacks_arrive(client: Any, server: FakeServer) -> None:
    """Each delivery is settled by its id, and all settlements arrive before the block ends."""
    deliverer = Deliverer(b"a", b"b", b"c")
    server.script("Consume", deliverer)
    with client.channel("orders").consume() as deliveries:
        for one in deliveries:
            if one.delivery_id == 2:
                one.nack()
            else:
                one.ack()
            if one.delivery_id == 3:
                break
    assert deliverer.half_closed.is_set()
    assert (deliverer.acked, deliverer.nacked) == ([1, 3], [2])


def test_ack_after_the_end_is_refused(client: Any, server: FakeServer) -> None:
    """The events have returned to the channel by then, so the ack is refused."""
    server.script("Consume", Deliverer(b"a"))
    with client.channel("orders").consume() as deliveries:
        one = next(iter(deliveries))
    with pytest.raises(millrace.StreamEndedError):
        one.ack()
    with pytest.raises(millrace.StreamEndedError):
        one.nack()


def test_loop_left_by_break_ends_the_stream(server: FakeServer) -> None:
    """Without a block, too, acks arrive, then the stream ends, though the last delivery is still referenced."""
    deliverer = Deliverer(b"a", b"b")
    server.script("Consume", deliverer)
    client = millrace.connect(server.address)
    for one in client.channel("orders").consume():
        one.ack()
        break
    assert deliverer.half_closed.wait(WAIT_SECONDS)
    assert deliverer.acked == [1]
    assert one.bodies() == [b"a"]
    client.close()


def test_loop_left_by_an_error_ends_the_stream(server: FakeServer) -> None:
    """The stream ends though the error's traceback keeps the frame of the loop alive."""
    deliverer = Deliverer(b"a", b"b")
    server.script("Consume", deliverer)
    client = millrace.connect(server.address)
    with pytest.raises(UserCodeError):  # noqa: PT012 - the loop is what is tested
        for one in client.channel("orders").consume():
            one.ack()
            raise UserCodeError
    assert deliverer.half_closed.wait(WAIT_SECONDS)
    assert deliverer.acked == [1]
    client.close()


def test_loop_left_without_an_ack_cuts_the_stream(server: FakeServer) -> None:
    """Without an ack there is nothing to wait for."""
    deliverer = Deliverer(b"a")
    server.script("Consume", deliverer)
    client = millrace.connect(server.address)
    for _ in client.channel("orders").consume():
        break
    assert deliverer.over.wait(WAIT_SECONDS)
    client.close()


def test_deliveries_with_a_name_end_when_they_are_collected(server: FakeServer) -> None:
    """This includes deliveries in a reference cycle, which only the garbage collector finds."""
    deliverer = Deliverer(b"a")
    server.script("Consume", deliverer)
    client = millrace.connect(server.address)
    deliveries = client.channel("orders").consume()
    one = next(deliveries)
    one.ack()
    cycle: list[Any] = [deliveries]
    cycle.append(cycle)
    deliverer.wait_for_settlements(1)
    assert not deliverer.half_closed.is_set()
    del deliveries, cycle
    gc.collect()
    assert deliverer.half_closed.wait(WAIT_SECONDS)
    client.close()


def test_deliveries_dropped_while_the_interpreter_ends_leave_grpc_alone(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread of gRPC may have stopped with a lock for which ending the stream would wait."""
    deliverer = Deliverer(b"a")
    server.script("Consume", deliverer)
    client = millrace.connect(server.address)
    deliveries = client.channel("orders").consume()
    next(deliveries).ack()
    deliverer.wait_for_settlements(1)
    with monkeypatch.context() as ending:
        ending.setattr(sys, "is_finalizing", lambda: True)
        deliveries.__del__()
    assert not deliverer.half_closed.is_set()
    assert not deliverer.over.is_set()
    deliveries.close()
    assert deliverer.half_closed.wait(WAIT_SECONDS)
    client.close()


def test_closing_the_client_ends_deliveries_in_order(client: Any, server: FakeServer) -> None:
    """Acks are sent, and a loop that continues reaches its end."""
    deliverer = Deliverer(b"a", b"b")
    server.script("Consume", deliverer)
    deliveries = client.channel("orders").consume()
    next(iter(deliveries)).ack()
    client.close()
    assert deliverer.half_closed.is_set()
    assert deliverer.acked == [1]
    assert list(deliveries) == []


def test_closing_the_client_while_another_thread_waits_ends_its_loop(server: FakeServer) -> None:
    """A thread that waits for deliveries leaves its loop without an error."""
    deliverer = Deliverer(b"a")
    server.script("Consume", deliverer)
    client = millrace.connect(server.address)
    bodies: list[bytes] = []

    def work() -> None:
        for one in client.channel("orders").consume():
            bodies.extend(one.bodies())
            one.ack()

    worker = threading.Thread(target=work)
    worker.start()
    deliverer.wait_for_settlements(1)
    client.close()
    worker.join(WAIT_SECONDS)
    assert not worker.is_alive()
    assert bodies == [b"a"]


def test_consume_with_an_idle_time_ends_when_nothing_comes(client: Any, server: FakeServer) -> None:
    """The loop ends as if the stream had: acks are sent, and later deliveries are ignored."""
    deliverer = Deliverer(b"a", b"b", goes_on=True)
    server.script("Consume", deliverer)
    bodies = []
    waits_since = time.monotonic()
    for one in client.channel("orders").consume(idle_seconds=0.3):
        bodies.extend(one.bodies())
        one.ack()
        waits_since = time.monotonic()
    assert time.monotonic() - waits_since >= 0.3
    # A busy machine may take longer than that to deliver them.
    assert bodies == [b"a", b"b"][: len(bodies)]
    assert deliverer.half_closed.wait(WAIT_SECONDS)
    assert deliverer.acked == [1, 2][: len(bodies)]


def test_consume_that_does_not_end_in_time_is_cut_off(connect: Connect, server: FakeServer) -> None:
    """A server that does not complete the stream delays the caller by at most the timeout."""
    over = threading.Event()

    def stubborn(_requests: Iterator[Any], context: Any) -> Iterator[Any]:
        context.add_callback(over.set)
        yield delivery(1, b"a")
        over.wait()

    server.script("Consume", stubborn)
    with (
        pytest.raises(millrace.DeadlineError),
        connect(server.address, timeout_seconds=0.1).channel("orders").consume() as deliveries,
    ):
        next(iter(deliveries)).ack()
    assert over.wait(WAIT_SECONDS)


def test_consume_whose_end_fails_shows_the_first_error(connect: Connect, server: FakeServer) -> None:
    """An error at the end becomes a note of the block's own error."""
    over = threading.Event()

    def stubborn(_requests: Iterator[Any], context: Any) -> Iterator[Any]:
        context.add_callback(over.set)
        yield delivery(1, b"a")
        over.wait()

    server.script("Consume", stubborn)
    with (  # noqa: PT012 - the block is tested
        pytest.raises(UserCodeError) as caught,
        connect(server.address, timeout_seconds=0.1).channel("orders").consume() as deliveries,
    ):
        next(iter(deliveries)).ack()
        raise UserCodeError
    assert "in time" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("refusal", "error"),
    [
        (RefusalError(grpc.StatusCode.FAILED_PRECONDITION, "CHANNEL_CLAIMED"), millrace.ChannelClaimedError),
        (RefusalError(grpc.StatusCode.UNAVAILABLE, "DRAINING"), millrace.DrainingError),
        (unavailable(), millrace.UnavailableError),
    ],
)
def test_consume_that_the_server_ends_says_why(
    client: Any, server: FakeServer, refusal: RefusalError, error: type[millrace.MillraceError]
) -> None:
    """The loop gets the error, once, and earlier deliveries cannot be acknowledged any more."""

    def deliver(requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        next(requests)
        yield delivery(1, b"a")
        # When an error arrives, gRPC drops messages that have not been read.
        next(requests)
        raise refusal

    server.script("Consume", deliver)
    deliveries = iter(client.channel("orders").consume())
    one = next(deliveries)
    one.ack()
    with pytest.raises(error) as caught:
        next(deliveries)
    assert caught.value.channel == "orders"
    with pytest.raises(millrace.StreamEndedError):
        one.ack()
    assert list(deliveries) == []


def test_many_acks_go_together(client: Any, server: FakeServer) -> None:
    """Waiting acks are sent in few messages, each once and in order."""
    deliverer = Deliverer(*[b"x"] * 500)
    server.script("Consume", deliverer)
    with client.channel("orders").consume(prefetch=1000) as deliveries:
        kept = [one for _, one in zip(range(500), deliveries, strict=False)]
        for one in kept:
            one.ack()
    assert deliverer.acked == list(range(1, 501))


async def test_first_delivery_whose_wait_is_cancelled_arrives_at_the_next_one() -> None:
    """The wait may time out before the server is there, so before the stream's first message can be sent."""
    port = free_port()
    with ExitStack() as servers:
        async with (
            aio.connect(f"127.0.0.1:{port}", wait_for_ready=True) as client,
            client.channel("orders").consume() as deliveries,
        ):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await anext(deliveries)
            servers.enter_context(closing(FakeServer(port, Consume=Deliverer(b"one"))))
            arrived = await asyncio.wait_for(anext(deliveries), WAIT_SECONDS)
            await arrived.ack()
    assert arrived.bodies() == [b"one"]


async def test_error_of_a_stream_that_was_cut_off_is_not_reported_to_the_loop() -> None:
    """Nobody reads it any more, and programs would find it in their logs."""
    refuses = threading.Event()

    def refuse(_requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        refuses.wait(WAIT_SECONDS)
        raise unavailable()
        yield

    with closing(FakeServer(Consume=refuse)) as server:
        async with aio.connect(server.address) as client:
            deliveries = client.channel("orders").consume()
            reading = asyncio.ensure_future(anext(deliveries))
            await until(lambda: getattr(deliveries._stream, "_response", None) is not None)
            reading.cancel()
            await asyncio.wait([reading])
            stream: Any = deliveries._stream
            refuses.set()
            await until(stream._response.done)
            with pytest.raises(millrace.DeadlineError):
                await stream.finish(0.0)
            # Whether asyncio reports an exception that nobody has retrieved.
            assert not stream._response._log_traceback
