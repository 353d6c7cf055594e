"""Both consumers against a scripted server: loops, handlers and deliveries."""

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

import millrace_client as millrace
import millrace_client.aio
from millrace_client import ConsumerConfig
from tests.unit.client.consuming.consumer_variants import QUICK, WAIT_SECONDS, Deliverer, Variant, deliver
from tests.unit.client.consuming.fakes import response_of
from tests.unit.client.fake_server import FakeServer, RefusalError


def test_loop_acknowledges_what_its_body_was_done_with(variant: Variant, server: FakeServer) -> None:
    """Each turn acknowledges the delivery before; the end of the loop by `idle_seconds` acknowledges the last."""
    deliverer = deliver(server)
    with variant.consumer(idle_seconds=0.1) as consumer:
        variant.queue(consumer, deliverer, b"a", b"b", b"c")
        bodies = [body for delivery in consumer for body in delivery.bodies()]
    assert bodies == [b"a", b"b", b"c"]
    assert deliverer.acked == [b"a", b"b", b"c"]
    assert deliverer.ended_well == 1


def test_loop_that_ends_before_a_server_was_reached_raises_the_reason(variant: Variant) -> None:
    """Otherwise a program that reads until nothing is left would end as if it had read everything."""
    consumer = variant.consumer("127.0.0.1:1", idle_seconds=0.1)
    assert consumer.receive(0) is None
    variant.wait_until(lambda: consumer.metrics().lanes[0].error is not None)
    for _ in range(2):
        with pytest.raises(millrace.UnavailableError, match="at 127\\.0\\.0\\.1:1;"):
            list(consumer)
    assert consumer.close().is_clean


def test_loop_left_by_an_error_returns_the_delivery(variant: Variant, server: FakeServer) -> None:
    """Earlier deliveries stay acknowledged; the current one is delivered again."""
    deliverer = deliver(server, b"a", b"b", b"c")
    with pytest.raises(ValueError, match="mine"), variant.consumer() as consumer:  # noqa: PT012 - the loop is tested
        for delivery in consumer:
            if delivery.bodies() == [b"b"]:
                raise ValueError("mine")
    assert deliverer.acked == [b"a"]


def test_loop_left_by_break_returns_the_delivery_unless_acknowledged(variant: Variant, server: FakeServer) -> None:
    """Python does not distinguish a break from an error, so a loop must call `ack` before `break`."""
    deliverer = deliver(server, b"a", b"b", b"c")
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
    deliverer = deliver(server)
    with variant.consumer(auto_ack=False, idle_seconds=0.1, close_seconds=0.1) as consumer:
        variant.queue(consumer, deliverer, b"a", b"b", b"c")
        kept = list(consumer)
        assert kept[1].ack()
        assert not kept[1].nack()
        # The close takes all its time, since the others are not settled.
        deliverer.wait_for(lambda it: it.acked)
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
    deliver(server, b"a")
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
    deliverer = deliver(server, *bodies, breaks_after=5)
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
    deliver(server, b"a", b"b")
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
    deliverer = deliver(server, *bodies)
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
    deliverer = deliver(server, b"a", b"b")
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
        deliverer = deliver(server, b"a")

        def work(_delivery: Any) -> None:
            raise SystemExit

        with pytest.raises(SystemExit):
            millrace.Consumer(server.address, "orders", ConsumerConfig(**QUICK)).run(work, workers=workers)
        assert deliverer.acked == []


def test_delivery_as_a_block_is_settled_by_it(variant: Variant, server: FakeServer) -> None:
    """The delivery is acknowledged at the end of the block, or returned after a pause if the block raises."""
    deliverer = deliver(server, b"a", b"b")
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
    deliver(server, b"a")
    delivery = variant.consumer().receive(WAIT_SECONDS)
    with pytest.raises(millrace.BadArgumentError, match="delay_seconds"):
        delivery.nack(delay)
    assert delivery.ack()


def test_nack_with_a_delay_returns_later(variant: Variant, server: FakeServer) -> None:
    """The nack is sent to the server after the delay."""
    deliverer = deliver(server, b"a")
    with variant.consumer() as consumer:
        began_at = time.monotonic()
        assert consumer.receive(WAIT_SECONDS).nack(delay_seconds=0.1)
        again = consumer.receive(WAIT_SECONDS)
        assert time.monotonic() - began_at >= 0.1
        assert again.bodies() == [b"a"]
        assert again.ack()
    assert (deliverer.acked, deliverer.nacked) == ([b"a"], [b"a"])
