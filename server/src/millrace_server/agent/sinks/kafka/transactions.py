"""The producer of a sink, which sends events in transactions that also advance the sink's position. Not thread-safe."""

import re
from collections.abc import Callable, Iterable
from contextlib import suppress

import structlog
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from millrace.wire_format import Buffer
from millrace_server.agent.channel_reader import EventsRejectedError
from millrace_server.agent.kafka.client import TOPIC_PATTERN, described
from millrace_server.agent.sinks.kafka.config import KafkaSinkConfig
from millrace_server.agent.sinks.kafka.position import METADATA_BYTES_MAX, ChannelPosition, UnknownPositionError
from millrace_server.agent.sinks.kafka.records import RecordWriter
from millrace_server.agent.supervision import ComponentError, ComponentFailedError

_TOPIC = re.compile(TOPIC_PATTERN)
_QUEUE_WAIT_SECONDS = 0.1
_ABORT_SECONDS = 2.0

_REJECTIONS = {
    KafkaError.INVALID_RECORD,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001 - confluent-kafka's public constants have such names
}
"""Errors of single records, which would occur again in another attempt."""

_TOPIC_REJECTIONS = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - see above
}
"""Errors of a topic. An operator must repair the sink's own topic; for the topic in an event's header, the event is
rejected."""


_FENCINGS = {
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
    KafkaError._FENCED,  # noqa: SLF001 - see above
}


_Report = Callable[[KafkaError | None, Message], None]


