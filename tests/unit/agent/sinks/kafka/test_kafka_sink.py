"""The sink at work on a broker, whose log shows what consumers with `read_committed` see."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from millrace_server.agent.channel_reader import ChannelReader
from millrace_server.agent.sinks.kafka import sink, transactions
from millrace_server.agent.sinks.kafka.config import KafkaSinkConfig
from millrace_server.agent.sinks.kafka.sink import KafkaSink
from millrace_server.agent.sinks.sink import SinkContext
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import ChannelRegistry
from tests.agent_components import registry_with
from tests.channel_events import Row, append, begin_with_takes, queued, stored_rows
from tests.forward_targets import reader_of
from tests.kafka_brokers import Broker, values_of
from tests.waiting import until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture
async def registry() -> ChannelRegistry:
    return registry_with("orders", "rejected", capacity=10_000, transaction_capacity=1_000)


@pytest.fixture
async def channel(registry: ChannelRegistry) -> Channel:
    return registry.get("orders")


@pytest.fixture
def topic(broker: Broker, request: pytest.FixtureRequest) -> str:
    name = request.node.name.translate(str.maketrans("[]", "--"))[-40:]
    broker.create(**{name: 2})
    return str(name)


def sink_of(broker: Broker, topic: str, **settings: Any) -> KafkaSink:
    table = {"type": "kafka", "channel": "orders", "bootstrap_servers": [broker.server], "topic": topic, **settings}
    made = KafkaSinkConfig.model_validate(table, strict=True).make(SinkContext("out", Path()))
    assert isinstance(made, KafkaSink)
    return made


async def empty(channel: Channel, tested: KafkaSink, reader: ChannelReader) -> None:
    """Runs a sink until its channel is empty."""
    work = asyncio.create_task(tested.run(reader))
    await until(lambda: not channel._contents.capacity.event_count or work.done())
    reader.close()
    await work


def sent(broker: Broker, topic: str) -> list[bytes]:
    """What consumers with `read_committed` see, in the order of each partition."""
    return [value or b"" for partition in range(2) for value in values_of(broker.committed_records(topic, partition))]


def numbered(*numbers: int) -> list[bytes]:
    return [b"%03d" % number for number in numbers]


async def test_run_sends_each_event_with_its_place(
    broker: Broker, topic: str, registry: ChannelRegistry, channel: Channel
) -> None:
    """The events and the position in the channel are committed together."""
    await append(channel, *numbered(*range(100)))
    await empty(channel, sink_of(broker, topic), reader_of(registry))
    assert sorted(sent(broker, topic)) == numbered(*range(100))
    assert broker.committed_offset(f"millrace-{channel.channel_id}-out", topic) == 101


async def test_run_by_headers_chooses_topic_partition_key_time_and_value(
    broker: Broker, topic: str, registry: ChannelRegistry, channel: Channel
) -> None:
    """Headers say what a record is; those of the source `kafka` do not become headers of the record."""
    broker.create(**{f"{topic}-x": 2})
    rows = [
        ({"to": f"{topic}-x", "part": "1", "kafka.key": "k", "kafka.timestamp": "1700000000001", "h": "v"}, b"a"),
        ({"part": "0", "kafka.tombstone": "true", "kafka.key": "/w==", "kafka.base64": '["kafka.key"]'}, b""),
    ]
    await channel.appends.append([stored_rows(rows)], None)
    await empty(channel, sink_of(broker, topic, topic_header="to", partition_header="part"), reader_of(registry))
    (other,) = broker.committed_records(f"{topic}-x", 1)
    (own,) = broker.committed_records(topic, 0)
    assert (other.key, other.value) == (b"k", b"a")
    assert (own.key, own.value) == (b"\xff", None)


POINTS = ("begin_transaction", "produce", "send_offsets_to_transaction", "commit_transaction", "settle")


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("point", POINTS)
async def test_run_after_an_end_at_any_point_sends_each_event_once(  # noqa: PLR0913, PLR0917 - fixtures
    broker: Broker,
    topic: str,
    registry: ChannelRegistry,
    channel: Channel,
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    *,
    is_before: bool,
) -> None:
    """Wherever a process ends, and though it may still live and try to go on, its successor sends what is missing."""
    await append(channel, *numbered(*range(20)))
    zombies: list[Producer] = []
    with monkeypatch.context() as patch:
        patch.setattr(sink, "CLOSE_SECONDS", 0.0)
        patch.setattr(transactions, "Producer", _dying(zombies, point, is_before=is_before))
        patch.setattr(transactions.TransactionalProducer, "close", lambda self: None)
        if point == "settle":
            patch.setattr("millrace_server.agent.channel_reader.Delivery.settle", _fail)
        reader = reader_of(registry)
        with pytest.raises((ComponentError, RuntimeError)):
            await sink_of(broker, topic).run(reader)
        reader.nack_all()
    assert channel._contents.capacity.event_count == 20
    await append(channel, *numbered(*range(20, 25)))
    await empty(channel, sink_of(broker, topic), reader_of(registry))
    for zombie in zombies:
        with suppress(KafkaException):
            # What a process does that was only halted: its transaction is over, or another one's.
            Producer.commit_transaction(zombie, 0.2)
    assert sorted(sent(broker, topic)) == numbered(*range(25))


class _EndError(RuntimeError):
    pass


async def _fail(_delivery: object) -> None:
    raise _EndError


def _dying(made: list[Producer], point: str, *, is_before: bool) -> type[Producer]:
    """Returns a producer that raises in one method, in its second transaction: the first commits the position."""

    class Dying(Producer):
        def __init__(self, properties: dict[str, Any]) -> None:
            super().__init__(properties)
            made.append(self)
            self.transaction_count = 0

    def wrapped(name: str) -> Callable[..., Any]:
        def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
            self.transaction_count += name == "begin_transaction"
            is_due = name == point and self.transaction_count > 1
            if is_due and is_before:
                raise _EndError
            result = getattr(Producer, name)(self, *arguments, **keywords)
            if is_due:
                raise _EndError
            return result

        return method

    for name in POINTS[:-1]:
        setattr(Dying, name, wrapped(name))
    return Dying


async def test_run_of_two_at_a_time_fences_the_first(
    broker: Broker, topic: str, registry: ChannelRegistry, channel: Channel
) -> None:
    """A process that was taken for dead cannot send any more, and says why."""
    table = {"type": "kafka", "channel": "orders", "bootstrap_servers": [broker.server], "topic": topic}
    config = KafkaSinkConfig.model_validate(table)
    await append(channel, *numbered(1))
    (batch,) = list(channel._contents.queue)
    producers = [transactions.TransactionalProducer(config, "out", channel.channel_id) for _ in range(2)]
    for producer in producers:
        await asyncio.to_thread(producer.open)
    # It waits for a response that does not come.
    producers[0]._timeout = 1.0
    reached = producers[0].position.after([batch], 1)
    with pytest.raises(ComponentError):
        await asyncio.to_thread(producers[0].send, [batch.window.columns()], reached)
    await asyncio.to_thread(producers[1].send, [batch.window.columns()], reached)
    for producer in producers:
        await asyncio.to_thread(producer.close)
    assert sent(broker, topic) == numbered(1)


@pytest.mark.parametrize(
    ("headers", "body", "words"),
    [
        pytest.param({}, b"x" * 2_000, "MSG_SIZE_TOO_LARGE", id="too-large"),
        pytest.param({"to": "no such topic!"}, b"x", "not the name of a topic", id="topic-name"),
        pytest.param({"part": "-1"}, b"x", "whole number", id="partition-text"),
        pytest.param({"part": "7"}, b"x", "_UNKNOWN_PARTITION", id="partition"),
        pytest.param({"kafka.timestamp": "today"}, b"x", "whole number", id="timestamp"),
        pytest.param({"kafka.base64": "[["}, b"x", "does not match", id="base64-mark"),
        pytest.param({"kafka.base64": "[" * 100_000}, b"x", "does not match", id="base64-deep-mark"),
        pytest.param({"kafka.base64": '["a"]', "a": "!"}, b"x", "does not match", id="base64-value"),
    ],
)
async def test_run_with_event_that_no_broker_takes_sends_the_others(  # noqa: PLR0913, PLR0917 - fixtures
    broker: Broker,
    topic: str,
    registry: ChannelRegistry,
    channel: Channel,
    headers: dict[str, str],
    body: bytes,
    words: str,
) -> None:
    """Such an event goes to the dead-letter channel with the reason; the others are sent once."""
    rows: list[Row] = [({}, b"000"), ({}, b"001"), (headers, body), ({}, b"002"), ({}, b"003")]
    await channel.appends.append([stored_rows(rows)], None)
    reader = reader_of(registry, deliveries_max=1, dead_letter_channel="rejected")
    client = {"message.max.bytes": 1_000}
    await empty(channel, sink_of(broker, topic, topic_header="to", partition_header="part", client=client), reader)
    assert sorted(sent(broker, topic)) == numbered(0, 1, 2, 3)
    (letter,) = [row for batch in registry.get("rejected")._contents.queue for row in batch.window.rows()]
    assert words in letter[0]["millrace.dead_letter.reason"]
    assert queued(registry.get("rejected")) == [body]


class _Topics(NamedTuple):
    topics: dict[str, SimpleNamespace]


class _WithoutTopics(Producer):
    """Sees brokers that have only some topics: those of tests create all others as they are asked for."""

    missing: frozenset[str] = frozenset()

    def list_topics(self, topic: str | None = None, timeout: float = 0) -> _Topics:
        assert topic is not None
        error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART) if topic in self.missing else None
        return _Topics({topic: SimpleNamespace(error=error)})


async def test_run_without_brokers_says_who_does_not_respond_and_why(
    registry: ChannelRegistry, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of the sink shows early that it waits, and then which address is wrong; the events wait."""
    monkeypatch.setattr(sink, "SLOW_SECONDS", 0.1)
    reader = reader_of(registry)
    await append(channel, *numbered(1))
    table = {"type": "kafka", "channel": "orders", "bootstrap_servers": ["127.0.0.1:1"], "topic": "orders"}
    unreachable = KafkaSinkConfig.model_validate({**table, "timeout_seconds": 1.0}).make(SinkContext("out", Path()))
    with pytest.raises(ComponentError, match=r"^127.0.0.1:1: no response within 1 seconds \(.*127.0.0.1:1.*\)$"):
        await unreachable.run(reader)
    assert reader.component.reason == "the brokers have not responded for 0.1 s or more"
    assert len(queued(channel)) == 1


