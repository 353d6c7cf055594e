import tomllib
from typing import Any

import pytest

from millrace_server.configuration.settings import check_settings
from millrace_server.flume_import import FlumeImportError, ImportedAgent, import_agent

BASE = """
a.channels = c
a.channels.c.type = memory
"""


def imported(text: str, agent: str | None = None) -> ImportedAgent:
    return import_agent(text, agent)


def tables_of(text: str) -> dict[str, Any]:
    """The resulting configuration, which must be valid."""
    toml = imported(BASE + text).toml()
    tables = tomllib.loads(toml)
    check_settings(tables, "imported")
    return tables


def notes_of(text: str) -> dict[str, str]:
    return {note.key: note.sentence for note in imported(BASE + text).notes}


def test_import_of_a_file_channel_takes_over_its_limits() -> None:
    """Milliseconds become seconds, lists become arrays, and ignored options are reported."""
    text = """
    a.channels = c f
    a.channels.f.type = file
    a.channels.f.dataDirs = /d1, /d2
    a.channels.f.checkpointDir = /cp
    a.channels.f.checkpointInterval = 15000
    a.channels.f.transactionCapacity = 500
    a.channels.f.keep-alive = 5
    a.channels.f.useDualCheckpoints = true
    a.channels.f.use-fast-replay = true
    """
    assert tables_of(text)["channels"]["f"] == {
        "type": "file",
        "transaction_capacity": 500,
        "keep_alive_seconds": 5.0,
        "data_dirs": ["/d1", "/d2"],
        "checkpoint_dir": "/cp",
        "backup_checkpoint": True,
        "checkpoint_interval_seconds": 15.0,
    }
    assert "a.channels.f.use-fast-replay" in notes_of(text)


def test_import_of_a_spillable_channel_adds_its_two_capacities() -> None:
    """Flume counts the overflow separately."""
    text = """
    a.channels = c s
    a.channels.s.type = SPILLABLEMEMORY
    a.channels.s.memoryCapacity = 100
    a.channels.s.overflowCapacity = 1000
    """
    assert tables_of(text)["channels"]["s"] == {"type": "spillable", "capacity": 1100, "memory_capacity": 100}


def test_import_of_a_taildir_source_makes_globs_and_headers() -> None:
    """Groups become paths, with their headers."""
    text = """
    a.sources = s
    a.sources.s.type = TAILDIR
    a.sources.s.channels = c
    a.sources.s.filegroups = g h
    a.sources.s.filegroups.g = /logs/.*\\\\.log
    a.sources.s.filegroups.h = /logs/(a|b)
    a.sources.s.headers.g.team = web
    a.sources.s.byteOffsetHeader = true
    """
    source = tables_of(text)["sources"]["s"]
    assert source["paths"] == ["/logs/*.log", "/logs/*"]
    assert source["path_headers"] == {"/logs/*.log": {"team": "web"}}
    assert source["byte_offset_header"] == "byteoffset"
    assert "all files of the directory are read" in notes_of(text)["a.sources.s.filegroups.h"]


def test_import_of_each_source_with_a_counterpart_makes_a_good_configuration() -> None:
    """The result passes the check with all defaults."""
    text = """
    a.sources = e h s p t u
    a.sources.e.type = exec
    a.sources.e.command = tail -F /var/log/x
    a.sources.e.restart = true
    a.sources.h.type = http
    a.sources.h.port = 81
    a.sources.s.type = syslogtcp
    a.sources.s.port = 82
    a.sources.p.type = spooldir
    a.sources.p.spoolDir = /spool
    a.sources.p.includePattern = ^.*\\\\.txt$
    a.sources.t.type = exec
    a.sources.t.command = cat x | grep y
    a.sources.t.shell = /bin/bash -c
    a.sources.u.type = syslogudp
    """ + "".join(f"a.sources.{name}.channels = c\n" for name in "ehsptu")
    sources = tables_of(text)["sources"]
    assert {name: table["type"] for name, table in sources.items()} == {
        "e": "exec", "h": "http", "s": "syslog", "p": "spooldir", "t": "exec", "u": "syslog",
    }  # fmt: skip
    assert sources["e"]["command"] == ["tail", "-F", "/var/log/x"]
    assert sources["t"]["command"] == "cat x | grep y"
    assert sources["p"]["include"] == ["*.txt"]
    assert sources["u"]["listen"] == ["udp://0.0.0.0:514"]


