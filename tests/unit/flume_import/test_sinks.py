from pathlib import Path

import pytest

from millrace_server.flume_import import Outcome
from tests.flume_imports import example, imported, notes_of, outcomes_of, sink_of, sink_text, tables_of

HDFS = "type = hdfs\nhdfs.path = hdfs://nn/x\nhdfs.fileType = DataStream\n"


def test_import_of_an_hdfs_sink_makes_a_files_sink() -> None:
    """Paths, rolling and rounding are translated; 0 means never, which is a day, and as much as the channel holds."""
    lines = """
    type = hdfs
    hdfs.path = hdfs://nn/flume/%Y/%m/%{host}
    hdfs.fileType = CompressedStream
    hdfs.rollInterval = 0
    hdfs.rollSize = 134217728
    hdfs.rollCount = 0
    hdfs.round = true
    hdfs.roundValue = 10
    hdfs.roundUnit = minute
    hdfs.timeZone = Europe/Berlin
    hdfs.codeC = gzip
    hdfs.kerberosPrincipal = me
    """
    assert sink_of(lines) == {
        "type": "files",
        "channel": "c",
        "path": "hdfs://nn/flume/{time:%Y}/{time:%m}/{header:host}",
        "time_zone": "Europe/Berlin",
        "compression": "gzip",
        "time_round_seconds": 600,
        "roll_seconds": 86_400.0,
        "roll_bytes": 134_217_728,
        "roll_events": 50,
    }
    notes = notes_of(sink_text(lines))
    assert "kinit" in notes["a.sinks.k.hdfs.kerberosPrincipal"]
    assert notes["a.sinks.k"].startswith("a file has at most 50 events")


def test_import_of_a_path_without_scheme_goes_to_hadoops_default_file_system(tmp_path: Path) -> None:
    """Where core-site.xml can be read, the path gets its host."""
    setting = "<property><name>fs.defaultFS</name><value>hdfs://nn:8020</value></property>"
    (tmp_path / "core-site.xml").write_text(f"<configuration>{setting}</configuration>")
    tables = tables_of(example("hdfs"), environment={"HADOOP_CONF_DIR": str(tmp_path)})
    path = "hdfs://nn:8020/flume/events/{time:%Y-%m-%d}/{time:%H%M}/{time:%S}"
    assert tables["sinks"]["k1"]["path"] == path


@pytest.mark.parametrize("path", ["/flume/events", "flume/events", "hdfs:///flume/events"])
def test_import_of_a_path_of_an_unknown_file_system_has_to_be_filled_in(path: str) -> None:
    """It never becomes a local directory."""
    text = sink_text(HDFS.replace("hdfs://nn/x", path))
    filled: object = imported(text).tables["sinks"]["k"]["path"]
    assert isinstance(filled, dict)
    assert filled["fill_in"].startswith("hdfs://NAMENODE:8020/")
    assert outcomes_of(text)["a.sinks.k.hdfs.path"] is Outcome.LEFT_OUT
    assert "HADOOP_CONF_DIR" in notes_of(text)["a.sinks.k.hdfs.path"]


@pytest.mark.parametrize(
    ("path", "becomes"),
    [("FILE:///x", "file:///x"), ("file:/x", "file:///x"), ("HDFS://nn/X", "hdfs://nn/X"), ("S3A://b/x", "s3://b/x")],
)
def test_import_of_a_path_with_any_spelling_of_a_scheme_names_the_same_directory(path: str, becomes: str) -> None:
    """The sink would take other spellings than its own for local directories."""
    assert sink_of(HDFS.replace("hdfs://nn/x", path))["path"] == becomes


@pytest.mark.parametrize("path", ["viewfs://c/x", "ofs://c/x", "wasb://b@a/x", "c:/logs", "file:x"])
def test_import_of_a_path_of_another_file_system_has_to_be_filled_in(path: str) -> None:
    """It is left out, since no sink could write there, and --strict fails."""
    text = sink_text(HDFS.replace("hdfs://nn/x", path))
    assert imported(text).tables["sinks"]["k"]["path"] == {"fill_in": path}
    assert outcomes_of(text)["a.sinks.k.hdfs.path"] is Outcome.LEFT_OUT


@pytest.mark.parametrize(
    ("lines", "setting", "missing"),
    [
        ("type = hdfs\nhdfs.fileType = DataStream", "path", "hdfs.path"),
        (HDFS.replace("hdfs://nn/x", ""), "path", "hdfs.path"),
        ("type = file_roll", "path", "sink.directory"),
        ("type = avro\nport = 1", "endpoints", "hostname"),
        ("type = org.apache.flume.sink.kafka.KafkaSink", "bootstrap_servers", "kafka.bootstrap.servers"),
    ],
)
def test_import_without_a_property_that_flume_needs_is_not_complete(lines: str, setting: str, missing: str) -> None:
    """What is to be filled in is said, and --strict fails."""
    text = sink_text(lines)
    agent = imported(text)
    assert "fill_in" in str(agent.tables["sinks"]["k"][setting])
    assert not agent.is_complete
    assert any(note.key == f"a.sinks.k.{missing}" and "is missing" in note.sentence for note in agent.notes)


