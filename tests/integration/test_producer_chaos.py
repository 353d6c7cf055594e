"""A producer on an unreliable network, with a server that is killed repeatedly."""

import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import millrace_client as millrace
from millrace_client import Event, Producer, ProducerConfig, SendFuture, SendResult
from tests.free_ports import free_port
from tests.millraced import Millraced
from tests.unreliable_network import FaultRates, UnreliableNetwork, unreliable_network

THREADS = 8
KEYS_OF_A_THREAD = 25
_CONFIG_TOML = """
server.shutdown_grace_seconds = 0.0
[channels.orders]
type = "file"
capacity = 1000000
transaction_capacity = 1000
"""


class RestartingServer:
    """A server at one address, which is killed and restarted at random times."""

    def __init__(self, folder: Path, seed: int) -> None:
        config, data_dir = folder / "millrace.toml", folder / "data"
        config.write_text(_CONFIG_TOML)
        self.address = f"127.0.0.1:{free_port()}"
        listen = ("--listen", self.address, "--http-listen", "127.0.0.1:0")
        self._arguments = ("--config", str(config), "--data-dir", str(data_dir), *listen)
        self._data_dir = data_dir
        self._random = random.Random(seed)
        self._server = Millraced(self._arguments, data_dir)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._restart_at_times)
        self.restart_count = 0

    def begin(self) -> None:
        self._thread.start()

    def end_restarts(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _restart_at_times(self) -> None:
        while not self._stopping.wait(self._random.uniform(0.5, 2.0)):
            if self._random.random() < 0.5:
                self._server.kill()
            else:
                self._server.send(signal.SIGTERM)
                self._server.wait()
            self._server = Millraced(self._arguments, self._data_dir)
            self.restart_count += 1

    def kill(self) -> None:
        self.end_restarts()
        self._server.kill()


@contextmanager
def chaos(folder: Path, seed: int, faults: FaultRates) -> Iterator[tuple[RestartingServer, UnreliableNetwork]]:
    server = RestartingServer(folder, seed)
    try:
        with unreliable_network(server.address, seed, faults) as network:
            server.begin()
            yield server, network
    finally:
        server.kill()


class Sent:
    """What one thread has sent: the number of events for each key, and their futures."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.counts: dict[str, int] = defaultdict(int)
        self.futures: list[SendFuture] = []
        self.callback_counts: dict[bytes, int] = defaultdict(int)

    def send(self, producer: Producer, count: int, seed: int) -> None:
        draw = random.Random(seed + self.number)
        for _ in range(count):
            key = f"{self.number}-{draw.randrange(KEYS_OF_A_THREAD)}"
            place = self.counts[key]
            self.counts[key] += 1
            body = f"{key} {place}".encode()

            def called(result: SendResult, body: bytes = body) -> None:
                assert result.stored
                self.callback_counts[body] += 1

            event = Event(body, {"place": str(place)})
            self.futures.append(producer.send(event, key=key, callback=called))
            # Bursts and pauses, slow enough for several restarts.
            if draw.random() < 0.1:
                time.sleep(draw.random() * 0.1)


def stored_bodies(address: str) -> list[bytes]:
    with millrace.connect(address, timeout_seconds=60) as client:
        channel = client.channel("orders")
        with channel.claim("checker") as claim:
            batches = list(channel.read("checker", epoch=claim.epoch))
        return [body for batch in batches for body in batch.bodies()]


def run_chaos(folder: Path, event_count: int, seed: int, faults: FaultRates) -> None:
    print(f"seed {seed}")  # noqa: T201 - to run it again
    sent = [Sent(number) for number in range(THREADS)]
    config = ProducerConfig(
        batch_events_max=200,
        linger_seconds=0.005,
        backoff_seconds=0.02,
        backoff_seconds_max=0.5,
        timeout_seconds=5.0,
        delivery_timeout_seconds=600.0,
        buffer_bytes_max=1 << 20,
        max_block_seconds=600.0,
    )
    with chaos(folder, seed, faults) as (server, network):
        producer = Producer(network.address, "orders", config=config)
        threads = [
            threading.Thread(target=one.send, args=(producer, event_count // THREADS, seed), daemon=True)
            for one in sent
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        server.end_restarts()
        network.is_calm = True
        report = producer.close(120.0)
        metrics = producer.metrics()
        counts = f"{server.restart_count} restarts, {network.cut_count} cuts, {metrics}"
        print(counts)  # noqa: T201 - what the run was like
        assert report.is_complete, report
        bodies = stored_bodies(server.address)
    assert len(bodies) == len(set(bodies)), "an event is stored twice"
    by_key: dict[str, list[int]] = defaultdict(list)
    for body in bodies:
        key, _, place = body.decode().partition(" ")
        by_key[key].append(int(place))
    for one in sent:
        for key, count in one.counts.items():
            assert by_key[key] == list(range(count)), f"key {key} is out of order, or not whole"
        assert all(future.done() for future in one.futures)
        for future in one.futures:
            assert future.result(0).stored
        assert set(one.callback_counts.values()) == {1}
        assert len(one.callback_counts) == len(one.futures)
    # Without retries the test would be meaningless.
    assert metrics.retries > 0


def test_send_through_chaos_stores_each_event_once_and_in_order(tmp_path: Path) -> None:
    """Cuts, lost responses, delays and kills leave every event in its channel once, with each key in order."""
    run_chaos(tmp_path, 6_000, random.randrange(1 << 32), FaultRates(cut_upwards=0.02, cut_downwards=0.05))


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("round_number", range(3))
def test_send_through_long_chaos_stores_each_event_once_and_in_order(tmp_path: Path, round_number: int) -> None:
    """The same with many times the events."""
    run_chaos(tmp_path, 100_000, random.randrange(1 << 32), FaultRates())
