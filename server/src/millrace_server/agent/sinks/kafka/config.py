"""Settings of the sink `kafka`."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from millrace.setting_units import ByteSize
from millrace.units import GIB, MIB
from millrace_server.agent.kafka.client import KafkaClientConfig, TopicName, described
from millrace_server.agent.kafka.header_names import DEFAULT_PREFIX, HeaderNames
from millrace_server.agent.sinks.sink import Sink, SinkConfig, SinkContext, sink_class

HeaderName = Annotated[str, Field(min_length=1)]


class KafkaSinkConfig(KafkaClientConfig, SinkConfig):
    """A sink that produces events to Kafka topics, in transactions that also commit its position in the channel.

    Consumers with `isolation.level = read_committed` see each event once. Within a partition, events keep the channel's
    order.
    """

    own_properties: ClassVar[Mapping[str, str]] = {
        "transactional.id": "use transactional_id_prefix",
        "group.id": "it is the transactional id",
        "enable.idempotence": "transactions need it",
        "acks": "transactions need all",
        "request.required.acks": "transactions need all",
        "delivery.report.only.error": "the sink needs reports of errors only",
    }

    type: Literal["kafka"]
    """Produces to Kafka topics."""

    topic: TopicName
    """The topic for events without `topic_header`. The sink's position in the channel is stored as the offset of
    partition 0 of this topic, in a consumer group with the name of the transactional id."""

    topic_header: HeaderName | None = None
    """The header with an event's topic, such as `kafka.topic`. Topics must exist, or the brokers must create them."""

    key_header: HeaderName | None = "kafka.key"
    """The header with the record's key; events with the same key go to the same partition."""

    partition_header: HeaderName | None = None
    """The header with the number of the partition; by default, the partition is chosen by the key or at random."""

    timestamp_header: HeaderName | None = "kafka.timestamp"
    """The header with the record's timestamp, in milliseconds since 1970; an event without it gets the time at which it
    is produced."""

    header_prefix: str = DEFAULT_PREFIX
    """The prefix of the headers with which a source of type `kafka` describes a record. These headers do not become
    headers of the new record, but `tombstone` and `base64` (after the prefix) restore a null value, and bytes that are
    not UTF-8."""

    transactional_id_prefix: str = Field("millrace-", min_length=1, max_length=100, pattern=r"^[a-zA-Z0-9._-]+$")
    """The prefix of the transactional id, followed by the channel's id and the sink's name. The brokers must permit
    this id, and the group of the same name."""

    batch_events_max: int = Field(10_000, ge=1, le=1_000_000)
    """The maximum number of events in a delivery; fewer if the channel's `transaction_capacity` is smaller. Small
    deliveries that wait for the end of a transaction are combined in the next one."""

    transaction_bytes_max: ByteSize = Field(16 * MIB, ge=1, le=GIB)
    """The maximum bytes of the bodies in a delivery; a larger event is delivered alone."""

    timeout_seconds: float = Field(60.0, ge=1, le=3_600, allow_inf_nan=False)
    """How long the brokers may take to begin or commit a transaction."""

    @classmethod
    def _try_properties(cls, properties: dict[str, Any]) -> None:
        from confluent_kafka import KafkaException, Producer

        try:
            Producer({**properties, "transactional.id": "check"})
        except KafkaException as error:
            raise ValueError(f"librdkafka rejects it: {described(error)}") from None

    @property
    def names(self) -> HeaderNames:
        return HeaderNames.with_prefix(self.header_prefix)

    def make(self, context: SinkContext) -> Sink:
        return sink_class(self.type)(self, context.name)
