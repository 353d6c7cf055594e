"""The consumer of a source, which fetches the records of its partitions and commits the offsets of stored ones."""

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from millrace_server.agent.kafka.client import described
from millrace_server.agent.kafka.topic_patterns import subscribed
from millrace_server.agent.sources.kafka.config import KafkaSourceConfig
from millrace_server.agent.sources.kafka.positions import (
    PartitionFacts,
    PieceCutter,
    Start,
    producer_id_of,
    start_of,
)
from millrace_server.agent.sources.kafka.records import RecordBatch, RecordReader
from millrace_server.agent.sources.stored_ranges import Ranges
from millrace_server.agent.supervision import ComponentError
from millrace_server.errors import MillraceError

FETCH_EVENTS_MAX = 10_000
"""The maximum number of records in a fetch; their size is limited by librdkafka's `queued.max.messages.kbytes`."""

WAIT_SECONDS = 0.5
"""How long a fetch waits for the first record, which also delays the end of the source."""

REVOKE_SECONDS = 20.0
"""How long the revocation of a partition waits until the fetched records are stored."""

_Key = tuple[str, int]


class Report(Protocol):
    """Logs a message with fields, and counts an incident."""

    def __call__(self, incident: str, message: str, **fields: object) -> None: ...


class AssignedPartition:
    """A partition that the source reads."""

    def __init__(self, facts: PartitionFacts, start: Start) -> None:
        self.producer_id = facts.producer_id
        self.oldest_offset = facts.low
        self.cutter = PieceCutter(start, facts.stored)


class Fetched(NamedTuple):
    """Records of a partition, in order."""

    key: _Key
    assigned: AssignedPartition
    batches: Sequence[RecordBatch]


