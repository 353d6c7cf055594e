"""Both consumers against a scripted server: loops, deliveries, closing."""

import asyncio
import contextlib
import gc
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import millrace_client as millrace
import millrace_client.aio
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import ConsumerConfig
from tests.client_variants import SyncWrapper
from tests.fork_server import run_code
from tests.interrupts import interrupt_at
from tests.unit.client.consuming.fakes import response_of
from tests.unit.client.fake_server import FakeServer, RefusalError, unavailable
from tests.waiting import wait_until

WAIT_SECONDS = 60.0
QUICK: dict[str, Any] = {"reconnect_seconds": 0.01, "retry_seconds": 0.01, "close_seconds": 5.0}


class Deliverer:
    """Serves Consume streams; as in a channel, what is not acknowledged is delivered again in order.

    Attributes:
        acked: Bodies that were acknowledged, in order.
        nacked: Bodies that were returned.
        stream_count: The number of streams so far.
        ended_well: The number of streams that the client half-closed.
    """

    def __init__(self, *bodies: bytes, breaks_after: int | None = None) -> None:
        self.acked: list[bytes] = []
        self.nacked: list[bytes] = []
        self.stream_count = 0
        self.ended_well = 0
        self.news = threading.Condition()
        self._waiting = list(bodies)
        self._sequences = {body: number for number, body in enumerate(bodies, 1)}
        self._breaks_after = breaks_after

    def __call__(self, requests: Iterator[pb.ConsumeRequest], context: Any) -> Iterator[pb.ConsumeResponse]:
        prefetch = next(requests).start.prefetch
        out: dict[int, bytes] = {}
        is_over = threading.Event()

        def listen() -> None:
            try:
                for request in requests:
                    with self.news:
                        self._settle(out, request)
            except grpc.RpcError:
                pass
            else:
                self.ended_well += 1
            with self.news:
                is_over.set()
                self.news.notify_all()

        with self.news:
            self.stream_count += 1
            breaks = self._breaks_after is not None and self.stream_count == 1
        threading.Thread(target=listen, daemon=True).start()
        try:
            for delivery_id in itertools.count(1):
                if breaks and delivery_id > (self._breaks_after or 0):
                    raise unavailable()
                with self.news:
                    ready = lambda: is_over.is_set() or (self._waiting and len(out) < prefetch)  # noqa: E731 - short
                    self.news.wait_for(ready)
                    if is_over.is_set():
                        return
                    body = out[delivery_id] = self._waiting.pop(0)
                yield response_of(delivery_id, body, first_sequence=self._sequences[body])
        finally:
            with self.news:
                self._waiting[:0] = out.values()
                out.clear()
                self.news.notify_all()

    def _settle(self, out: dict[int, bytes], request: pb.ConsumeRequest) -> None:
        # Acks of lost deliveries have come too late.
        self.acked += [out.pop(each) for each in request.ack.delivery_ids if each in out]
        nacked = [out.pop(each) for each in request.nack.delivery_ids if each in out]
        self.nacked += nacked
        self._waiting[:0] = nacked
        self.news.notify_all()

    def wait_for(self, condition: Any) -> None:
        """Waits until a condition holds."""
        with self.news:
            assert self.news.wait_for(lambda: condition(self), WAIT_SECONDS)


class SyncConsumer(SyncWrapper):
    """An asyncio consumer that tests use without `await`; its `close` returns the report."""

    def close(self, *args: float) -> Any:
        return self._run(self._inner.close(*args))


class Variant:
    """One of the two consumers, used without `await`."""

    def __init__(self, name: str, address: str, runner: asyncio.Runner) -> None:
        self.name = name
        self._address = address
        self._runner = runner
        self._made: list[Any] = []

    def consumer(self, *endpoints: str, channels: tuple[str, ...] = ("orders",), **config: Any) -> Any:
        limits = ConsumerConfig(**{**QUICK, **config})
        servers = endpoints or (self._address,)
        if self.name == "sync":
            made: Any = millrace.Consumer(servers, channels, limits)
        else:
            made = SyncConsumer(self._runner, millrace_client.aio.AsyncConsumer(servers, channels, limits))
        self._made.append(made)
        return made

    def handler(self, work: Any) -> Any:
        """A function as a handler of this variant; its delivery may be settled without awaiting."""
        if self.name == "sync":
            return work

        async def handle(delivery: Any) -> None:
            work(delivery)

        return handle

    def close(self) -> None:
        for made in self._made:
            made.close()


