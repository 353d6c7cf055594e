"""Consumers of real servers: restarts, cut connections, killed processes, limits, and closing."""

import asyncio
import contextlib
import itertools
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import millrace_client as millrace
from millrace_client import ChannelConfig, ConsumerConfig, aio
from tests.conftest import StartMillraced
from tests.cutting_proxy import cutting_proxy
from tests.fork_server import run_code
from tests.free_ports import free_port
from tests.millraced import Millraced

WAIT_SECONDS = 60.0
FILE_CHANNEL = """
server.shutdown_grace_seconds = 2.0

[channels.orders]
type = "file"
capacity = 100000
min_free_bytes = 0
"""
_names = itertools.count(1)


def bodies_of(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


@pytest.fixture
def orders(shared_server: Millraced) -> millrace.Channel:
    """A memory channel of the test's own."""
    client = millrace.connect(shared_server.grpc)
    name = f"consumed-{next(_names)}"
    # Longer than tests wait: none passes because a lease has ended.
    limits = ChannelConfig(capacity=100_000, transaction_capacity=10_000, lease_seconds=600.0)
    client.admin.create_channel(name, limits)
    return client.channel(name)


def left_in(channel: millrace.Channel) -> list[bytes]:
    """The bodies that a channel holds."""
    return [body for batch in channel.peek(max_events=100_000) for body in batch.bodies()]


def wait_for_gauges(server: Millraced, name: str, **gauges: int) -> None:
    """Waits until a channel's gauges have these values."""
    give_up_at = time.monotonic() + WAIT_SECONDS
    with millrace.connect(server.grpc) as client:
        while True:
            now = client.admin.get_channel(name).gauges
            if all(getattr(now, gauge) == value for gauge, value in gauges.items()):
                return
            assert time.monotonic() < give_up_at, now


@contextlib.contextmanager
def working(work: threading.Thread) -> Iterator[None]:
    """Runs a thread concurrently with the block."""
    work.start()
    yield
    work.join(WAIT_SECONDS)
    assert not work.is_alive()


def test_channels_of_many_servers_come_together(start_millraced: StartMillraced) -> None:
    """Each event of each channel on each server is delivered once, in its channel's order."""
    servers = [start_millraced() for _ in range(2)]
    sent: dict[tuple[str, str], list[bytes]] = {}
    for server, channel in itertools.product(servers, ("a", "b")):
        with millrace.connect(server.grpc) as client:
            client.admin.create_channel(channel, ChannelConfig(capacity=10_000))
            sent[server.grpc, channel] = bodies_of(500)
            for start in range(0, 500, 50):
                client.channel(channel).append(bodies_of(50, start))
    seen: dict[tuple[str, str], list[bytes]] = {place: [] for place in sent}
    endpoints = [server.grpc for server in servers]
    with millrace.Consumer(endpoints, ["a", "b"], ConsumerConfig(delivery_events_max=20)) as consumer:
        for delivery in consumer:
            seen[delivery.endpoint, delivery.channel] += delivery.bodies()
            if sum(map(len, seen.values())) == sum(map(len, sent.values())):
                consumer.stop()
    assert seen == sent
    for server, channel in itertools.product(servers, ("a", "b")):
        wait_for_gauges(server, channel, queued_events=0, taken_events=0)


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_server_that_restarts_loses_nothing(start_millraced: StartMillraced, tmp_path: Path, how: str) -> None:
    """On a file channel every event is delivered; only events in progress during the restart come twice."""
    seed = random.randrange(1 << 32)
    print("seed", seed)  # noqa: T201 - a failure is repeated with it
    chance = random.Random(seed)
    listen = ("--listen", f"127.0.0.1:{free_port()}")
    data_dir = tmp_path / "kept"
    server = start_millraced(FILE_CHANNEL, data_dir, listen)
    all_bodies = bodies_of(3_000)
    with millrace.connect(server.grpc) as client:
        for start in range(0, 3_000, 100):
            client.channel("orders").append(bodies_of(100, start))
    prefetch, batch = 4, 10
    config = ConsumerConfig(prefetch=prefetch, delivery_events_max=batch, reconnect_seconds=0.05)
    consumer = millrace.Consumer(server.grpc, "orders", config)
    seen: Counter[bytes] = Counter()
    restart_at = chance.randrange(500, 2_500)
    has_reached = threading.Event()

    def work() -> None:
        for delivery in consumer:
            seen.update(delivery.bodies())
            if len(seen) >= restart_at:
                has_reached.set()
            if len(seen) == len(all_bodies):
                consumer.stop()

    with working(threading.Thread(target=work)):
        assert has_reached.wait(WAIT_SECONDS)
        if how == "stop":
            server.stop()
        else:
            server.kill()
        server = start_millraced(FILE_CHANNEL, data_dir, listen)
    assert consumer.close().is_clean
    assert sorted(seen, key=int) == all_bodies
    twice = sorted(int(body) for body, count in seen.items() if count > 1)
    if how == "stop":
        # All acks that arrived took effect; unacknowledged events came again.
        assert len(twice) <= prefetch * batch
    else:
        # Acks that were not synced yet are lost: the last ones before the kill, without a gap.
        assert twice == list(range(twice[0], twice[0] + len(twice)) if twice else [])
    assert consumer.metrics().reconnects > 0
    wait_for_gauges(server, "orders", queued_events=0, taken_events=0)


async def test_connections_that_are_cut_lose_nothing(shared_server: Millraced, orders: millrace.Channel) -> None:
    """With cuts at any moment every event is delivered, and finally the channel is empty."""
    seed = random.randrange(1 << 32)
    print("seed", seed)  # noqa: T201 - a failure is repeated with it
    chance = random.Random(seed)
    for start in range(0, 5_000, 100):
        orders.append(bodies_of(100, start))
    seen: set[bytes] = set()
    fast = (("grpc.initial_reconnect_backoff_ms", 10),)
    config = ConsumerConfig(delivery_events_max=20, reconnect_seconds=0.01, options=fast)
    cut_count = 0
    async with (
        cutting_proxy(shared_server.grpc) as proxy,
        aio.AsyncConsumer(proxy.address, orders.name, config) as consumer,
    ):
        async for delivery in consumer:
            seen.update(delivery.bodies())
            # Not near the end, where a broken stream may not be noticed before the consumer is closed.
            if len(seen) < 4_000 and cut_count < 10 and chance.random() < 0.05:
                cut_count += 1
                for connection in tuple(proxy._connections):
                    connection.cancel()
            if len(seen) == 5_000 and await delivery.ack():
                break
        metrics = consumer.metrics()
        assert (await consumer.close()).is_clean
        # gRPC keeps the last connection for a while.
        for connection in tuple(proxy._connections):
            connection.cancel()
        await asyncio.sleep(0.01)
    assert cut_count > 0
    # Two cuts at the same time may count as one.
    assert 0 < metrics.reconnects <= cut_count
    assert len(seen) == 5_000


def test_consumer_that_is_killed_loses_nothing(shared_server: Millraced, orders: millrace.Channel) -> None:
    """Unacknowledged events go to the next consumer at once, without waiting for a lease."""
    orders.append(bodies_of(200))
    program = """
        import sys, time
        import millrace_client as millrace
        config = millrace.ConsumerConfig(delivery_events_max=10, prefetch=5)
        for number, delivery in enumerate(millrace.Consumer(sys.argv[1], sys.argv[2], config)):
            print(*[body.decode() for body in delivery.bodies()], flush=True)
            if number == 5:
                time.sleep(600)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), shared_server.grpc, orders.name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(6)]
        wait_for_gauges(shared_server, orders.name, queued_events=100, taken_events=50)
        process.kill()
    worked_on = [word.encode() for line in lines for word in line.split()]
    assert worked_on == bodies_of(60)
    wait_for_gauges(shared_server, orders.name, taken_events=0)
    with millrace.Consumer(shared_server.grpc, orders.name) as consumer:
        rest = [event.body for event in itertools.islice(consumer.events(), 150)]
    # The sixth delivery was not acknowledged.
    assert rest == bodies_of(150, 50)


def test_slow_consumer_is_bounded_in_bytes(shared_server: Millraced, orders: millrace.Channel) -> None:
    """However much is queued on the server, the consumer holds a bounded part; larger single events pass too."""
    for _ in range(10):
        orders.append([b"x" * 10_000] * 50)
    orders.append([b"y" * 1_000_000])
    limit = 400_000
    config = ConsumerConfig(prefetch=8, prefetch_bytes_max=limit)
    most = 0
    with millrace.Consumer(shared_server.grpc, orders.name, config) as consumer:
        first = consumer.receive(WAIT_SECONDS)
        assert first is not None
        wait_for_gauges(shared_server, orders.name, taken_events=8 * 5)
        assert consumer.metrics().unsettled_bytes <= limit * 1.1
        assert first.nack()
        seen: Counter[int] = Counter()
        for event in itertools.islice(consumer.events(), 501):
            seen[len(event.body)] += 1
            if len(event.body) < 1_000_000:
                most = max(most, consumer.metrics().unsettled_bytes)
    assert seen == {10_000: 500, 1_000_000: 1}
    assert most <= limit * 1.1 + 1_000_100


@pytest.mark.parametrize("workers", [1, 4])
def test_graceful_stop_settles_what_was_begun(shared_server: Millraced, orders: millrace.Channel, workers: int) -> None:
    """Events processed by handlers are removed, and the others are in the channel."""
    orders.append(bodies_of(2_000))
    done: list[bytes] = []
    consumer = millrace.Consumer(shared_server.grpc, orders.name, ConsumerConfig(delivery_events_max=5))

    def handle(delivery: millrace.ConsumerDelivery) -> None:
        time.sleep(0.001)
        done.extend(delivery.bodies())
        if len(done) > 500:
            consumer.stop()

    assert consumer.run(handler=handle, workers=workers).is_clean
    wait_for_gauges(shared_server, orders.name, taken_events=0)
    assert sorted([*done, *left_in(orders)], key=int) == bodies_of(2_000)


def test_server_that_drains_takes_the_last_acks(start_millraced: StartMillraced) -> None:
    """While a server stops, deliveries can still be acknowledged, and do not return at its next start."""
    server = start_millraced(FILE_CHANNEL)
    with millrace.connect(server.grpc) as client:
        client.channel("orders").append([b"a"])
    with millrace.Consumer(server.grpc, "orders") as consumer:
        delivery = consumer.receive(WAIT_SECONDS)
        assert delivery is not None
        server.send(signal.SIGTERM)
        server.wait_for("stopping")
        assert delivery.ack()
        assert server.wait() == 0
        again = start_millraced(FILE_CHANNEL, server.data_dir)
        wait_for_gauges(again, "orders", queued_events=0, taken_events=0)


run = partial(run_code, warning_filters=("error", "ignore::DeprecationWarning"))


@pytest.mark.parametrize("ending", ["break", "raise SystemExit", "consumer.stop()"])
def test_program_that_ends_keeps_its_acks(shared_server: Millraced, orders: millrace.Channel, ending: str) -> None:
    """The program may exit right after an ack without closing anything; the ack arrives, and nothing is printed."""
    orders.append([b"a", b"b", b"c"])
    result = run(
        f"""
        import sys
        import millrace_client as millrace

        consumer = millrace.Consumer(sys.argv[1], sys.argv[2], millrace.ConsumerConfig(delivery_events_max=1))
        for delivery in consumer:
            delivery.ack()
            {ending}
        """,
        shared_server.grpc,
        orders.name,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    wait_for_gauges(shared_server, orders.name, taken_events=0)
    assert left_in(orders) == [b"b", b"c"]


def test_process_that_is_forked_cannot_use_a_consumer(shared_server: Millraced, orders: millrace.Channel) -> None:
    """The child's calls raise ClientForkedError; the parent's consumer continues."""
    orders.append([b"a", b"b"])
    result = run(
        """
        import os, sys
        import millrace_client as millrace

        consumer = millrace.Consumer(sys.argv[1], sys.argv[2], millrace.ConsumerConfig(delivery_events_max=1))
        delivery = consumer.receive()
        child = os.fork()
        if child == 0:
            for use in (consumer.receive, delivery.ack, lambda: print(consumer.close().is_clean, flush=True)):
                try:
                    use()
                except millrace.ClientForkedError as error:
                    print(type(error).__name__, flush=True)
            sys.exit(0)
        print(os.waitpid(child, 0)[1], delivery.ack(), consumer.receive().ack(), consumer.close().is_clean)
        """,
        shared_server.grpc,
        orders.name,
    )
    assert "Traceback" not in result.stderr
    assert result.stdout.split() == ["ClientForkedError", "ClientForkedError", "True", "0", "True", "True", "True"]
    assert left_in(orders) == []


def test_asyncio_program_that_closes_nothing_ends(shared_server: Millraced, orders: millrace.Channel) -> None:
    """An open consumer does not keep the loop running."""
    orders.append([b"a", b"b"])
    result = run(
        """
        import asyncio, sys
        import millrace_client.aio as millrace

        async def main():
            global consumer
            consumer = millrace.AsyncConsumer(sys.argv[1], sys.argv[2])
            async for delivery in consumer:
                await delivery.ack()
                break

        asyncio.run(main())
        """,
        shared_server.grpc,
        orders.name,
    )
    assert (result.returncode, result.stdout) == (0, ""), result.stderr


@pytest.mark.parametrize("ending", ["", "handler.close(); producer.close()", "raise SystemExit"])
def test_program_that_logs_leaves_every_record(shared_server: Millraced, orders: millrace.Channel, ending: str) -> None:
    """Records of all threads are in the channel after the program ends, although the producer was not closed."""
    result = run(
        f"""
        import logging, sys, threading
        import millrace_client as millrace
        from millrace_client.logging_handler import MillraceHandler

        producer = millrace.Producer([sys.argv[1]])
        handler = MillraceHandler(producer, sys.argv[2], body="text", key="one")
        logging.getLogger().addHandler(handler)
        logging.getLogger().setLevel(logging.DEBUG)
        def log(thread):
            for number in range(500):
                logging.info("%d-%d", thread, number)
        threads = [threading.Thread(target=log, args=(thread,)) for thread in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        {ending}
        """,
        shared_server.grpc,
        orders.name,
    )
    assert (result.returncode, result.stdout) == (0, ""), result.stderr
    assert "lost" not in result.stderr
    lines = [line.decode() for line in left_in(orders) if b"-" in line]
    for thread in range(4):
        own = [line for line in lines if line.startswith(f"{thread}-")]
        assert own == [f"{thread}-{number}" for number in range(500)]
