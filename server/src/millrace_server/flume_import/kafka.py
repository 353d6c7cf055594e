"""Conversion of Flume's components for Kafka, whose Java client becomes librdkafka."""

import re

from millrace_server.flume_import.component_table import Row, kafka_client
from millrace_server.flume_import.options import Options, Table, set_values
from millrace_server.flume_import.patterns import to_posix
from millrace_server.flume_import.references import fill_in, is_to_be_filled_in
from millrace_server.flume_import.tls import StoreNames, store_tls

_HEADERS = ["key", "topic", "partition", "offset", "timestamp"]
"""The properties that become headers in Flume's source, with these names."""

_STORES = StoreNames(
    key="ssl.keystore.location",
    key_password="ssl.keystore.password",  # noqa: S106 - the name of a property
    trust="ssl.truststore.location",
    trust_password="ssl.truststore.password",  # noqa: S106 - the name of a property
)
_RESETS = {"earliest": "earliest", "latest": "latest", "none": "fail"}
_JAAS = re.compile(r"""\b(?P<name>username|password)\s*=\s*(?P<quote>["'])(?P<value>.*?)(?P=quote)""")
_WHOLE_HEADER = re.compile(r"%\{(?P<name>[^}]+)\}")
_FLUME_FORMAT = "records are Avro of a FlumeEvent, which is not decoded or made here: headers and body are in one"
_KERBEROS = (
    "Kerberos needs a librdkafka built with it, which that of PyPI was not; principal and keytab of the JAAS file "
    "are sasl.kerberos.principal and sasl.kerberos.keytab in client. SCRAM and certificates need neither"
)
_CONNECTING = {"kafka.bootstrap.servers", "brokerList", "groupId", "readSmallestOffset", "partitionIdHeader"}
_CLIENTS = ("kafka.consumer.", "kafka.producer.")
_DEFAULT_TOPIC = "default-flume-topic"
_CHANNEL_TOPIC = "flume-channel"
_DEFAULT_GROUP = "flume"


def convert_kafka_source(options: Options, table: Table) -> None:
    """Converts the properties of a Kafka source that the table of components leaves to code."""
    _set_servers(options, table)
    if pattern := options.text("kafka.topics.regex"):
        table["topic_pattern"] = _topic_pattern(options, pattern)
    else:
        named = options.listed("kafka.topics") or options.listed("topic")
        table["topics"] = named or [options.required("kafka.topics", "TOPIC", "topics")]
    _set_group(options, table)
    _set_client(options, table, "kafka.consumer")
    table |= {"headers": _headers(options), "header_prefix": ""}
    if options.flag("useFlumeEventFormat"):
        options.left_out("useFlumeEventFormat", _FLUME_FORMAT, "headers")


def convert_kafka_sink(options: Options, table: Table) -> None:
    """Converts the properties of a Kafka sink that the table of components leaves to code."""
    _set_servers(options, table)
    _set_topic(options, table)
    table |= {"key_header": "key", "header_prefix": ""}
    _read_renamed(options)
    _set_client(options, table, "kafka.producer")
    if options.flag("useFlumeEventFormat"):
        options.left_out("useFlumeEventFormat", _FLUME_FORMAT, "header_prefix")


def convert_kafka_channel(options: Options, _table: Table) -> None:
    """Converts a channel in Kafka to a file channel, with a sink or a source for its topic if others use the topic.

    If the agent only writes to the channel, others read the topic, so a sink fills it. If the agent only reads from the
    channel, others write to the topic, so a source reads it.
    """
    name = options.prefix.rpartition(".")[2]
    is_written, is_read = name in options.shared.written, name in options.shared.read
    topic = _topic(options, _CHANNEL_TOPIC)
    is_wrapped = options.flag("parseAsFlumeEvent") is not False
    if is_written == is_read:
        _leave_topic(options, topic)
        return
    kind, added = ("sinks", _sink_for(options, topic)) if is_written else ("sources", _source_for(options, topic))
    options.shared.added.setdefault(kind, {})[options.location.name] = added
    what = "a sink puts them" if is_written else "a source reads them"
    options.changed("type", f"events are in a log here, and {what}: it is called {options.location.name}-kafka")
    if is_wrapped:
        options.left_out("parseAsFlumeEvent", _FLUME_FORMAT)


def _leave_topic(options: Options, topic: str) -> None:
    for key in [key for key in options.unread() if key in _CONNECTING or key.startswith(_CLIENTS)]:
        options.text(key)
        options.unneeded(key, "the topic is not used any more")
    sentence = f"events are in a log here, not in the topic {topic}: let its sinks drain that before you stop Flume"
    options.changed("type", sentence)


def _sink_for(options: Options, topic: str) -> Table:
    """Returns a sink that writes the events of a channel to its topic."""
    sink: Table = {"type": "kafka"}
    _set_servers(options, sink)
    sink |= {"channel": options.location.name, "topic": topic, "key_header": "key", "header_prefix": ""}
    set_values(sink, partition_header=options.text("partitionIdHeader") or None)
    _set_client(options, sink, "kafka.producer")
    return sink


