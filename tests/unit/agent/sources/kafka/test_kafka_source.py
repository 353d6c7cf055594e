"""The source at work on brokers; see `tests.kafka_brokers` for which of them proves what."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from millrace_server.agent.components import ComponentState
from millrace_server.agent.sources.kafka import consumer, source
from millrace_server.agent.sources.kafka.config import KafkaSourceConfig
from millrace_server.agent.sources.kafka.consumer import PartitionConsumer
from millrace_server.channels.registry import ChannelRegistry
from tests.kafka_brokers import Broker, Cluster, MockCluster, produce_raw
from tests.source_writers import memory, registry_of
from tests.unit.agent.sources.running_sources import bodies_in, rows_in, running_source, take
from tests.waiting import until


@pytest.fixture(scope="module")
def mock() -> MockCluster:
    return MockCluster()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets fetches end, and waits for channels begin to show the brokers life, after a few hundredths of a second."""
    monkeypatch.setattr(consumer, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(source, "STAY_SECONDS", 0.05)


def config_of(cluster: Cluster, **settings: Any) -> KafkaSourceConfig:
    table = {
        "type": "kafka",
        "channels": ["lines"],
        "bootstrap_servers": [cluster.server],
        "group": "millrace",
        "topic_ids": isinstance(cluster, Broker),
        "request_timeout_seconds": 10.0,
        **settings,
    }
    return KafkaSourceConfig.model_validate(table, strict=True)


def registry_with(**limits: Any) -> ChannelRegistry:
    return registry_of(lines=memory(**{"capacity": 10_000, "transaction_capacity": 1_000, **limits}))


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


async def read(registry: ChannelRegistry, config: KafkaSourceConfig, directory: Path, count: int) -> list[bytes]:
    """Runs the source until the channel has this many events; returns all bodies."""
    async with running_source(config, registry, directory) as component:
        await until(lambda: registry.get("lines").event_count >= count)
        assert component.state is ComponentState.RUNNING
    return bodies_in(registry)


async def test_run_of_assigned_partitions_stores_each_record_once(broker: Broker, tmp_path: Path) -> None:
    """A partition goes on where it ended, and a stamp keeps what is read again from being stored again."""
    broker.create(again=2)
    broker.produce("again", numbered(*range(20)))
    registry = registry_with()
    settings = config_of(broker, partitions={"again": [0, 1]})
    assert await read(registry, settings, tmp_path, 20) == numbered(*range(20))
    assert broker.committed_offset("millrace", "again") == 20
    broker.produce("again", numbered(20, 21))
    assert await read(registry, settings, tmp_path, 22) == numbered(*range(22))
    # The group's offset goes back: to what the channel has stored already.
    await asyncio.to_thread(broker.commit, "millrace", "again", 3)
    broker.produce("again", numbered(22))
    assert await read(registry, settings, tmp_path, 23) == numbered(*range(23))


async def test_run_across_the_ends_of_transactions_stamps_one_interval(broker: Broker, tmp_path: Path) -> None:
    """The offsets of transactions' ends have no record, and leave no gap in the numbers that the channel remembers."""
    broker.create(txns=1)
    for number in range(6):
        broker.produce("txns", numbered(number), is_transactional=True)
    registry = registry_with()
    assert await read(registry, config_of(broker, partitions={"txns": [0]}), tmp_path, 6) == numbered(*range(6))
    offsets = [int(headers["kafka.offset"]) for headers, _ in rows_in(registry)]
    assert offsets == list(range(0, 12, 2))
    (producer,) = registry.get("lines")._contents.ledger.describe()
    assert (producer.last_sequence, producer.gap_count) == (10, 0)


async def test_run_of_topic_that_was_created_again_reads_the_new_one(broker: Broker, tmp_path: Path) -> None:
    """A topic's id tells the source that offset 0 is another record than the offset 0 of before."""
    registry = registry_with()
    for round_number in range(2):
        broker.create(reborn=1)
        broker.produce("reborn", numbered(round_number, 7))
        settings = config_of(broker, partitions={"reborn": [0]}, group=f"g{round_number}")
        # The group differs as its offset would have gone with the topic; the producer's id would differ by it alone.
        await read(registry, settings, tmp_path, 2 * round_number + 2)
        broker.delete("reborn")
    assert bodies_in(registry) == numbered(0, 7, 1, 7)
    assert len(list(registry.get("lines")._contents.ledger.describe())) == 2


async def test_run_with_header_names_that_are_no_text_goes_on_without_them(broker: Broker, tmp_path: Path) -> None:
    """Bytes that Kafka does not allow as a header's name cost a record its headers, not the server its life."""
    broker.create(hostile=1)
    produce_raw(broker, "hostile", [(b"a", [(b"\xff\xfe", b"x")]), (b"b", [(b"fine", b"y"), (b"", None)])])
    registry = registry_with()
    settings = config_of(broker, partitions={"hostile": [0]}, headers=[])
    async with running_source(settings, registry, tmp_path) as component:
        await until(lambda: registry.get("lines").event_count == 2)
        assert rows_in(registry) == [({}, b"a"), ({"fine": "y", "": ""}, b"b")]
        await until(lambda: component.incident_counts["unreadable_headers"] == 1)


@pytest.mark.parametrize(
    "protocol",
    [
        pytest.param(
            {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}, id="eager", marks=pytest.mark.torture
        ),
        pytest.param(
            {
                "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 200,
                "partition.assignment.strategy": "cooperative-sticky",
            },
            id="cooperative",
            marks=pytest.mark.torture,
        ),
        pytest.param({"group.protocol": "consumer"}, id="consumer-protocol"),
    ],
)
async def test_run_of_group_members_shares_the_partitions(
    mock: MockCluster, tmp_path: Path, protocol: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """Each member goes on where the group's offsets are, and stores no record that another one has stored."""
    group = topic = request.node.callspec.id
    for partition in range(4):
        mock.produce(topic, numbered(*range(partition, 400, 4)), partition)
    settings = config_of(mock, topics=[topic], group=group, client={**protocol, "auto.commit.interval.ms": 50})
    first, second = registry_with(), registry_with()
    async with running_source(settings, first, tmp_path / "1"):
        await until(lambda: first.get("lines").event_count == 400)
        for partition in range(4):
            # The mock cluster refuses commits during a rebalance, which Kafka takes until all members have joined.
            await asyncio.to_thread(mock.wait_for_commit, group, topic, partition, 100)
        async with running_source(settings, second, tmp_path / "2") as two:
            await until(lambda: two.incident_counts["rebalance"] >= 1)
            for partition in range(4):
                mock.produce(topic, numbered(*range(400 + partition, 440, 4)), partition)
            await until(lambda: first.get("lines").event_count + second.get("lines").event_count >= 440)
            bodies = bodies_in(first) + bodies_in(second)
            assert sorted(map(int, bodies)) == list(range(440))
            assert len(bodies_in(second)) == 20


async def test_revoke_of_partition_waits_until_what_was_fetched_is_stored(mock: MockCluster) -> None:
    """A partition changes hands only once the group's offset tells what its former owner has stored."""
    incidents: list[str] = []

    def report(incident: str, message: str, **fields: object) -> None:
        incidents.append(incident)

    tested = PartitionConsumer(config_of(mock, topics=["shared"], group="revoked"), "in", lambda _: [[]], report)
    try:
        tested.is_stored.clear()
        revoking = asyncio.create_task(
            asyncio.to_thread(tested._on_revoke, tested._consumer, [TopicPartition("shared", 0)])
        )
        await asyncio.wait({revoking}, timeout=0.1)
        assert not revoking.done()
        tested.is_stored.set()
        await revoking
        assert incidents == ["rebalance"]
    finally:
        tested.close()


async def test_run_by_pattern_reads_topics_that_match_as_a_whole(mock: MockCluster, tmp_path: Path) -> None:
    """A regular expression stands for topics."""
    mock.produce("logs-a", [b"a"])
    mock.produce("logs-b", [b"b"])
    mock.produce("my-logs-c", [b"c"])
    settings = config_of(mock, topic_pattern="logs-([ab]|[0-9]{2})+", group="pattern")
    assert sorted(await read(registry_with(), settings, tmp_path, 2)) == [b"a", b"b"]


async def test_run_on_full_channel_stays_in_the_group(mock: MockCluster, tmp_path: Path) -> None:
    """While the channel has no space, the source neither loses its partitions nor its records, nor their order."""
    mock.produce("slow", numbered(*range(30)))
    registry = registry_with(capacity=5, transaction_capacity=5, keep_alive_seconds=0.0)
    client = {"session.timeout.ms": 6_000, "max.poll.interval.ms": 6_000}
    settings = config_of(mock, partitions={"slow": [0]}, group="slow", client=client)
    taken: list[bytes] = []
    async with running_source(settings, registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.BACKING_OFF)
        # Much longer than the interval at which it shows life.
        await asyncio.sleep(0.3)
        while len(taken) < 30:
            taken += await take(registry, 5)
        assert component.incident_counts["partitions_lost"] == 0
    assert taken == numbered(*range(30))


async def test_run_on_offset_that_is_gone_resets_and_counts(mock: MockCluster, tmp_path: Path) -> None:
    """Old records that the brokers have deleted are told, and the source goes on with the oldest one."""
    mock.produce("old", [b"x" * 900_000] * 8)
    registry = registry_with()
    settings = config_of(mock, partitions={"old": [0]}, group="old")
    await asyncio.to_thread(mock.commit, "old", "old", 0)
    async with running_source(settings, registry, tmp_path) as component:
        await until(lambda: rows_in(registry)[-1:] != [] and rows_in(registry)[-1][0]["kafka.offset"] == "7")
        assert component.incident_counts["offset_reset"] == 1
    offsets = [int(headers["kafka.offset"]) for headers, _ in rows_in(registry)]
    assert 0 < offsets[0] < 7
    assert offsets == list(range(offsets[0], 8))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"topics": ["missing"]}, "missing: UNKNOWN_TOPIC_OR_PART", id="topic"),
        pytest.param({"partitions": {"few": [9]}}, "Unknown partition", id="partition"),
        pytest.param({"bootstrap_servers": ["127.0.0.1:9"], "topics": ["x"]}, "127.0.0.1:9 cannot be", id="broker"),
    ],
)
async def test_run_of_what_does_not_exist_backs_off_and_says_so(
    broker: Broker, tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    """The state says which topic, partition or broker there is not; the source tries again."""
    if "partitions" in settings:
        broker.create(few=1)
    config = config_of(broker, **{"request_timeout_seconds": 1.0, **settings})
    async with running_source(config, registry_with(), tmp_path) as component:
        await until(lambda: words in component.reason)
        assert component.state is ComponentState.BACKING_OFF


async def test_run_on_reused_offsets_fails_until_the_producer_is_forgotten(mock: MockCluster, tmp_path: Path) -> None:
    """Where a partition has become shorter than what is stored, the source stops, and says what to do."""
    mock.produce("cut", numbered(*range(5)))
    registry = registry_with()
    settings = config_of(mock, partitions={"cut": [0]}, group="cut")
    await read(registry, settings, tmp_path, 5)
    channel = registry.get("lines")
    (producer,) = channel._contents.ledger.describe()
    channel._contents.ledger.restore(producer.producer_id, [(0, 99)])
    async with running_source(settings, registry, tmp_path) as component:
        await until(lambda: component.state is ComponentState.FAILED)
        assert producer.producer_id in component.reason