def test_import_of_an_avro_source_has_the_server_listen_there() -> None:
    """Senders to that address find a server, and the import reports the differences."""
    text = """
    a.sources = s
    a.sources.s.type = avro
    a.sources.s.bind = 127.0.0.1
    a.sources.s.port = 4141
    a.sources.s.channels = c
    """
    tables = tables_of(text)
    assert tables["server"] == {"listen": "127.0.0.1:4141"}
    assert "sources" not in tables
    assert "over gRPC" in notes_of(text)["a.sources.s"]


def test_import_of_sinks_and_a_group_keeps_priorities() -> None:
    """The highest priority is first, whatever the order of the list."""
    text = """
    a.sinks = x y z
    a.sinks.x.type = avro
    a.sinks.x.hostname = one.example.org
    a.sinks.y.type = thrift
    a.sinks.y.hostname = two.example.org
    a.sinks.z.type = avro
    a.sinks.z.hostname = three.example.org
    a.sinkgroups = g
    a.sinkgroups.g.sinks = x y z
    a.sinkgroups.g.processor.type = failover
    a.sinkgroups.g.processor.priority.x = 5
    a.sinkgroups.g.processor.priority.y = 10
    """ + "".join(f"a.sinks.{name}.channel = c\na.sinks.{name}.port = 4545\n" for name in "xyz")
    tables = tables_of(text)
    assert tables["sink_groups"]["g"] == {"sinks": ["y", "x", "z"], "policy": "failover"}
    assert tables["sinks"]["x"]["endpoints"] == ["one.example.org:4545"]
    assert "z have none" in notes_of(text)["a.sinkgroups.g.processor.priority"]


def test_import_of_an_hdfs_sink_makes_a_files_sink() -> None:
    """Paths, rolling and rounding are translated."""
    text = """
    a.sinks = h
    a.sinks.h.type = hdfs
    a.sinks.h.channel = c
    a.sinks.h.hdfs.path = /flume/%Y/%m/%{host}
    a.sinks.h.hdfs.rollInterval = 0
    a.sinks.h.hdfs.rollSize = 134217728
    a.sinks.h.hdfs.rollCount = 0
    a.sinks.h.hdfs.round = true
    a.sinks.h.hdfs.roundValue = 10
    a.sinks.h.hdfs.roundUnit = minute
    a.sinks.h.hdfs.codeC = gzip
    a.sinks.h.hdfs.kerberosPrincipal = me
    """
    assert tables_of(text)["sinks"]["h"] == {
        "channel": "c",
        "type": "files",
        "path": "/flume/{time:%Y}/{time:%m}/{header:host}",
        "compression": "gzip",
        "time_round_seconds": 600,
        "roll_seconds": 86_400.0,
        "roll_bytes": 134_217_728,
    }
    assert "kinit" in notes_of(text)["a.sinks.h.hdfs.kerberosPrincipal"]


@pytest.mark.parametrize("kind", ["jms", "netcat", "com.example.MySource"])
def test_import_of_a_source_without_counterpart_leaves_it_out_and_says_why(kind: str) -> None:
    """Every omission is reported."""
    text = f"a.sources = s\na.sources.s.type = {kind}\na.sources.s.channels = c\na.sources.s.odd = 1\n"
    assert "sources" not in tables_of(text)
    assert "has no counterpart" in notes_of(text)["a.sources.s.type"]


