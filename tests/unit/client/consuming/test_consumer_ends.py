"""How both consumers are closed, dropped, stopped and shared by threads."""

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

import pytest

import millrace_client as millrace
import millrace_client.aio
from millrace_client import ConsumerConfig
from tests.fork_server import run_code
from tests.interrupts import interrupt_at
from tests.unit.client.consuming.consumer_variants import QUICK, WAIT_SECONDS, Variant, deliver
from tests.unit.client.consuming.fakes import response_of
from tests.unit.client.fake_server import FakeServer
from tests.waiting import wait_until


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
    consumer = variant.consumer(close_seconds=10 * WAIT_SECONDS)
    assert consumer.receive(WAIT_SECONDS).ack()
    began_at = time.monotonic()
    report = consumer.close(0.2)
    assert time.monotonic() - began_at < WAIT_SECONDS
    assert len(report.errors) == 1
    assert over.wait(WAIT_SECONDS)


def test_consumer_that_is_dropped_ends(server: FakeServer) -> None:
    """A consumer that is garbage collected without being closed ends its stream and its threads in order."""
    deliverer = deliver(server, b"a", b"b")
    for delivery in millrace.Consumer(server.address, "orders"):
        delivery.ack()
        break
    gc.collect()
    deliverer.wait_for(lambda it: it.ended_well == 1)
    assert deliverer.acked == [b"a"]


def test_asyncio_consumer_that_is_dropped_ends(server: FakeServer) -> None:
    """The same in an event loop that continues to run."""
    deliverer = deliver(server, b"a", b"b")

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
    deliverer = deliver(server, b"a", b"b")
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
    deliver(server, b"a")
    consumer = millrace.Consumer(server.address, "orders", ConsumerConfig(**QUICK))
    timer = threading.Timer(0.05, os.kill, [os.getpid(), signal.SIGUSR1])
    before = signal.signal(signal.SIGUSR1, lambda *_: consumer.stop())
    try:
        bodies = []
        for delivery in consumer:
            bodies.extend(delivery.bodies())
            timer.start()
        assert bodies == [b"a"]
        timer.join()
    finally:
        # After a failure, the signal would end the process.
        timer.cancel()
        signal.signal(signal.SIGUSR1, before)
    assert consumer.close().is_clean


def test_block_left_by_an_error_waits_for_no_receiver(variant: Variant, server: FakeServer) -> None:
    """After an error the caller settles nothing any more, so the close does not wait for its delivery."""
    deliver(server, b"a")
    with pytest.raises(ValueError, match="mine"), variant.consumer(close_seconds=10 * WAIT_SECONDS) as consumer:  # noqa: PT012 - the block is tested
        assert consumer.receive(WAIT_SECONDS) is not None
        left_at = time.monotonic()
        raise ValueError("mine")
    assert time.monotonic() - left_at < WAIT_SECONDS


def test_loop_left_by_an_error_wakes_another_that_waits(server: FakeServer) -> None:
    """The returned delivery goes to the thread that waits."""
    deliver(server, b"a")
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
    deliverer = deliver(server, *bodies)
    consumer = millrace.Consumer(server.address, "orders", ConsumerConfig(**QUICK))
    seen: list[bytes] = []

    def work() -> None:
        for delivery in consumer:
            seen.extend(delivery.bodies())
            if len(seen) == len(bodies):
                consumer.stop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
    assert consumer.close().is_clean
    assert sorted(seen, key=int) == bodies
    assert sorted(deliverer.acked, key=int) == bodies


def test_program_that_ends_with_an_open_consumer_ends_its_stream_cleanly(server: FakeServer) -> None:
    """The server receives the acks and the end of the stream, not a broken connection that may overtake them."""
    deliverer = deliver(server, b"a", b"b")
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
    deliverer = deliver(server)
    with millrace.Consumer(server.address, "orders", ConsumerConfig(**QUICK)) as consumer:
        assert consumer.receive(0) is None
        deliverer.add(b"a")
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