def _source_for(options: Options, topic: str) -> Table:
    """Returns a source that reads the topic of a channel."""
    source: Table = {"type": "kafka"}
    _set_servers(options, source)
    source |= {"channels": [options.location.name], "topics": [topic]}
    _set_group(options, source)
    _set_client(options, source, "kafka.consumer")
    return source | {"headers": _HEADERS, "header_prefix": ""}


def _topic(options: Options, default: str) -> str:
    return options.text("kafka.topic") or options.text("topic") or default


def _set_servers(options: Options, table: Table) -> None:
    servers = options.listed("kafka.bootstrap.servers") or options.listed("brokerList")
    table["bootstrap_servers"] = servers or [
        options.required("kafka.bootstrap.servers", "HOST:PORT", "bootstrap_servers")
    ]


def _topic_pattern(options: Options, pattern: str) -> str:
    if is_to_be_filled_in(pattern):
        return pattern
    posix = to_posix(pattern)
    if posix is None:
        sentence = f'"{pattern}" cannot be written as a POSIX regular expression: write topic_pattern by hand'
        options.left_out("kafka.topics.regex", sentence, "topic_pattern")
        return fill_in(f"POSIX PATTERN FOR {pattern}")
    return posix


def _set_group(options: Options, table: Table) -> None:
    table["group"] = options.text("kafka.consumer.group.id") or options.text("groupId") or _DEFAULT_GROUP
    reset = options.text("kafka.consumer.auto.offset.reset")
    if not reset:
        reset = "earliest" if options.flag("readSmallestOffset") else "latest"
    table["offset_reset"] = _RESETS.get(reset.lower(), "fail")


def _set_topic(options: Options, table: Table) -> None:
    topic = _topic(options, _DEFAULT_TOPIC)
    header, is_overriding = options.text("topicHeader", "topic"), options.flag("allowTopicOverride") is not False
    if match := _WHOLE_HEADER.fullmatch(topic):
        topic, header, is_overriding = _DEFAULT_TOPIC, match["name"], True
        options.changed("kafka.topic", f"events without the header {header} go to {topic}", "topic")
    elif "%" in topic:
        options.left_out("kafka.topic", "a topic can be one header, not a part of it", "topic")
        topic = fill_in(topic)
    table["topic"] = topic
    if is_overriding:
        table["topic_header"] = header


def _headers(options: Options) -> list[str]:
    """Returns the properties of records that become headers of events, by Flume's names."""
    headers = list(_HEADERS)
    topic_header = options.text("topicHeader", "topic")
    if options.flag("setTopicHeader") is False:
        headers.remove("topic")
    elif topic_header != "topic":
        options.left_out("topicHeader", "the header with the topic is called topic", "headers")
    if options.text("timestampHeader", "timestamp") != "timestamp":
        options.left_out("timestampHeader", "the header with the record's time is called timestamp", "headers")
    _read_renamed(options)
    return headers


def _read_renamed(options: Options) -> None:
    for name in options.unread_of("header"):
        if options.text(key := f"header.{name}") != name:
            options.left_out(key, "headers keep their names, and all of them are taken over")


def _set_client(options: Options, table: Table, prefix: str) -> None:
    """Sets the settings of connections, and the further properties of the client."""
    client = options.subset(prefix, "client")
    protocol = client.text("security.protocol", "PLAINTEXT").upper()
    is_tls, is_sasl = protocol.endswith("SSL"), protocol.startswith("SASL_")
    if is_tls:
        table["tls"] = store_tls(client, _STORES)
        _read_host_check(client)
    if is_sasl:
        table["sasl"] = _sasl(client)
    without_effect = tuple(prefix for prefix, is_used in (("ssl.", is_tls), ("sasl.", is_sasl)) if not is_used)
    known = kafka_client()
    others: Table = {}
    for key, value in client.items():
        row = known.row_of(key) or Row(key, to=key)
        if key.startswith(without_effect):
            client.unneeded(key, f"has no effect with the security.protocol {protocol}")
        elif row.missing:
            client.left_out(key, row.missing)
        elif row.unneeded:
            client.unneeded(key, row.unneeded)
        else:
            others[row.to] = _kibibytes(value) if key == "buffer.memory" else value
    set_values(table, client=others or None)


def _kibibytes(value: str) -> str:
    return str(int(value) // 1_024) if value.isdecimal() else value


def _read_host_check(client: Options) -> None:
    name = "ssl.endpoint.identification.algorithm"
    if not client.text(name):
        client.changed(name, "names in the certificates of brokers are checked, which Flume does only if asked", "tls")


def _sasl(client: Options) -> Table:
    mechanism = client.text("sasl.mechanism", "GSSAPI")
    jaas = client.text("sasl.jaas.config")
    table: Table = {"mechanism": mechanism}
    table |= {match["name"]: match["value"] for match in _JAAS.finditer(jaas)}
    if mechanism == "GSSAPI":
        client.left_out("sasl.mechanism", _KERBEROS, "sasl")
    elif len(table) == 1:
        client.left_out("sasl.jaas.config", "no user is known: set username and password_file in sasl")
    return table