async def test_run_to_missing_topics_tells_its_own_from_those_of_events(
    broker: Broker, topic: str, registry: ChannelRegistry, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events wait while the sink's own topic does not exist; one that names a missing topic is rejected."""
    await channel.appends.append([stored_rows([({"to": "absent"}, b"x"), ({}, b"y")])], None)
    monkeypatch.setattr(transactions, "Producer", _WithoutTopics)
    monkeypatch.setattr(_WithoutTopics, "missing", frozenset({topic, "absent"}))
    with pytest.raises(ComponentError, match=f"topic {topic}: UNKNOWN_TOPIC_OR_PART"):
        await sink_of(broker, topic, topic_header="to").run(reader_of(registry))
    assert len(queued(channel)) == 2
    monkeypatch.setattr(_WithoutTopics, "missing", frozenset({"absent"}))
    reader = reader_of(registry, deliveries_max=1, dead_letter_channel="rejected")
    await empty(channel, sink_of(broker, topic, topic_header="to"), reader)
    assert sent(broker, topic) == [b"y"]
    assert queued(registry.get("rejected")) == [b"x"]


class _RefusingBrokers(Producer):
    """Sees brokers that refuse a transaction with a certain record, as they do with one that is too large for them."""

    def produce(self, topic: str, value: Any = None, *arguments: Any, **keywords: Any) -> None:
        super().produce(topic, value, *arguments[:2], **keywords)
        report = arguments[2]
        if value == b"refused":
            self.is_refused = True
            if report is not None:
                report(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), SimpleNamespace(topic=lambda: topic))

    def commit_transaction(self, timeout: float = 0) -> None:
        if getattr(self, "is_refused", False):
            self.is_refused = False
            raise KafkaException(KafkaError(KafkaError._INCONSISTENT, "1 failed", txn_requires_abort=True))
        super().commit_transaction(timeout)