@pytest.fixture(params=["sync", "aio"])
def variant(request: pytest.FixtureRequest, server: FakeServer) -> Iterator[Variant]:
    with asyncio.Runner() as runner:
        used = Variant(request.param, server.address, runner)
        yield used
        used.close()


def test_loop_acknowledges_what_its_body_was_done_with(variant: Variant, server: FakeServer) -> None:
    """Each turn acknowledges the delivery before; the end of the loop by `idle_seconds` acknowledges the last."""
    deliverer = Deliverer(b"a", b"b", b"c")
    server.script("Consume", deliverer)
    with variant.consumer(idle_seconds=0.3) as consumer:
        bodies = [body for delivery in consumer for body in delivery.bodies()]
    assert bodies == [b"a", b"b", b"c"]
    assert deliverer.acked == [b"a", b"b", b"c"]
    assert deliverer.ended_well == 1


def test_loop_that_ends_before_a_server_was_reached_raises_the_reason(variant: Variant) -> None:
    """Otherwise a program that reads until nothing is left would end as if it had read everything."""
    consumer = variant.consumer("127.0.0.1:1", idle_seconds=0.3)
    for _ in range(2):
        with pytest.raises(millrace.UnavailableError, match="at 127\\.0\\.0\\.1:1;"):
            list(consumer)
    assert consumer.close().is_clean


def test_loop_left_by_an_error_returns_the_delivery(variant: Variant, server: FakeServer) -> None:
    """Earlier deliveries stay acknowledged; the current one is delivered again."""
    deliverer = Deliverer(b"a", b"b", b"c")
    server.script("Consume", deliverer)
    with pytest.raises(ValueError, match="mine"), variant.consumer() as consumer:  # noqa: PT012 - the loop is tested
        for delivery in consumer:
            if delivery.bodies() == [b"b"]:
                raise ValueError("mine")
    assert deliverer.acked == [b"a"]


def test_loop_left_by_break_returns_the_delivery_unless_acknowledged(variant: Variant, server: FakeServer) -> None:
    """Python does not distinguish a break from an error, so a loop must call `ack` before `break`."""
    deliverer = Deliverer(b"a", b"b", b"c")
    server.script("Consume", deliverer)
    with variant.consumer() as consumer:
        for _ in consumer:
            break
        for delivery in consumer:
            assert delivery.ack()
            break
    # After the first delivery is returned, the second loop may get either one.
    assert len(deliverer.acked) == 1


def test_loop_without_automatic_acks_leaves_them_to_the_caller(variant: Variant, server: FakeServer) -> None:
    """Nothing is settled except by the caller."""
    deliverer = Deliverer(b"a", b"b", b"c")
    server.script("Consume", deliverer)
    with variant.consumer(auto_ack=False, idle_seconds=0.3, close_seconds=0.3) as consumer:
        kept = list(consumer)
        assert kept[1].ack()
        assert not kept[1].nack()
    assert (deliverer.acked, deliverer.nacked) == ([b"b"], [])
    assert kept[0].is_lost
    assert not kept[0].ack()


def test_events_come_one_by_one(variant: Variant, server: FakeServer) -> None:
    """A delivery is acknowledged after its last event; one returned before that gives no more events."""

    def deliver(requests: Iterator[Any], _context: Any) -> Iterator[Any]:
        yield response_of(1, b"a", b"b")
        yield response_of(2, b"c", b"d")
        yield response_of(3, b"e")
        settled.extend(requests)

    settled: list[Any] = []
    server.script("Consume", deliver)
    seen = []
    with variant.consumer() as consumer:
        for event in consumer.events():
            seen.append((event.sequence, event.body, event.delivery.channel))
            if event.body == b"c":
                event.delivery.nack()
            if event.body == b"e":
                consumer.stop()
    assert [body for _, body, _ in seen] == [b"a", b"b", b"c", b"e"]
    assert seen[1] == (11, b"b", "orders")
    acked = [each for request in settled for each in request.ack.delivery_ids]
    nacked = [each for request in settled for each in request.nack.delivery_ids]
    assert (acked, nacked) == ([1, 3], [2])