def test_import_of_each_interceptor_keeps_its_order_and_settings() -> None:
    """Types are given by short name or class; those without a counterpart are omitted and reported."""
    text = """
    a.sources = s
    a.sources.s.type = exec
    a.sources.s.command = tail -F log
    a.sources.s.channels = c
    a.sources.s.interceptors = t h st r u sr f x mine
    a.sources.s.interceptors.t.type = org.apache.flume.interceptor.TimestampInterceptor$Builder
    a.sources.s.interceptors.t.preserveExisting = true
    a.sources.s.interceptors.h.type = host
    a.sources.s.interceptors.h.useIP = false
    a.sources.s.interceptors.h.hostHeader = machine
    a.sources.s.interceptors.st.type = static
    a.sources.s.interceptors.st.key = site
    a.sources.s.interceptors.st.value = berlin
    a.sources.s.interceptors.r.type = remove_header
    a.sources.s.interceptors.r.fromList = one, two
    a.sources.s.interceptors.r.fromListSeparator = ;
    a.sources.s.interceptors.u.type = org.apache.flume.sink.solr.morphline.UUIDInterceptor$Builder
    a.sources.s.interceptors.u.prefix = e-
    a.sources.s.interceptors.sr.type = search_replace
    a.sources.s.interceptors.sr.searchPattern = ([0-9]+)
    a.sources.s.interceptors.sr.replaceString = <$1>
    a.sources.s.interceptors.sr.charset = ISO-8859-1
    a.sources.s.interceptors.f.type = regex_filter
    a.sources.s.interceptors.f.regex = ^#
    a.sources.s.interceptors.f.excludeEvents = true
    a.sources.s.interceptors.x.type = regex_extractor
    a.sources.s.interceptors.x.regex = ^(\\\\S+) (\\\\S+)
    a.sources.s.interceptors.x.serializers = s1 s2
    a.sources.s.interceptors.x.serializers.s1.name = level
    a.sources.s.interceptors.x.serializers.s1.type = com.example.Own
    a.sources.s.interceptors.x.serializers.s2.name = when
    a.sources.s.interceptors.x.serializers.s2.type = flume.RegexExtractorInterceptorMillisSerializer
    a.sources.s.interceptors.x.serializers.s2.pattern = yyyy-MM-dd
    a.sources.s.interceptors.mine.type = com.example.Mine$Builder
    """
    assert tables_of(text)["sources"]["s"]["interceptors"] == [
        {"type": "timestamp", "preserve_existing": True},
        {"type": "host", "use": "name", "header": "machine"},
        {"type": "static", "key": "site", "value": "berlin"},
        {"type": "remove_header", "names": ["one", "two"]},
        {"type": "uuid", "prefix": "e-"},
        {"type": "search_replace", "pattern": "([0-9]+)", "replacement": "<\\g<1>>"},
        {"type": "regex_filter", "pattern": "^#", "action": "drop"},
        {
            "type": "regex_extractor",
            "pattern": "^(\\S+) (\\S+)",
            "names": ["level", "when"],
            "millis": {"when": "%Y-%m-%d"},
        },
    ]
    notes = notes_of(text)
    for key in ("mine.type", "r.fromListSeparator", "sr.charset", "x.serializers.s1.type"):
        assert f"a.sources.s.interceptors.{key}" in notes


def test_import_reports_each_unknown_option() -> None:
    """A misspelt option in the old file is not taken over either."""
    assert notes_of("a.channels.c.capacty = 7") == {"a.channels.c.capacty": "has no counterpart"}
    assert notes_of("a.channels.c.capacity = many")["a.channels.c.capacity"].startswith('is "many", which is not')


def test_import_leaves_out_what_names_no_channel() -> None:
    """The result is the same as Flume's, with a warning."""
    text = "a.sinks = s\na.sinks.s.type = null\na.sinks.s.channel = gone\n"
    assert not tables_of(text).get("sinks")
    assert "omitted" in notes_of(text)["a.sinks.s.channel"]


@pytest.mark.parametrize(
    ("text", "agent", "sentence"),
    [
        ("", None, "describes no agent"),
        ("a.channels = c\nb.channels = d", None, "describes a and b; choose one"),
        ("a.channels = c", "x", "describes no agent x, but a"),
    ],
)
def test_import_of_missing_components_reports_them(text: str, agent: str | None, sentence: str) -> None:
    """The sentence names the agents to choose from."""
    with pytest.raises(FlumeImportError, match=sentence):
        imported(text, agent)