class PartitionConsumer:
    """Fetches records. Its methods must be called on one thread, except for `note_stored`.

    Attributes:
        is_stored: Set while all records returned by `fetch` are stored, and when the source stops.
    """

    def __init__(
        self, config: KafkaSourceConfig, name: str, stored_ranges: Callable[[str], Ranges], report: Report
    ) -> None:
        self._config = config
        self._name = name
        self._stored_ranges = stored_ranges
        self._report = report
        self._timeout = config.request_timeout_seconds
        self.records = RecordReader(config)
        self.is_stored = threading.Event()
        self.is_stored.set()
        self._assigned: dict[_Key, AssignedPartition] = {}
        self._topic_ids: dict[str, str] = {}
        self._cluster_id = ""
        self._held: list[Message] = []
        self._is_paused = False
        self._failure: Exception | None = None
        self._trouble = ""
        properties = config.consumer_properties(name)
        self._is_cooperative = (
            "cooperative" in str(properties.get("partition.assignment.strategy", ""))
            or str(properties.get("group.protocol", "classic")).lower() == "consumer"
        )
        try:
            self._consumer = Consumer({**properties, "on_commit": self._on_commit, "error_cb": self._on_error})
        except KafkaException as error:
            raise ComponentError(f"librdkafka rejects the settings of the client: {described(error)}") from None

    def open(self) -> None:
        """Connects, and joins the group or assigns the partitions. Raises ComponentError if that is not possible."""
        self._cluster_id = self._look_up_cluster()
        config = self._config
        if config.partitions:
            partitions = [
                TopicPartition(topic, each) for topic, numbers in config.partitions.items() for each in numbers
            ]
            self._on_assign(self._consumer, partitions)
            self._raise_failure()
            return
        # librdkafka interprets a name that begins with ^ as a regular expression.
        pattern = [] if config.topic_pattern is None else [subscribed(config.topic_pattern)]
        try:
            self._consumer.subscribe(
                [*config.topics, *pattern],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
        except KafkaException as error:
            raise ComponentError(f"cannot subscribe: {described(error)}") from None

    def close(self) -> None:
        """Commits the offsets of stored records, and leaves the group."""
        self._consumer.close()

    def _look_up_cluster(self) -> str:
        try:
            return self._consumer.list_topics(timeout=self._timeout).cluster_id or ""
        except KafkaException as error:
            # Serves `_on_error`, which gets more specific errors.
            self._consumer.poll(0)
            servers = ", ".join(self._config.bootstrap_servers)
            raise ComponentError(f"{servers} cannot be reached: {self._trouble or described(error)}") from None

    # Fetching.

    def fetch(self) -> list[Fetched]:
        """Returns the next records, by partition; nothing if there are none for a while.

        Raises ComponentError if the source must start over, ComponentFailedError if an operator must decide.
        """
        messages = self._held
        if messages:
            self._held = []
        else:
            self._resume()
            messages = self._consume(1, WAIT_SECONDS)
            if messages:
                messages += self._consume(FETCH_EVENTS_MAX - 1, 0)
        self._raise_failure()
        if not messages and self._trouble:
            self._look_up_cluster()
            self._trouble = ""
        return self._by_partition(messages)

    def stay_in_group(self) -> None:
        """Keeps the membership in the group while fetched records cannot be stored yet."""
        if not self._is_paused:
            self._is_paused = True
            self._set_paused(self._consumer.assignment())
        self._held += self._consume(FETCH_EVENTS_MAX, 0)

    def _consume(self, count: int, timeout_seconds: float) -> list[Message]:
        try:
            found: list[Message] = self._consumer.consume(count, timeout_seconds)
        except KafkaException as error:
            raise ComponentError(described(error)) from None
        return found

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._consumer.resume(self._consumer.assignment())

    def _set_paused(self, partitions: list[TopicPartition]) -> None:
        if self._is_paused and partitions:
            self._consumer.pause(partitions)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _by_partition(self, messages: Sequence[Message]) -> list[Fetched]:
        if any(map(Message.error, messages)):
            raise next(_error_of(message, error) for message in messages if (error := message.error()))
        groups: dict[_Key, list[Message]] = {}
        keys: Iterable[Any] = zip(map(Message.topic, messages), map(Message.partition, messages), strict=True)
        for key, message in zip(keys, messages, strict=True):
            groups.setdefault(key, []).append(message)
        return [
            Fetched(key, self._assigned[key], list(self.records.read(*key, group)))
            for key, group in groups.items()
            # Without those of a partition that was revoked in the meantime.
            if key in self._assigned
        ]

    def note_stored(self, key: _Key, next_offset: int) -> None:
        """Marks an offset to be committed at the next interval, or before the partition is revoked."""
        # The partition may have been revoked already.
        with suppress(KafkaException):
            self._consumer.store_offsets(offsets=[TopicPartition(*key, next_offset)])

    # Callbacks, which are called by `consume`, `poll` and `close`.

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            placed = self._place(partitions)
        except (ComponentError, MillraceError, TimeoutError) as error:
            # `fetch` raises it, since librdkafka would ignore an exception here.
            self._failure = error
            return
        except KafkaException as error:
            self._failure = ComponentError(f"cannot look up the partitions: {described(error)}")
            return
        if self._is_cooperative and not self._config.partitions:
            consumer.incremental_assign(placed)
        else:
            consumer.assign(placed)
        self._set_paused(placed)
        self._report_rebalance("assigned", partitions)
        for partition in placed:
            # If the source starts at the end of a partition, a restart must not start at a later end.
            self.note_stored((partition.topic, partition.partition), partition.offset)

    def _on_revoke(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if not self.is_stored.wait(REVOKE_SECONDS):
            self._report(
                "revoked_unstored",
                "partitions go to another member before their records are stored; it may store them as well",
                partitions=_names(partitions),
            )
        self._forget(partitions)
        self._report_rebalance("revoked", partitions)

    def _report_rebalance(self, what: str, partitions: list[TopicPartition]) -> None:
        # With cooperative assignment, librdkafka also reports rebalances that do not affect this member.
        if partitions:
            self._report("rebalance", f"partitions were {what}", partitions=_names(partitions))

    def _on_lost(self, _consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget(partitions)
        self._report(
            "partitions_lost",
            "the brokers have assigned partitions to other members, since the source sent no heartbeat in time",
            partitions=_names(partitions),
        )

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._assigned.pop((partition.topic, partition.partition), None)
        self._held = [each for each in self._held if each.error() or (each.topic(), each.partition()) in self._assigned]

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        if error is not None:
            self._report("commit_failed", "offsets were not committed", reason=described(error))
            return
        for partition in partitions:
            if partition.error is not None:
                self._report(
                    "commit_failed",
                    "an offset was not committed",
                    topic=partition.topic,
                    reason=described(partition.error),
                )

    def _on_error(self, error: KafkaError) -> None:
        self._trouble = described(error)

    # Where to start.

    def _place(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Returns the partitions with the offsets to start from."""
        self._look_up_topics({partition.topic for partition in partitions})
        committed = self._consumer.committed(list(partitions), self._timeout) if partitions else []
        placed = []
        for partition in committed:
            facts = self._facts_of(partition)
            start = start_of(facts, self._config.offset_reset)
            if start.reset_reason:
                self._report(
                    "offset_reset",
                    "starts elsewhere",
                    partition=facts.name,
                    offset=start.position,
                    reason=start.reset_reason,
                )
            self._assigned[partition.topic, partition.partition] = AssignedPartition(facts, start)
            placed.append(TopicPartition(partition.topic, partition.partition, start.position))
        return placed

    def _facts_of(self, partition: TopicPartition) -> PartitionFacts:
        topic, number = partition.topic, partition.partition
        if partition.error is not None:
            raise ComponentError(f"{topic}-{number}: {described(partition.error)}")
        low, high = self._consumer.get_watermark_offsets(TopicPartition(topic, number), self._timeout)
        producer_id = producer_id_of(self._cluster_id, self._topic_ids[topic], self._config.group, topic, number)
        committed = None if partition.offset == OFFSET_INVALID else partition.offset
        return PartitionFacts(f"{topic}-{number}", low, high, committed, producer_id, self._stored_ranges(producer_id))

    def _look_up_topics(self, topics: set[str]) -> None:
        unknown = sorted(topics - self._topic_ids.keys())
        if not self._config.topic_ids:
            self._topic_ids.update(dict.fromkeys(unknown, ""))
        elif unknown:
            admin = AdminClient(self._config.client_properties(self._name))
            found = admin.describe_topics(TopicCollection(unknown), request_timeout=self._timeout)
            for topic, description in found.items():
                self._topic_ids[topic] = str(description.result(self._timeout).topic_id)


def _error_of(message: Message, error: KafkaError) -> ComponentError:
    if error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - its public constants have such names
        # The next run looks up the start of the partition, and what is stored.
        where = f"{message.topic()}-{message.partition()}"
        return ComponentError(f"{where}: the record at the source's offset is gone: {error.str()}")
    topic = f"{message.topic()}: " if message.topic() else ""
    return ComponentError(f"{topic}{described(error)}")


def _names(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{each.topic}-{each.partition}" for each in partitions)
