import pytest

from millrace_server.flume_import import Outcome
from tests.flume_imports import example, imported, notes_of, outcomes_of, sink_text, source_text

SOURCE = "type = org.apache.flume.source.kafka.KafkaSource\nkafka.bootstrap.servers = k1:9092, k2:9092\n"
SINK = "type = org.apache.flume.sink.kafka.KafkaSink\nkafka.bootstrap.servers = k1:9092\n"


def kafka_source(lines: str) -> dict[str, object]:
    return imported(source_text(SOURCE + lines)).tables["sources"]["s"]


def kafka_sink(lines: str) -> dict[str, object]:
    return imported(sink_text(SINK + lines)).tables["sinks"]["k"]


def test_import_of_a_kafka_source_keeps_topics_group_and_headers() -> None:
    """Flume's defaults are written: the group flume, the newest records, and headers without a prefix."""
    assert kafka_source("kafka.topics = test1, test2") == {
        "type": "kafka",
        "channels": ["c"],
        "bootstrap_servers": ["k1:9092", "k2:9092"],
        "topics": ["test1", "test2"],
        "group": "flume",
        "offset_reset": "latest",
        "headers": ["key", "topic", "partition", "offset", "timestamp"],
        "header_prefix": "",
    }


@pytest.mark.parametrize(
    ("lines", "settings"),
    [
        ("kafka.topics.regex = ^t[0-9]$\nkafka.topics = x", {"topic_pattern": "^t[0-9]$"}),
        (r"kafka.topics.regex = (?:a|b)\\d", {"topic_pattern": "(a|b)[0-9]"}),
        ("topic = old\ngroupId = g", {"topics": ["old"], "group": "g"}),
        ("kafka.topics = t\nkafka.consumer.auto.offset.reset = none", {"offset_reset": "fail"}),
        ("kafka.topics = t\nsetTopicHeader = false", {"headers": ["key", "partition", "offset", "timestamp"]}),
        ("kafka.topics = t\nkafka.consumer.fetch.max.wait.ms = 5", {"client": {"fetch.wait.max.ms": "5"}}),
        ("kafka.topics = t\nkafka.consumer.session.timeout.ms = 9", {"client": {"session.timeout.ms": "9"}}),
    ],
)
def test_import_of_a_kafka_source_converts_each_property(lines: str, settings: dict[str, object]) -> None:
    """Names of the Java client become those of librdkafka, and deprecated names count where the new ones are absent."""
    source = kafka_source(lines)
    assert source | settings == source


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("useFlumeEventFormat = true", "records are Avro of a FlumeEvent"),
        ("kafka.topics.regex = (?i)orders", "cannot be written as a POSIX regular expression"),
        ("topicHeader = t", "the header with the topic is called topic"),
        ("timestampHeader = when", "is called timestamp"),
        ("header.a = b", "headers keep their names"),
        ("kafka.consumer.interceptor.classes = x", "write an interceptor"),
    ],
)
def test_import_of_what_a_kafka_source_cannot_do_is_left_out(lines: str, sentence: str) -> None:
    """Each has its reason."""
    text = source_text(f"{SOURCE}kafka.topics = t\n{lines}")
    key = f"a.sources.s.{lines.partition(' ')[0]}"
    assert sentence in notes_of(text)[key]
    assert outcomes_of(text)[key] is Outcome.LEFT_OUT


def test_import_of_a_kafka_source_over_tls_has_its_authorities_in_pem() -> None:
    """The truststore is converted elsewhere; whether names are checked is told if Flume did not."""
    tls = imported(example("kafka_tls")).tables["sources"]["source1"]
    assert tls["tls"] == {"ca": "/path/to/truststore.pem"}
    assert (
        "keytool -exportcert"
        in notes_of(example("kafka_tls"))["a1.sources.source1.kafka.consumer.ssl.truststore.location"]
    )
    unchecked = example("kafka_tls").replace("identification.algorithm=HTTPS", "identification.algorithm=")
    key = "a1.sources.source1.kafka.consumer.ssl.endpoint.identification.algorithm"
    assert outcomes_of(unchecked)[key] is Outcome.CHANGED


def test_import_of_sasl_takes_name_and_password_from_jaas() -> None:
    """Kerberos is another matter: it needs another build of the library."""
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u" password="p";'
    lines = f"""kafka.topics = t
    kafka.consumer.security.protocol = SASL_SSL
    kafka.consumer.sasl.mechanism = SCRAM-SHA-256
    kafka.consumer.sasl.jaas.config = {jaas}"""
    source = kafka_source(lines)
    assert source["sasl"] == {"mechanism": "SCRAM-SHA-256", "username": "u", "password": "p"}
    assert source["tls"] == {}
    kerberos = "a1.sources.source1.kafka.consumer.sasl.mechanism"
    assert outcomes_of(example("kafka_sasl"))[kerberos] is Outcome.LEFT_OUT


