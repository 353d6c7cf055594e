"""Kafka: the source beside a bare consumer, and the sink beside a bare transactional producer, in turns."""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from millrace_client import Client, connect
from tests.bench.findings import Line, Section
from tests.kafka_brokers import WAIT_SECONDS_MAX, Broker
from tests.millraced import Millraced

BODY_BYTES = 512
SHARE_MIN = 0.5

_PARTITIONS = 3
_AT_ONCE = 10_000
"""Records of a transaction, of both producers."""
_LOOK_SECONDS = 0.005

_CHANNEL_TOML = """
[server]
shutdown_grace_seconds = 0.0
[channels.records]
type = "file"
capacity = 10000000
byte_capacity = 8589934592
"""
_SOURCE_TOML = """
[sources.from]
type = "kafka"
channels = ["records"]
bootstrap_servers = ["{server}"]
partitions = {{ bench = [0, 1, 2] }}
group = "bench"
"""
_SINK_TOML = """
[sinks.to]
type = "kafka"
channel = "records"
bootstrap_servers = ["{server}"]
topic = "bench"
"""


@dataclass(frozen=True, kw_only=True)
class KafkaPlan:
    """The extent of the measurements."""

    records: int = 200_000
    """The number of records that are moved in each round, each way."""
    rounds: int = 5

    @property
    def step_count(self) -> int:
        """The number of steps."""
        return 2 * self.rounds


QUICK_KAFKA_PLAN = KafkaPlan(records=50_000, rounds=1)


def measure_kafka(scratch: Path, plan: KafkaPlan, on_step: Callable[[], None]) -> list[Section]:
    """Measures both ways, with brokers that keep everything in memory on the same machine.

    Args:
        scratch: An empty directory on the disk that is measured.
        plan: The extent.
        on_step: Called after each step.
    """
    return [
        _section("source: records of {} bytes, with a key and a header, into a file channel", _measure_source)(
            scratch / "source", plan, on_step
        ),
        _section("sink: events of {} bytes out of a file channel, in transactions", _measure_sink)(
            scratch / "sink", plan, on_step
        ),
    ]


_Rates = tuple[float, float]
"""Ours, and the bare loop's."""


def _section(
    title: str, measure_one: Callable[[Path, Broker, int], _Rates]
) -> Callable[[Path, KafkaPlan, Callable[[], None]], Section]:
    def measure(scratch: Path, plan: KafkaPlan, on_step: Callable[[], None]) -> Section:
        rates: list[_Rates] = []
        for number in range(plan.rounds):
            folder = scratch / str(number)
            folder.mkdir(parents=True)
            with Broker() as broker:
                broker.create(bench=_PARTITIONS, bare=_PARTITIONS)
                rates.append(measure_one(folder, broker, plan.records))
            on_step()
        share = statistics.median(ours / bare for ours, bare in rates)
        return Section(
            title.format(BODY_BYTES),
            [
                Line(what="Millrace", value=statistics.median(ours for ours, _ in rates), unit="events/s"),
                Line(what="a bare loop", value=statistics.median(bare for _, bare in rates), unit="events/s"),
                Line(what="share of the bare loop's rate", value=share, unit="", least=SHARE_MIN),
            ],
        )

    return measure


@contextmanager
def _serving(folder: Path, config: str) -> Iterator[tuple[Millraced, Client]]:
    path, data_dir = folder / "millrace.toml", folder / "data"
    path.write_text(_CHANNEL_TOML + config)
    ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    server = Millraced(("--config", str(path), "--data-dir", str(data_dir), *ports), data_dir, python=sys.executable)
    try:
        with connect(server.grpc) as client:
            yield server, client
    finally:
        server.kill()


def _rate_of(client: Client, read: Callable[[Client], int], count: int) -> float:
    """Returns the rate from the first events that were moved to the last of so many."""
    while not (begun_with := read(client)):
        time.sleep(_LOOK_SECONDS)
    began = time.perf_counter()
    while (moved := read(client)) < count:
        time.sleep(_LOOK_SECONDS)
    return (moved - begun_with) / (time.perf_counter() - began)


def _measure_source(folder: Path, broker: Broker, count: int) -> _Rates:
    _fill(broker, count)
    bare = _bare_consume(broker, count)
    with _serving(folder, _SOURCE_TOML.format(server=broker.server)) as (_, client):
        return _rate_of(client, _next_sequence, count), bare


def _next_sequence(client: Client) -> int:
    return client.admin.get_channel("records").gauges.next_sequence - 1


def _first_sequence(client: Client) -> int:
    return client.admin.get_channel("records").gauges.first_sequence - 1


def _fill(broker: Broker, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.server, "linger.ms": 20, "queue.buffering.max.messages": count})
    for number in range(count):
        producer.produce(
            "bench", b"x" * BODY_BYTES, b"%d" % number, number % _PARTITIONS, headers=[("host", b"web-1.example")]
        )
    assert producer.flush(WAIT_SECONDS_MAX) == 0


def _bare_consume(broker: Broker, count: int) -> float:
    consumer = Consumer({"bootstrap.servers": broker.server, "group.id": "bare", "enable.auto.commit": False})
    consumer.assign([TopicPartition("bench", partition, 0) for partition in range(_PARTITIONS)])
    seen = body_bytes = 0
    began = 0.0
    while seen < count:
        messages = consumer.consume(_AT_ONCE, 0.1)
        began = began or (time.perf_counter() if messages else 0.0)
        for message in messages:
            assert message.error() is None
            value = message.value()
            assert value is not None
            body_bytes += len(value)
            message.key()
            message.headers()
        seen += len(messages)
    rate = seen / (time.perf_counter() - began)
    assert body_bytes == count * BODY_BYTES
    consumer.close()
    return rate


def _measure_sink(folder: Path, broker: Broker, count: int) -> _Rates:
    with _serving(folder, "") as (_, client):
        channel = client.channel("records")
        for _ in range(0, count, _AT_ONCE):
            channel.append([b"x" * BODY_BYTES] * _AT_ONCE)
    bare = _bare_produce(broker, count)
    with _serving(folder, _SINK_TOML.format(server=broker.server)) as (_, client):
        return _rate_of(client, _first_sequence, count), bare


def _bare_produce(broker: Broker, count: int) -> float:
    producer = Producer({"bootstrap.servers": broker.server, "transactional.id": "bare", "linger.ms": 5})
    producer.init_transactions(WAIT_SECONDS_MAX)
    began = time.perf_counter()
    for _ in range(0, count, _AT_ONCE):
        producer.begin_transaction()
        for _ in range(_AT_ONCE):
            producer.produce("bare", b"x" * BODY_BYTES)
        producer.commit_transaction(WAIT_SECONDS_MAX)
    return count / (time.perf_counter() - began)
