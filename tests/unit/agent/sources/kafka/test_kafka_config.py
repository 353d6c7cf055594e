"""Settings of the source and the sink `kafka`, as `millraced check` sees them."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from millrace.setting_problems import describe_problems
from millrace_server.agent.sinks.kafka.config import KafkaSinkConfig
from millrace_server.agent.sources.kafka.config import KafkaSourceConfig
from millrace_server.agent.supervision import ComponentError

SERVER = {"type": "kafka", "bootstrap_servers": ["127.0.0.1:9092"]}
SOURCE = {**SERVER, "channels": ["orders"], "group": "g", "topics": ["orders"]}
SINK = {**SERVER, "channel": "orders", "topic": "orders"}


def problems_of(table: dict[str, Any], model: type[KafkaSourceConfig | KafkaSinkConfig]) -> str:
    with pytest.raises(ValidationError) as raised:
        model.model_validate(table, strict=True)
    return "\n".join(map(str, describe_problems(raised.value, model)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client": {"fetch.max.byte": 5}}, 'client: librdkafka rejects it: _INVALID_ARG: No such .*"fetch.max.byte"'),
        ({"client": {"fetch.max.bytes": "many"}}, "client: librdkafka rejects it: .*fetch.max.bytes"),
        ({"client": {"group.id": "x"}}, 'client: has "group.id", which the component sets itself: use group'),
        ({"client": {"auto.offset.reset": "x"}}, "use offset_reset"),
        ({"client": {"enable.auto.commit": True}}, "committed once the channels have stored"),
        ({"client": {"metadata.broker.list": "x"}}, "use bootstrap_servers"),
        ({"client": {"sasl.password": "secret-1"}}, "use sasl.password_file"),
        ({"client": {"logger": "x"}}, "Python object"),
        ({"bootstrap_servers": ["broker"]}, r"bootstrap_servers\[0\]: is \"broker\""),
        ({"topics": []}, "partitions: are missing, and so are topics"),
        ({"partitions": {"orders": [0]}}, "partitions: cannot be combined with topics"),
        ({"topics": [], "partitions": {"orders": [0, 0]}}, 'lists a partition of "orders" twice'),
        ({"topics": ["no spaces"]}, r"topics\[0\]"),
        ({"topic_pattern": "("}, "topic_pattern: .*not a POSIX regular expression"),
        ({"topic_pattern": r"t-\d"}, r"topic_pattern: .*has \\d; in a POSIX .* write \[0-9\]"),
        ({"topic_pattern": r"[\w.]+"}, r"topic_pattern: .*has \[\\w\.\]"),
        ({"topic_pattern": "(?:a|b)"}, r"topic_pattern: .*has \(\?; POSIX"),
        ({"topic_pattern": "a+?"}, r"topic_pattern: .*has \+\?"),
        ({"tls": {"ca": "/nowhere.pem"}}, "client: librdkafka rejects it: .*ssl.ca.location"),
        ({"tls": {"certificate": "c.pem"}}, "tls.private_key: certificate and private_key must be given together"),
        ({"sasl": {"mechanism": "PLAIN"}}, "sasl.username and sasl.password must be set"),
        (
            {"sasl": {"mechanism": "PLAIN", "username": "u", "password": "secret-1", "password_file": "p"}},
            "mutually exclusive",
        ),
    ],
)
def test_validate_source_with_bad_settings_says_where_and_why(settings: dict[str, Any], words: str) -> None:
    """Unknown properties, those that the source owns, and contradictions are refused without a broker."""
    text = problems_of({**SOURCE, **settings}, KafkaSourceConfig)
    assert re.search(words, text), text
    assert "secret-1" not in text


@pytest.mark.parametrize("pattern", ["logs-.*", r"(a|b)\.[0-9]{2}", "[[:alpha:]]+[*+?]", r"a\++", "[]x]"])
def test_validate_source_with_a_posix_pattern_is_good(pattern: str) -> None:
    """What librdkafka matches is accepted."""
    assert KafkaSourceConfig.model_validate({**SOURCE, "topic_pattern": pattern}, strict=True).topic_pattern == pattern


@pytest.mark.parametrize(("table", "model"), [(SOURCE, KafkaSourceConfig), (SINK, KafkaSinkConfig)])
def test_validate_what_librdkafka_refuses_writes_nothing_to_standard_error(
    table: dict[str, Any], model: type[KafkaSourceConfig | KafkaSinkConfig], capfd: pytest.CaptureFixture[str]
) -> None:
    """Its own messages would stand between the problems that `millraced check` shows."""
    assert "ssl.ca.location" in problems_of({**table, "tls": {"ca": "/nowhere.pem"}}, model)
    assert "rdkafka" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"client": {"transactional.id": "x"}}, "use transactional_id_prefix"),
        ({"client": {"acks": 1}}, "transactions need all"),
        ({"client": {"compression.type": "zip"}}, "librdkafka rejects it: .*compression"),
        ({"transactional_id_prefix": "a b"}, "transactional_id_prefix"),
        ({"dead_letter_channel": "orders"}, "dead_letter_channel"),
    ],
)
def test_validate_sink_with_bad_settings_says_where_and_why(settings: dict[str, Any], words: str) -> None:
    """The same holds for the sink's producer."""
    text = problems_of({**SINK, **settings}, KafkaSinkConfig)
    assert re.search(words, text), text


def test_validate_without_the_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install is said where confluent-kafka is missing."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert "pip install 'millrace-server[kafka]'" in problems_of(SOURCE, KafkaSourceConfig)
    assert "pip install 'millrace-server[kafka]'" in problems_of(SINK, KafkaSinkConfig)


def test_validate_plain_password_without_tls_is_refused_beyond_loopback() -> None:
    """A password is not sent through a network in plain text; a challenge is."""
    table: dict[str, Any] = {**SOURCE, "bootstrap_servers": ["127.0.0.1:9092", "kafka.example:9092"]}
    sasl = {"mechanism": "PLAIN", "username": "u", "password": "p"}
    assert "in plain text" in problems_of({**table, "sasl": sasl}, KafkaSourceConfig)
    table["sasl"] = {**sasl, "mechanism": "SCRAM-SHA-512"}
    assert KafkaSourceConfig.model_validate(table, strict=True).sasl is not None


def test_client_properties_of_tls_and_sasl_have_the_files_contents(tmp_path: Path) -> None:
    """Secrets come from files that only their user may read; numbers and truth values are librdkafka's text."""
    secret = tmp_path / "password"
    secret.write_text("s3cret\n")
    secret.chmod(0o600)
    sasl = {"mechanism": "SCRAM-SHA-256", "username": "u", "password_file": str(secret)}
    config = KafkaSourceConfig.model_validate({**SOURCE, "sasl": sasl, "client": {"check.crcs": True}}, strict=True)
    properties = config.consumer_properties("in")
    assert properties["security.protocol"] == "SASL_PLAINTEXT"
    assert (properties["sasl.username"], properties["sasl.password"]) == ("u", "s3cret")
    assert properties["check.crcs"] == "true"
    assert "s3cret" not in repr(config)
    secret.chmod(0o604)
    with pytest.raises(ComponentError, match=r"sasl\.password_file: .*every user"):
        config.consumer_properties("in")