def test_start_asks_for_its_share(variant: Variant, server: FakeServer) -> None:
    """Each stream requests limits that together stay within the consumer's bytes."""
    server.script("Consume", Deliverer(b"a"))
    consumer = variant.consumer(channels=("a", "b"), prefetch=4, prefetch_bytes_max=8_000, delivery_events_max=10)
    assert consumer.receive(WAIT_SECONDS).ack()
    starts: list[Any] = []
    while len(starts) < 2:
        consumer.receive(0.01)
        # The ack arrives on a stream as well.
        starts = [request.start for request in list(server.requests["Consume"]) if request.HasField("start")]
    assert {start.channel for start in starts} == {"a", "b"}
    assert {(start.max_events, start.max_bytes, start.prefetch, start.columns) for start in starts} == {
        (10, 1_000, 4, True)
    }


def test_stream_that_breaks_is_opened_again_without_loss(variant: Variant, server: FakeServer) -> None:
    """What was not acknowledged is delivered again; only hooks and metrics show the reconnect."""
    bodies = [b"%d" % number for number in range(20)]
    deliverer = Deliverer(*bodies, breaks_after=5)
    server.script("Consume", deliverer)
    seen: list[bytes] = []
    with variant.consumer(prefetch=4) as consumer:
        for delivery in consumer:
            seen.extend(delivery.bodies())
            if len(set(seen)) == len(bodies):
                consumer.stop()
        assert consumer.metrics().reconnects == 1
    assert set(seen) == set(bodies)
    assert sorted(deliverer.acked, key=int) == bodies
    assert deliverer.stream_count == 2


def test_refusal_that_passes_is_waited_out(variant: Variant, server: FakeServer) -> None:
    """While the server drains, replays or has another claim, the loop waits as long as the server asks."""
    refusals = [
        RefusalError(grpc.StatusCode.UNAVAILABLE, "DRAINING"),
        RefusalError(grpc.StatusCode.UNAVAILABLE, "REPLAYING"),
        RefusalError(grpc.StatusCode.FAILED_PRECONDITION, "CHANNEL_CLAIMED", retry_delay_seconds=0.1),
    ]

    def refuse(refusal: RefusalError) -> Any:
        def serve(requests: Any, _context: Any) -> Iterator[Any]:
            next(requests)
            raise refusal
            yield

        return serve

    server.script("Consume", *map(refuse, refusals), Deliverer(b"a"))
    began_at = time.monotonic()
    with variant.consumer() as consumer:
        for delivery in consumer:
            assert delivery.bodies() == [b"a"]
            break
    assert time.monotonic() - began_at >= 0.1


def test_refusal_that_lasts_is_raised(variant: Variant, server: FakeServer) -> None:
    """A missing channel raises on each call, as long as no other stream is left."""

    def refuse(_requests: Any, _context: Any) -> Iterator[Any]:
        raise RefusalError(grpc.StatusCode.NOT_FOUND, "CHANNEL_NOT_FOUND", "'orders' does not exist")
        yield

    server.script("Consume", refuse)
    consumer = variant.consumer()
    for _ in range(2):
        with pytest.raises(millrace.ChannelNotFoundError, match="'orders'"):
            list(consumer)
    with pytest.raises(millrace.ChannelNotFoundError):
        consumer.run(variant.handler(lambda _: None), workers=2)


def test_unreachable_server_leaves_the_others(variant: Variant, server: FakeServer) -> None:
    """The consumer keeps trying to reach the server while the others deliver."""
    deliverer = Deliverer(b"a", b"b")
    server.script("Consume", deliverer)
    with variant.consumer(server.address, "127.0.0.1:1") as consumer:
        for _ in range(2):
            delivery = consumer.receive(WAIT_SECONDS)
            assert delivery.endpoint == server.address
            assert delivery.ack()

        def away_error() -> Any:
            [error] = [
                subscription.error
                for subscription in consumer.metrics().lanes
                if subscription.endpoint == "127.0.0.1:1"
            ]
            return error

        # The connection may fail only after everything has come from the other server.
        give_up = time.monotonic() + WAIT_SECONDS
        while away_error() is None and time.monotonic() < give_up:
            consumer.receive(0.05)
        assert isinstance(away_error(), millrace.UnavailableError)