@pytest.mark.parametrize(
    ("lines", "settings", "outcome"),
    [
        ("serializer = avro_event", {"format": "avro"}, Outcome.CHANGED),
        ("serializer = header_and_text", {"format": "json"}, Outcome.CHANGED),
        ("serializer = text\nserializer.appendNewline = false", {"append_newline": False}, Outcome.CONVERTED),
        ("serializer = com.example.Mine", {}, Outcome.LEFT_OUT),
        ("hdfs.codeC = gzip", {}, Outcome.UNNEEDED),
        ("hdfs.filePrefix = events-", {"prefix": "events-"}, Outcome.CONVERTED),
        ("hdfs.filePrefix = %{host}", {}, Outcome.LEFT_OUT),
        ("hdfs.proxyUser = flume", {"options": {"user": "flume"}}, Outcome.CONVERTED),
        ("hdfs.useLocalTimeStamp = true", {}, Outcome.CHANGED),
        ("hdfs.callTimeout = 15000", {"stall_seconds": 15.0}, Outcome.CONVERTED),
    ],
)
def test_import_of_a_property_of_the_hdfs_sink_has_its_fate(
    lines: str, settings: dict[str, object], outcome: Outcome
) -> None:
    """What the first of the lines becomes, beyond what all sinks have."""
    without = sink_of(HDFS)
    assert sink_of(HDFS + lines) == {**without, **settings}
    assert outcomes_of(sink_text(HDFS + lines))[f"a.sinks.k.{lines.partition(' ')[0]}"] is outcome


def test_import_of_sequence_files_says_that_there_are_none() -> None:
    """They are Flume's default, so it is said even if the property is absent."""
    text = sink_text("type = hdfs\nhdfs.path = hdfs://nn/x")
    assert "format" not in tables_of(text)["sinks"]["k"]
    assert "no sequence files" in notes_of(text)["a.sinks.k.hdfs.fileType"]
    assert not imported(text).is_complete


def test_import_of_flumes_default_rolls_keeps_them() -> None:
    """Small as they are, the files are those that Flume would write."""
    sink = sink_of(HDFS)
    assert (sink["roll_seconds"], sink["roll_bytes"], sink["roll_events"]) == (30.0, 1024, 10)


def test_import_of_a_file_roll_sink_takes_escapes_for_names() -> None:
    """Only the sink for HDFS has escapes."""
    sink = sink_of("type = file_roll\nsink.directory = /data/{%Y}\nsink.pathManager.extension = log")
    assert (sink["path"], sink["suffix"], sink["roll_seconds"]) == ("/data/{{%Y}}", ".log", 30.0)


def test_import_of_an_http_sink_settles_and_retries_by_status() -> None:
    """What Flume rolls back is sent again; what it commits is settled."""
    sink = tables_of(example("http_sink"))["sinks"]["k1"]
    assert sink["statuses"] == {"2xx": "settle", "3xx": "retry", "4xx": "settle", "5xx": "retry", "200": "settle"}
    assert (sink["connect_seconds_max"], sink["headers"]["Accept"]) == (2.0, "application/json")


GROUP = """
a.channels = c
a.channels.c.type = memory
a.sinks = X y z
a.sinks.X.type = null
a.sinks.y.type = null
a.sinks.z.type = logger
a.sinks.X.channel = c
a.sinks.y.channel = c
a.sinks.z.channel = c
a.sinkgroups = g
a.sinkgroups.g.sinks = X y z
"""


def test_import_of_a_failover_group_keeps_priorities() -> None:
    """The highest priority is first, whatever the order of the list; those without one come last."""
    lines = "type = failover", "priority.X = 5", "priority.y = 10", "maxpenalty = 10000"
    text = GROUP + "\n".join(f"a.sinkgroups.g.processor.{line}" for line in lines)
    assert tables_of(text)["sink_groups"]["g"] == {
        "sinks": ["y", "x", "z"],
        "policy": "failover",
        "backoff_seconds_max": 10.0,
    }


def test_import_of_a_group_of_which_a_sink_is_left_out_has_the_others() -> None:
    """A group of one is no group, and it is said."""
    text = f"{GROUP.replace('null', 'irc', 1)}a.sinkgroups.g.processor.type = load_balance\n"
    assert tables_of(text)["sink_groups"]["g"] == {"sinks": ["y", "z"], "policy": "load_balancing"}
    alone = GROUP.replace("null", "irc") + "a.sinkgroups.g.processor.type = load_balance\n"
    assert not tables_of(alone).get("sink_groups")
    assert notes_of(alone)["a.sinkgroups.g"] == "fewer than two of its sinks are left"


def test_import_of_several_sinks_in_a_default_group_says_that_each_empties_its_channel() -> None:
    """Flume refuses such a group, so it must not vanish without a word."""
    assert not tables_of(GROUP).get("sink_groups")
    assert outcomes_of(GROUP)["a.sinkgroups.g.sinks"] is Outcome.CHANGED
    assert "each empties its channel" in notes_of(GROUP)["a.sinkgroups.g.sinks"]


def test_import_of_a_default_group_needs_none() -> None:
    """One sink empties its channel alone."""
    text = GROUP + "a.sinkgroups.g.processor.type = default\n"
    assert "sink_groups" not in tables_of(text)