async def test_run_with_event_that_the_brokers_refuse_finds_it_by_reports(
    broker: Broker, topic: str, registry: ChannelRegistry, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction that fails is repeated with a report of each record, which tells what is at fault."""
    monkeypatch.setattr(transactions, "Producer", _RefusingBrokers)
    await append(channel, b"000", b"refused", b"001")
    reader = reader_of(registry, deliveries_max=1, dead_letter_channel="rejected")
    await empty(channel, sink_of(broker, topic), reader)
    assert sorted(sent(broker, topic)) == numbered(0, 1)
    assert queued(registry.get("rejected")) == [b"refused"]


async def test_run_beside_another_consumer_needs_brokers_that_keep_metadata(
    broker: Broker, topic: str, registry: ChannelRegistry, channel: Channel
) -> None:
    """Without the position's metadata, events that may return below it could be lost; so none are sent above it."""
    await append(channel, *numbered(*range(10)))
    txn_id = await begin_with_takes(channel, 4)
    with pytest.raises(ComponentError, match="do not keep the metadata of offsets"):
        await sink_of(broker, topic).run(reader := reader_of(registry))
    reader.nack_all()
    assert sent(broker, topic) == []
    await channel.transactions.commit([txn_id], None)
    await empty(channel, sink_of(broker, topic), reader_of(registry))
    assert sorted(sent(broker, topic)) == numbered(*range(4, 10))