@pytest.mark.parametrize("workers", [1, 4])
def test_run_works_on_all_and_stops(variant: Variant, server: FakeServer, workers: int) -> None:
    """A delivery is acknowledged when its handler returns, and comes again if it raises; handlers may stop the run."""
    bodies = [b"%d" % number for number in range(30)]
    deliverer = Deliverer(*bodies)
    server.script("Consume", deliverer)
    consumer = variant.consumer()
    done: list[bytes] = []
    failures = iter([True])

    def work(delivery: Any) -> None:
        if delivery.bodies() == [b"3"] and next(failures, False):
            raise ValueError("once")
        done.extend(delivery.bodies())
        if len(done) == len(bodies):
            consumer.stop()

    report = consumer.run(variant.handler(work), workers=workers)
    assert report.is_clean
    assert sorted(done, key=int) == bodies
    assert sorted(deliverer.acked, key=int) == bodies
    assert deliverer.nacked == [b"3"]
    assert consumer.is_stopping


def test_run_in_order_tries_again_before_anything_later(variant: Variant, server: FakeServer) -> None:
    """The delivery stays leased during its pauses, and its attempts are counted."""
    deliverer = Deliverer(b"a", b"b")
    server.script("Consume", deliverer)
    consumer = variant.consumer()
    seen: list[tuple[bytes, int]] = []

    def work(delivery: Any) -> None:
        [body] = delivery.bodies()
        seen.append((body, delivery.attempt))
        if body == b"a" and delivery.attempt < 3:
            raise ValueError("not yet")
        if body == b"b":
            consumer.stop()

    assert consumer.run(variant.handler(work), ordered=True).is_clean
    assert seen == [(b"a", 1), (b"a", 2), (b"a", 3), (b"b", 1)]
    assert (deliverer.acked, deliverer.nacked) == ([b"a", b"b"], [])


def test_run_when_a_channel_is_given_up_finishes_and_raises(variant: Variant, server: FakeServer) -> None:
    """The deliveries of other workers are acknowledged before the error is raised."""
    deliverer = Deliverer(b"a")
    is_at_work = threading.Event()

    def serve(requests: Iterator[Any], context: Any) -> Iterator[Any]:
        first = next(requests)
        if first.start.channel == "orders":
            yield from deliverer(itertools.chain([first], requests), context)
        assert is_at_work.wait(WAIT_SECONDS)
        raise RefusalError(grpc.StatusCode.DATA_LOSS, "CORRUPT", "damaged")

    server.script("Consume", serve)

    def work(_delivery: Any) -> None:
        is_at_work.set()
        time.sleep(0.1)

    with pytest.raises(millrace.CorruptError, match="damaged"):
        variant.consumer(channels=("orders", "broken")).run(variant.handler(work), workers=2)
    assert deliverer.acked == [b"a"]


def test_run_of_a_handler_that_ends_the_program_returns_the_delivery(server: FakeServer) -> None:
    """SystemExit and KeyboardInterrupt propagate; unfinished deliveries come again."""
    for workers in (1, 2):
        deliverer = Deliverer(b"a")
        server.script("Consume", deliverer)

        def work(_delivery: Any) -> None:
            raise SystemExit

        with pytest.raises(SystemExit):
            millrace.Consumer(server.address, "orders", ConsumerConfig(**QUICK)).run(work, workers=workers)
        assert deliverer.acked == []


def test_delivery_as_a_block_is_settled_by_it(variant: Variant, server: FakeServer) -> None:
    """The delivery is acknowledged at the end of the block, or returned after a pause if the block raises."""
    deliverer = Deliverer(b"a", b"b")
    server.script("Consume", deliverer)
    with variant.consumer() as consumer:
        with consumer.receive(WAIT_SECONDS):
            pass
        with pytest.raises(ValueError, match="mine"), consumer.receive(WAIT_SECONDS):
            raise ValueError("mine")
        again = consumer.receive(WAIT_SECONDS)
        assert (again.bodies(), again.attempt) == ([b"b"], 2)
        assert again.ack()
    assert (deliverer.acked, deliverer.nacked) == ([b"a", b"b"], [b"b"])


@pytest.mark.parametrize(("workers", "ordered"), [(0, False), (1001, False), (2, True)])
def test_run_with_a_wrong_number_of_workers_is_refused(
    variant: Variant, server: FakeServer, workers: int, *, ordered: bool
) -> None:
    """Ordered processing needs exactly one worker."""
    with pytest.raises(millrace.BadArgumentError, match=f"workers: is {workers}"):
        variant.consumer().run(variant.handler(lambda _: None), workers=workers, ordered=ordered)