@pytest.mark.parametrize(
    ("protocol", "property_name"),
    [("SSL", "sasl.mechanism"), ("SASL_PLAINTEXT", "ssl.truststore.location"), ("PLAINTEXT", "sasl.mechanism")],
)
def test_import_of_a_property_of_another_security_protocol_is_unneeded(protocol: str, property_name: str) -> None:
    """Kafka's client ignores it, and librdkafka does not get it, which would refuse it."""
    prefix = "kafka.consumer."
    lines = f"kafka.topics = t\n{prefix}security.protocol = {protocol}\n{prefix}{property_name} = x"
    assert "client" not in kafka_source(lines)
    assert outcomes_of(source_text(SOURCE + lines))[f"a.sources.s.{prefix}{property_name}"] is Outcome.UNNEEDED


@pytest.mark.parametrize(
    ("lines", "settings"),
    [
        ("", {"topic": "default-flume-topic", "topic_header": "topic", "key_header": "key", "header_prefix": ""}),
        ("kafka.topic = t\nflumeBatchSize = 20", {"topic": "t", "batch_events_max": 20}),
        ("kafka.topic = %{kind}", {"topic": "default-flume-topic", "topic_header": "kind"}),
        ("kafka.topic = logs-%{kind}", {"topic": {"fill_in": "logs-%{kind}"}}),
        ("partitionIdHeader = p\ntimestampHeader = when", {"partition_header": "p", "timestamp_header": "when"}),
        ("kafka.producer.buffer.memory = 2048", {"client": {"queue.buffering.max.kbytes": "2"}}),
    ],
)
def test_import_of_a_kafka_sink_converts_each_property(lines: str, settings: dict[str, object]) -> None:
    """An event's headers choose topic, key and partition, by the names that Flume has for them."""
    sink = kafka_sink(lines)
    assert sink | settings == sink


def test_import_of_a_kafka_sink_without_override_has_one_topic() -> None:
    """Then a header topic is a header like any other; acknowledgements are those of transactions."""
    assert "topic_header" not in kafka_sink("allowTopicOverride = false")
    assert outcomes_of(sink_text(f"{SINK}kafka.producer.acks = 1"))["a.sinks.k.kafka.producer.acks"] is Outcome.UNNEEDED


CHANNEL = """
a.channels = c
a.channels.c.type = org.apache.flume.channel.kafka.KafkaChannel
a.channels.c.kafka.bootstrap.servers = k1:9092
a.channels.c.kafka.topic = t
a.channels.c.parseAsFlumeEvent = false
a.channels.c.kafka.consumer.group.id = g
a.channels.c.kafka.producer.linger.ms = 5
"""
WRITER = "a.sources = s\na.sources.s.type = seq\na.sources.s.channels = c\n"
READER = "a.sinks = k\na.sinks.k.type = null\na.sinks.k.channel = c\n"


def test_import_of_a_kafka_channel_with_source_and_sink_makes_a_log() -> None:
    """The topic is not used any more, which is said."""
    text = CHANNEL + WRITER + READER
    assert imported(text).tables["channels"] == {"c": {"type": "file"}}
    assert list(imported(text).tables["sinks"]) == ["k"]
    assert "let its sinks drain that" in notes_of(text)["a.channels.c.type"]


def test_import_of_a_kafka_channel_without_sink_makes_one_for_its_topic() -> None:
    """Others read what the agent puts into the topic."""
    tables = imported(CHANNEL + WRITER).tables
    assert tables["channels"] == {"c": {"type": "file"}}
    assert tables["sinks"]["c-kafka"] == {
        "type": "kafka",
        "bootstrap_servers": ["k1:9092"],
        "channel": "c",
        "topic": "t",
        "key_header": "key",
        "header_prefix": "",
        "client": {"linger.ms": "5"},
    }


def test_import_of_a_kafka_channel_without_source_makes_one_for_its_topic() -> None:
    """Others write to the topic what the agent's sink takes; a name that is taken is not taken again."""
    text = CHANNEL + READER + "a.channels.c.readSmallestOffset = true\n"
    source = imported(text).tables["sources"]["c-kafka"]
    assert (source["topics"], source["group"], source["offset_reset"]) == (["t"], "g", "earliest")
    taken = text + "a.sources = c-kafka\na.sources.c-kafka.type = seq\na.sources.c-kafka.channels = d\n"
    taken += "a.channels.d.type = memory\n"
    assert set(imported(taken.replace("a.channels = c", "a.channels = c d")).tables["sources"]) == {
        "c-kafka",
        "c-kafka-2",
    }


def test_import_of_a_kafka_channel_of_flumes_format_says_that_it_is_not_read() -> None:
    """It is Flume's default, so it is said even if the property is absent."""
    text = (CHANNEL + READER).replace("a.channels.c.parseAsFlumeEvent = false\n", "")
    assert "FlumeEvent" in notes_of(text)["a.channels.c.parseAsFlumeEvent"]
    assert not imported(text).is_complete
