"""SIGKILL of a server between two Kafka clusters: each record arrives once, and in the order of its partition."""

import random
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.conftest import StartMillraced
from tests.kafka_brokers import ONE_BY_ONE, WAIT_SECONDS_MAX, Broker, values_of

_KILLS_IN_THE_SUITE = 3
_KILLS_IN_TORTURE = 40
_PARTITIONS = 2
_RECORDS_MAX = 1_000
_LIFE_SECONDS_MAX = 0.6

_CONFIG = """
[server]
shutdown_grace_seconds = 0.0
[channels.mirror]
type = "file"
[sources.from-east]
type = "kafka"
channels = ["mirror"]
bootstrap_servers = ["{east}"]
partitions = {{ records = [0, 1] }}
group = "mirror"
client = {{ "auto.commit.interval.ms" = 100 }}
batch_events_max = {batch_events_max}
[sinks.to-west]
type = "kafka"
channel = "mirror"
bootstrap_servers = ["{west}"]
topic = "records"
partition_header = "kafka.partition"
batch_events_max = {batch_events_max}
"""


def _mirror_through_kills(start: StartMillraced, data_dir: Path, kills: int, chance: random.Random) -> None:
    """Produces and kills in turns, at random; in the end all records must be there once."""
    with Broker() as east, Broker() as west:
        for cluster in (east, west):
            cluster.create(records=_PARTITIONS)
        config = _CONFIG.format(east=east.server, west=west.server, batch_events_max=chance.choice([7, 100, 10_000]))
        produced: list[list[bytes | None]] = [[] for _ in range(_PARTITIONS)]
        for _ in range(kills):
            _produce(east, produced, chance)
            server = start(config, data_dir)
            time.sleep(chance.uniform(0, _LIFE_SECONDS_MAX))
            server.kill()
        server = start(config, data_dir)
        give_up_at = time.monotonic() + 2 * WAIT_SECONDS_MAX
        while (mirrored := _mirrored(west)) != produced:
            counts = list(map(len, mirrored)), list(map(len, produced))
            assert time.monotonic() < give_up_at, counts
            assert all(len(mine) <= len(theirs) for mine, theirs in zip(mirrored, produced, strict=True)), counts
            time.sleep(0.05)
        server.kill()


def _produce(cluster: Broker, produced: list[list[bytes | None]], chance: random.Random) -> None:
    producer = Producer({"bootstrap.servers": cluster.server, **ONE_BY_ONE})
    for _ in range(chance.randint(1, _RECORDS_MAX)):
        partition = chance.randrange(_PARTITIONS)
        value = b"%d-%d" % (partition, len(produced[partition]))
        produced[partition].append(value)
        producer.produce("records", value, b"k", partition)
    assert producer.flush(WAIT_SECONDS_MAX) == 0


def _mirrored(cluster: Broker) -> list[list[bytes | None]]:
    return [values_of(cluster.committed_records("records", partition)) for partition in range(_PARTITIONS)]


def test_kills_between_two_clusters_lose_and_repeat_nothing(
    start_millraced: StartMillraced, tmp_path: Path, chance: random.Random
) -> None:
    """Wherever the server is killed, what it had stored and what it had sent is known to the next one."""
    _mirror_through_kills(start_millraced, tmp_path / "data", _KILLS_IN_THE_SUITE, chance)


@pytest.mark.torture
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("round_number", range(5))
def test_many_kills_between_two_clusters_lose_and_repeat_nothing(
    start_millraced: StartMillraced, tmp_path: Path, chance: random.Random, round_number: int
) -> None:
    """The same for a long time."""
    _mirror_through_kills(start_millraced, tmp_path / "data", _KILLS_IN_TORTURE, chance)