class TransactionalProducer:
    """Sends events exactly once.

    `open` ends the transaction of an earlier process with the same transactional id: either Kafka has committed it, and
    the position includes it, or Kafka aborts it. It also fences that process, if it is still running.

    Attributes:
        position: The events that were sent.
    """

    def __init__(self, config: KafkaSinkConfig, name: str, channel_id: str) -> None:
        self._config = config
        self._log = structlog.stdlib.get_logger(__name__).bind(sink=name)
        self._id = f"{config.transactional_id_prefix}{channel_id}-{name}"
        self._timeout = config.timeout_seconds
        self._writer = RecordWriter(config)
        self._topics = {config.topic}
        self._trouble = ""
        self._failed: tuple[KafkaError, str] | None = None
        self._keeps_metadata = True
        self.position = ChannelPosition()
        properties = config.client_properties(name)
        try:
            self._producer = Producer(
                {
                    "partitioner": "murmur2_random",  # Java's: the same key goes to the same partition.
                    "linger.ms": 5,
                    **properties,
                    "transactional.id": self._id,
                    "delivery.report.only.error": True,
                    "error_cb": self._on_error,
                }
            )
            self._group = Consumer({**_for_group(properties), "group.id": self._id, "enable.auto.commit": False})
        except KafkaException as error:
            raise ComponentError(f"librdkafka rejects the settings of the client: {described(error)}") from None
        self._metadata = self._group.consumer_group_metadata()

    def open(self) -> None:
        """Takes over from an earlier process, and reads the position. Raises ComponentError if that is not possible."""
        try:
            self._producer.init_transactions(self._timeout)
            self._find_topic(self._config.topic)
            self.position = self._read_position()
            # Shows early whether the brokers permit everything and keep the offset's metadata, and prevents the group's
            # offset from expiring.
            self._producer.begin_transaction()
            self._commit(self.position)
            self._keeps_metadata = self._committed().metadata == self.position.metadata()
        except KafkaException as error:
            raise self._component_error(error) from None

    def close(self) -> None:
        """Aborts an open transaction, if the brokers respond, and disconnects."""
        with suppress(KafkaException):
            self._producer.purge()
            self._producer.abort_transaction(_ABORT_SECONDS)
        # Its `close` would wait for the brokers indefinitely.
        del self._producer
        self._group.close()

    def _read_position(self) -> ChannelPosition:
        committed = self._committed()
        if committed.offset == OFFSET_INVALID:
            return ChannelPosition()
        if not committed.metadata:
            # See `send`: if brokers keep no metadata, the sink only commits positions without gaps.
            return ChannelPosition(committed.offset)
        try:
            return ChannelPosition.parse(committed.offset, committed.metadata)
        except UnknownPositionError as error:
            raise ComponentFailedError(f"group {self._id} does not belong to this sink: {error}") from None

    def _committed(self) -> TopicPartition:
        found: TopicPartition = self._group.committed([TopicPartition(self._config.topic, 0)], self._timeout)[0]
        if found.error is not None:
            raise KafkaException(found.error)
        return found

    def send(self, batches: Iterable[Buffer], position: ChannelPosition) -> None:
        """Sends events, as serialized columns, and advances the position, both or neither.

        Raises EventsRejectedError if one of the events can never be sent; `send` may then be called again. Raises
        ComponentError if they cannot be sent now, or if it is unknown whether they were, which only `open` shows.
        """
        if position.has_gaps and not self._keeps_metadata:
            raise ComponentError(
                "the brokers do not keep the metadata of offsets, so the sink must be the only one that takes from the "
                "channel, and another consumer has taken events that are not settled"
            )
        failure: KafkaException | None = None
        # Delivery reports take longer than everything else, so they are requested only after a transaction has failed.
        for on_delivery in (None, self._on_delivery):
            self._failed = None
            try:
                self._producer.begin_transaction()
                self._produce(batches, on_delivery)
                self._commit(position)
            except EventsRejectedError:
                self._abort()
                raise
            except KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise self._component_error(error) from None
                failure = error
                self._abort()
            else:
                self.position = position
                return
        self._raise_rejection()
        assert failure is not None, "one of the attempts has raised"
        raise self._component_error(failure)

    def _produce(self, batches: Iterable[Buffer], on_delivery: _Report | None) -> None:
        produce, topics = self._producer.produce, self._topics
        topic = self._config.topic
        try:
            for batch in batches:
                for topic, value, key, partition, timestamp, headers in self._writer.records(batch):
                    if topic not in topics:
                        self._find_topic(topic)
                    while True:
                        try:
                            produce(topic, value, key, partition, on_delivery, timestamp=timestamp, headers=headers)
                        except BufferError:
                            # The queue is full.
                            self._producer.poll(_QUEUE_WAIT_SECONDS)
                        else:
                            break
                # Serves librdkafka's events, such as connection errors.
                self._producer.poll(0)
        except KafkaException as error:
            if error.args[0].code() in _REJECTIONS:
                raise EventsRejectedError(f"{topic}: {described(error)}") from None
            raise

    def _commit(self, position: ChannelPosition) -> None:
        metadata = position.metadata()
        if len(metadata) > METADATA_BYTES_MAX:
            raise ComponentError(
                "other consumers have taken too many single events of the channel that are not settled"
            )
        offset = TopicPartition(self._config.topic, 0, position.next_sequence, metadata)
        self._producer.send_offsets_to_transaction([offset], self._metadata, self._timeout)
        self._producer.commit_transaction(self._timeout)

    def _abort(self) -> None:
        try:
            self._producer.abort_transaction(self._timeout)
        except KafkaException as error:
            raise self._component_error(error) from None

    def _find_topic(self, topic: str) -> None:
        """Raises EventsRejectedError if an event's topic does not exist; ComponentError if the sink's own does not."""
        is_own = topic == self._config.topic
        if not _TOPIC.fullmatch(topic):
            raise EventsRejectedError(f"{topic[:100]!r} is not the name of a topic")
        error = self._producer.list_topics(topic, self._timeout).topics[topic].error
        if error is None:
            self._topics.add(topic)
            return
        if is_own or error.code() not in _TOPIC_REJECTIONS:
            raise ComponentError(f"topic {topic}: {described(error)}")
        raise EventsRejectedError(f"topic {topic}: {described(error)}")

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        # Only the first error: later records fail because the transaction has failed.
        if error is not None and self._failed is None:
            self._failed = error, message.topic() or ""

    def _on_error(self, error: KafkaError) -> None:
        self._trouble = described(error)

    def _raise_rejection(self) -> None:
        if self._failed is None:
            return
        error, topic = self._failed
        is_topics_fault = error.code() in _TOPIC_REJECTIONS and topic != self._config.topic
        if error.code() in _REJECTIONS or is_topics_fault:
            self._topics.discard(topic)
            raise EventsRejectedError(f"{topic}: {described(error)}")

    def _component_error(self, error: KafkaException) -> ComponentError:
        code = error.args[0].code()
        if code in _FENCINGS:
            return ComponentError(f"another process sends with the transactional id {self._id}: {described(error)}")
        if self._failed is not None:
            failed, topic = self._failed
            return ComponentError(f"{topic}: {described(failed)}")
        # Serves `_on_error`, which gets more specific errors.
        self._producer.poll(0)
        what = described(error)
        if code == KafkaError._TIMED_OUT:  # noqa: SLF001 - see above
            what = f"{', '.join(self._config.bootstrap_servers)}: no response within {self._timeout:g} seconds"
        return ComponentError(f"{what} ({self._trouble})" if self._trouble else what)


def _for_group(properties: dict[str, object]) -> dict[str, object]:
    """Returns the connection properties of a producer, for a consumer that only reads the group's offset."""
    return {
        name: value
        for name, value in properties.items()
        if name.startswith(("bootstrap.", "broker.", "sasl.", "security.", "socket.", "ssl.", "client.", "logger"))
    }
