"""The examples of Flume's user guide, each imported and checked."""

import re
import shutil
import tomllib
from pathlib import Path

import pytest

from millrace.setting_file import SettingsError
from millrace_server.configuration.settings import check_settings
from millrace_server.flume_import import Outcome
from tests.certificates import Site
from tests.flume_imports import EXAMPLES, example, imported, tables_of

NAMES = sorted(path.stem for path in EXAMPLES.iterdir())

KINDS = {"channels", "sources", "sinks"}
WITHOUT_COUNTERPART = {
    "custom_channel",
    "custom_source",
    "hbase",
    "hive",
    "irc",
    "jms",
    "legacy_avro",
    "morphline_solr",
    "scribe",
    "stress",
    "thrift_source",
}
"""Examples of components that there are not here; nothing is made of them."""

OUTSIDE = {"kafka_sasl", "kafka_tls"}
"""Examples that need a file, or a library that was built in another way."""

TO_BE_FILLED_IN = {"environment", "filter_external", "hdfs", "hdfs_avro"}
"""Examples with values that only the agent's surroundings know."""

DEFAULT_FS = "<property><name>fs.defaultFS</name><value>hdfs://nn:8020</value></property>"


def test_examples_of_the_guide_are_found() -> None:
    """A folder that is empty would pass all other tests here."""
    assert len(NAMES) > 55
    assert set(NAMES) > WITHOUT_COUNTERPART | TO_BE_FILLED_IN


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TO_BE_FILLED_IN | OUTSIDE])
def test_example_imported_passes_the_check(name: str) -> None:
    """Asked for plain text, each makes a good configuration; what has no counterpart is not in it."""
    tables = tables_of(example(name), allow_plaintext=True, environment={"my_keystore_password": "x"})
    listed = {kind for kind in KINDS if re.search(rf"^\w+\.{kind} =", example(name), re.MULTILINE)}
    assert (tables.keys() & KINDS == listed) == (name not in WITHOUT_COUNTERPART)


def test_example_of_kafka_over_tls_passes_the_check_with_its_file(tmp_path: Path) -> None:
    """The file in PEM that the import names has to be there."""
    shutil.copy(Site(tmp_path).ca, tmp_path / "truststore.pem")
    assert tables_of(example("kafka_tls").replace("/path/to", str(tmp_path)))["sources"]["source1"]["type"] == "kafka"


def test_example_of_kafka_with_kerberos_is_refused_where_the_library_has_none() -> None:
    """It is left out before, so the check says nothing new."""
    result = imported(example("kafka_sasl"))
    assert not result.is_complete
    try:
        check_settings(tomllib.loads(result.toml()), "imported")
    except SettingsError as error:
        assert "GSSAPI" in str(error)  # noqa: PT017 - librdkafka may also have been built with Kerberos


@pytest.mark.parametrize("name", sorted(TO_BE_FILLED_IN))
def test_example_that_refers_to_its_surroundings_has_to_be_filled_in(name: str) -> None:
    """The check refuses the configuration until that is done, and the import says so."""
    result = imported(example(name), allow_plaintext=True)
    with pytest.raises(SettingsError):
        check_settings(tomllib.loads(result.toml()), "imported")
    assert not result.is_complete


def test_examples_in_their_surroundings_pass_the_check(tmp_path: Path) -> None:
    """With the variables and Hadoop's configuration that they refer to, nothing has to be filled in."""
    environment = {"NC_PORT": "44444", "HADOOP_CONF_DIR": str(tmp_path)}
    (tmp_path / "core-site.xml").write_text(f"<configuration>{DEFAULT_FS}</configuration>")
    source = tables_of(example("environment"), environment=environment, allow_plaintext=True)["sources"]["r1"]
    assert source["listen"] == "0.0.0.0:44444"
    for name in ("hdfs", "hdfs_avro"):
        sink = tables_of(example(name), environment=environment)["sinks"]["k1"]
        assert sink["path"].startswith("hdfs://nn:8020/flume/events/")


@pytest.mark.parametrize("name", NAMES)
def test_example_imported_accounts_for_each_property(name: str) -> None:
    """Each property is converted, not needed, changed or left out, and nothing is without a word."""
    result = imported(example(name))
    assert not result.ledger.unsettled
    said = {note.key for note in result.notes}
    for key, outcome in result.ledger.outcomes.items():
        assert outcome is Outcome.CONVERTED or any(key == other or key.startswith(f"{other}.") for other in said), key


def test_first_example_of_the_guide_is_converted_whole() -> None:
    """A source, a channel and a sink, and nothing to look at."""
    result = imported(example("simple_netcat"))
    assert result.counts == {Outcome.CONVERTED: 12}
    assert result.tables == {
        "channels": {"c1": {"type": "memory", "capacity": 1000, "transaction_capacity": 100}},
        "sources": {
            "r1": {
                "type": "netcat",
                "channels": ["c1"],
                "line_bytes_max": 512,
                "idle_seconds_max": 604_800.0,
                "listen": "localhost:44444",
            }
        },
        "sinks": {"k1": {"type": "logger", "channel": "c1", "bytes_max": 16}},
    }
