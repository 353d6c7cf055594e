"""The configurations of docs/kafka.md, checked, and the one between two clusters, run."""

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from tests.certificates import Site
from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of
from tests.kafka_brokers import ONE_BY_ONE, WAIT_SECONDS_MAX, Broker, Record
from tests.millrace_program import run_millrace
from tests.millraced import run_millraced

PAGE = Path(__file__).parents[2] / "docs" / "kafka.md"


@pytest.mark.parametrize("kind", ["source", "sink", "between", "security"])
def test_configurations_of_the_page_are_good(kind: str, tmp_path: Path) -> None:
    """The server and librdkafka accept each of them."""
    (config,) = blocks_of(PAGE, kind)
    site = Site(tmp_path / "site")
    files = {"ca.pem": "ca.pem", "millrace.pem": "client.pem", "millrace.key": "client.key"}
    for name, file in files.items():
        config = config.replace(f'"{name}"', f'"{site.folder / file}"')
    (tmp_path / "kafka.password").write_text("secret\n")
    (tmp_path / "kafka.password").chmod(0o600)
    (tmp_path / "millrace.toml").write_text(config.replace('"kafka.password"', f'"{tmp_path}/kafka.password"'))
    checked = run_millraced("check", tmp_path / "millrace.toml")
    assert checked.returncode == 0, checked.stderr


def test_channel_between_two_clusters_copies_records_as_they_are(start_millraced: StartMillraced) -> None:
    """Keys, values, null values and times of each partition arrive once, also when the server is killed in between."""
    (config,) = blocks_of(PAGE, "between")
    with Broker() as east, Broker() as west:
        for cluster, name in ((east, "east.example:9092"), (west, "west.example:9092")):
            cluster.create(orders=2)
            config = config.replace(name, cluster.server)
        # The broker of tests has no consumer groups.
        config = config.replace('topics = ["orders"]', "partitions = { orders = [0, 1] }")
        config = config.replace("[sinks.to-west]", '[sinks.to-west]\npartition_header = "kafka.partition"')
        server = start_millraced(config)
        expected: list[list[Record]] = []
        for round_number in range(2):
            _produce(east, range(round_number * 100, round_number * 100 + 100))
            expected = [_content(east, partition) for partition in range(2)]
            _wait_for(west, 100 * (round_number + 1))
            if round_number == 0:
                server.kill()
                server = start_millraced(config, data_dir=server.data_dir)
        assert [_content(west, partition) for partition in range(2)] == expected
        shown = run_millrace(server.grpc, "components").stdout
        assert b"from-east" in shown
        assert b"to-west" in shown


def _produce(cluster: Broker, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": cluster.server, **ONE_BY_ONE})
    for number in numbers:
        value = None if number % 10 == 0 else b"%d" % number
        producer.produce("orders", value, b"k%d\xff" % number, number % 2, headers=[("h", b"\xfe")])
    assert producer.flush(WAIT_SECONDS_MAX) == 0


def _content(cluster: Broker, partition: int) -> list[Record]:
    return [record._replace(offset=0) for record in cluster.committed_records("orders", partition)]


def _wait_for(cluster: Broker, count: int) -> None:
    give_up_at = time.monotonic() + WAIT_SECONDS_MAX
    while sum(len(_content(cluster, partition)) for partition in range(2)) < count:
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