@pytest.mark.parametrize("delay", [-1.0, float("nan"), float("inf")])
def test_nack_with_a_wrong_delay_is_refused(variant: Variant, server: FakeServer, delay: float) -> None:
    """The delivery stays unsettled."""
    server.script("Consume", Deliverer(b"a"))
    delivery = variant.consumer().receive(WAIT_SECONDS)
    with pytest.raises(millrace.BadArgumentError, match="delay_seconds"):
        delivery.nack(delay)
    assert delivery.ack()


def test_nack_with_a_delay_returns_later(variant: Variant, server: FakeServer) -> None:
    """The nack is sent to the server after the delay."""
    deliverer = Deliverer(b"a")
    server.script("Consume", deliverer)
    with variant.consumer() as consumer:
        began_at = time.monotonic()
        assert consumer.receive(WAIT_SECONDS).nack(delay_seconds=0.1)
        again = consumer.receive(WAIT_SECONDS)
        assert time.monotonic() - began_at >= 0.1
        assert again.bodies() == [b"a"]
        assert again.ack()
    assert (deliverer.acked, deliverer.nacked) == ([b"a"], [b"a"])


def test_close_of_a_consumer_that_never_began_does_nothing(variant: Variant, server: FakeServer) -> None:
    """Closing makes no call, and may be repeated."""
    consumer = variant.consumer()
    assert consumer.close().is_clean
    assert consumer.close().is_clean
    assert list(consumer) == []
    assert consumer.receive() is None
    assert not server.requests


def test_close_that_the_server_does_not_respond_is_bounded(variant: Variant, server: FakeServer) -> None:
    """The close returns in time and reports that the stream did not end in order."""
    over = threading.Event()

    def stubborn(_requests: Any, context: Any) -> Iterator[Any]:
        context.add_callback(over.set)
        yield response_of(1)
        over.wait()

    server.script("Consume", stubborn)
    consumer = variant.consumer()
    assert consumer.receive(WAIT_SECONDS).ack()
    began_at = time.monotonic()
    report = consumer.close(0.2)
    assert time.monotonic() - began_at < 5.0
    assert len(report.errors) == 1
    assert over.wait(WAIT_SECONDS)


def test_consumer_that_is_dropped_ends(server: FakeServer) -> None:
    """A consumer that is garbage collected without being closed ends its stream and its threads in order."""
    deliverer = Deliverer(b"a", b"b")
    server.script("Consume", deliverer)
    for delivery in millrace.Consumer(server.address, "orders"):
        delivery.ack()
        break
    gc.collect()
    deliverer.wait_for(lambda it: it.ended_well == 1)
    assert deliverer.acked == [b"a"]


