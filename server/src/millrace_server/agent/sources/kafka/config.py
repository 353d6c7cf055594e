"""Settings of the source `kafka`."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from millrace.setting_problems import shown_value
from millrace_server.agent.kafka.client import KafkaClientConfig, TopicName, described
from millrace_server.agent.kafka.client_log import CLIENT_LOG
from millrace_server.agent.kafka.header_names import DEFAULT_PREFIX
from millrace_server.agent.kafka.topic_patterns import check_topic_pattern, subscribed
from millrace_server.agent.setting_types import valid_for
from millrace_server.agent.sources.source import SourceConfig
from millrace_server.extras import is_installed

RecordHeader = Literal["key", "topic", "partition", "offset", "timestamp"]


def _try_pattern(pattern: str) -> None:
    check_topic_pattern(pattern)
    if not is_installed("confluent_kafka"):
        return
    from confluent_kafka import Consumer, KafkaException

    consumer = Consumer({"group.id": "check", "logger": CLIENT_LOG})
    try:
        # Does not connect, but compiles the pattern with the library that will match it.
        consumer.subscribe([subscribed(pattern)])
    except KafkaException:
        raise ValueError(f"is {shown_value(pattern)}, which is not a POSIX regular expression") from None
    finally:
        consumer.close()


class KafkaSourceConfig(KafkaClientConfig, SourceConfig):
    """A source of the records of Kafka topics.

    The offsets in a partition are the numbers of its events, so a channel stores each record once. The records of a
    partition keep their order.
    """

    own_properties: ClassVar[Mapping[str, str]] = {
        "group.id": "use group",
        "auto.offset.reset": "use offset_reset",
        "enable.auto.commit": "offsets are committed once the channels have stored the records",
        "auto.commit.enable": "offsets are committed once the channels have stored the records",
        "enable.auto.offset.store": "offsets are committed once the channels have stored the records",
        "enable.partition.eof": "the end of a partition is not an event",
    }

    type: Literal["kafka"]
    """Records of Kafka topics."""

    topics: list[TopicName] = Field(default_factory=list)
    """The topics; the members of the consumer group share their partitions."""

    topic_pattern: Annotated[str, valid_for(_try_pattern)] | None = Field(None, min_length=1)
    """A POSIX extended regular expression for further topics to read, including topics that are created later; it must
    match the whole name."""

    partitions: dict[TopicName, Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]] = Field(
        default_factory=dict, validate_default=True
    )
    """Partitions by topic, instead of `topics` and `topic_pattern`: this source reads these partitions, regardless of
    other members of the group."""

    group: str = Field(min_length=1, max_length=255)
    """The consumer group, which stores the positions up to which partitions have been read."""

    offset_reset: Literal["earliest", "latest", "fail"] = "earliest"
    """Where to start reading a partition if the group has no offset, or the record at the offset no longer exists.
    `fail`: nothing is read until an operator sets the group's offset."""

    headers: list[RecordHeader] = Field(default=["key", "topic", "partition", "offset", "timestamp"])
    """The properties of a record that become headers of the event, in addition to the record's own headers, which keep
    their names."""

    header_prefix: str = DEFAULT_PREFIX
    """The prefix of the names of these headers. If empty, they are `key`, `topic` and so on, as in Flume's source."""

    tombstones: Literal["mark", "skip"] = "mark"
    """Records without a value (null). `mark`: an empty body, and the header `tombstone` (after `header_prefix`) is
    `true`. `skip`: they are dropped and counted."""

    topic_ids: bool = True
    """Whether the id of a topic distinguishes it from a deleted topic with the same name. Brokers before Kafka 2.8 have
    no ids; set this to false for brokers that cannot describe topics."""

    batch_events_max: int = Field(10_000, ge=1, le=1_000_000)
    """The maximum number of events in a transaction; fewer if the `transaction_capacity` of a channel is smaller."""

    request_timeout_seconds: float = Field(30.0, gt=0, le=3_600, allow_inf_nan=False)
    """How long the brokers may take to report the start and end of a partition and the group's committed offsets."""

    @field_validator("partitions")
    @classmethod
    def _check_one(cls, partitions: dict[str, list[int]], info: ValidationInfo) -> dict[str, list[int]]:
        if not {"topics", "topic_pattern"} <= info.data.keys():
            return partitions
        is_subscribing = bool(info.data["topics"]) or info.data["topic_pattern"] is not None
        if bool(partitions) == is_subscribing:
            what = "cannot be combined with topics" if partitions else "are missing, and so are topics"
            raise ValueError(f"{what}; set topics or topic_pattern, or else partitions")
        if twice := [topic for topic, numbers in partitions.items() if len(set(numbers)) != len(numbers)]:
            raise ValueError(f"lists a partition of {shown_value(twice[0])} twice; list each one once")
        return partitions

    @classmethod
    def _try_properties(cls, properties: dict[str, Any]) -> None:
        from confluent_kafka import Consumer, KafkaException

        try:
            Consumer({**properties, "group.id": "check"}).close()
        except KafkaException as error:
            raise ValueError(f"librdkafka rejects it: {described(error)}") from None

    def consumer_properties(self, name: str) -> dict[str, Any]:
        return {
            **self.client_properties(name),
            "group.id": self.group,
            # The source itself decides where to start, so that it can check, log and count it.
            "auto.offset.reset": "error",
            # Commits the offsets of stored records, at an interval and before a partition is revoked.
            "enable.auto.commit": True,
            "enable.auto.offset.store": False,
        }