def test_program_that_ends_with_an_open_consumer_ends_its_stream_cleanly(server: FakeServer) -> None:
    """The server receives the acks and the end of the stream, not a broken connection that may overtake them."""
    deliverer = Deliverer(b"a", b"b")
    server.script("Consume", deliverer)
    ended = run_code(
        """
        import sys
        import millrace_client

        consumer = millrace_client.Consumer(sys.argv[1], "orders")
        consumer.receive().ack()
        """,
        server.address,
        warning_filters=("error", "ignore::DeprecationWarning"),
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    assert (deliverer.acked, deliverer.ended_well) == ([b"a"], 1)


@pytest.mark.parametrize("of_loop", [False, True])
def test_request_interrupted_anywhere_leaves_no_delivery_in_hand(server: FakeServer, *, of_loop: bool) -> None:
    """Ctrl-C may keep a delivery from its caller: it returns to the channel, and is delivered again."""
    deliverer = Deliverer(b"a")
    server.script("Consume", deliverer)
    with millrace.Consumer(server.address, "orders", ConsumerConfig(**QUICK)) as consumer:
        consumer.receive(0)
        for step in itertools.count():
            wait_until(lambda: consumer.metrics().queued_deliveries == 1, seconds_between=0.001)
            received: list[Any] = []
            request: Any = iter(consumer).__next__ if of_loop else consumer.receive
            was_interrupted = interrupt_at(step, lambda: received.append(request()))  # noqa: B023 - called at once
            for delivery in received:
                delivery.nack()
            if not was_interrupted:
                break
    assert step > 10
    assert not deliverer.acked


def test_asyncio_consumer_that_is_dropped_ends(server: FakeServer) -> None:
    """The same in an event loop that continues to run."""
    deliverer = Deliverer(b"a", b"b")
    server.script("Consume", deliverer)

    async def main() -> None:
        async for delivery in millrace_client.aio.AsyncConsumer(server.address, "orders"):
            await delivery.ack()
            break
        gc.collect()
        await asyncio.to_thread(deliverer.wait_for, lambda it: it.ended_well == 1)

    asyncio.run(main())
    assert deliverer.acked == [b"a"]


def test_close_from_another_thread_ends_a_waiting_loop(server: FakeServer) -> None:
    """The loop ends without an error; the delivery in its body may still be acknowledged."""
    deliverer = Deliverer(b"a", b"b")
    server.script("Consume", deliverer)
    consumer = millrace.Consumer(server.address, "orders", ConsumerConfig(prefetch=1))
    is_at_work, may_end = threading.Event(), threading.Event()

    def work() -> None:
        for _ in consumer:
            is_at_work.set()
            assert may_end.wait(WAIT_SECONDS)

    worker = threading.Thread(target=work)
    worker.start()
    assert is_at_work.wait(WAIT_SECONDS)
    reports: list[Any] = []
    closers = [threading.Thread(target=lambda: reports.append(consumer.close())) for _ in range(3)]
    for closer in closers:
        closer.start()
    assert reports == []
    may_end.set()
    for thread in (*closers, worker):
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    assert [report.is_clean for report in reports] == [True] * 3
    assert deliverer.acked == [b"a"]


def test_stop_in_a_signal_handler_ends_the_loop(server: FakeServer) -> None:
    """The loop ends at every point at which a signal may interrupt the main thread."""
    server.script("Consume", Deliverer(b"a"))
    consumer = millrace.Consumer(server.address, "orders", ConsumerConfig(**QUICK))
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
    try:
        timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGUSR1])
        timer.start()
        assert [delivery.bodies() for delivery in consumer] == [[b"a"]]
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert consumer.close().is_clean


def test_block_left_by_an_error_waits_for_no_receiver(variant: Variant, server: FakeServer) -> None:
    """After an error the caller settles nothing any more, so the close does not wait for its delivery."""
    server.script("Consume", Deliverer(b"a"))
    began_at = time.monotonic()
    with pytest.raises(ValueError, match="mine"), variant.consumer(close_seconds=30.0) as consumer:  # noqa: PT012 - the block is tested
        assert consumer.receive(WAIT_SECONDS) is not None
        raise ValueError("mine")
    assert time.monotonic() - began_at < 10.0


def test_loop_left_by_an_error_wakes_another_that_waits(server: FakeServer) -> None:
    """The returned delivery goes to the thread that waits."""
    server.script("Consume", Deliverer(b"a"))
    consumer = millrace.Consumer(server.address, "orders", ConsumerConfig(**QUICK))
    has_waiter = threading.Event()

    def fail() -> None:
        with contextlib.suppress(ValueError):
            for _ in consumer:
                assert has_waiter.wait(WAIT_SECONDS)
                raise ValueError

    failing = threading.Thread(target=fail)
    failing.start()
    while not consumer.metrics().delivered_deliveries or consumer.metrics().queued_deliveries:
        time.sleep(0.001)
    has_waiter.set()
    delivery = consumer.receive(WAIT_SECONDS)
    assert delivery is not None
    assert delivery.bodies() == [b"a"]
    assert delivery.ack()
    failing.join()
    assert consumer.close().is_clean


def test_threads_share_a_consumer(server: FakeServer) -> None:
    """Each event goes to one of the loops."""
    bodies = [b"%d" % number for number in range(100)]
    deliverer = Deliverer(*bodies)
    server.script("Consume", deliverer)
    consumer = millrace.Consumer(server.address, "orders", ConsumerConfig(**QUICK, idle_seconds=0.3))
    seen: list[bytes] = []

    def work() -> None:
        for delivery in consumer:
            seen.extend(delivery.bodies())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert consumer.close().is_clean
    assert sorted(seen, key=int) == bodies
    assert sorted(deliverer.acked, key=int) == bodies
