import pytest

from millrace_server.flume_import import Outcome
from tests.flume_imports import CHANNEL, example, imported, notes_of, outcomes_of, source_of, source_text, tables_of


def test_import_of_a_taildir_source_makes_globs_and_headers() -> None:
    """Groups become paths, with their headers; Flume reads any file, also compressed and hidden ones."""
    text = example("taildir")
    source = tables_of(text)["sources"]["r1"]
    assert source["paths"] == ["/var/log/test1/example.log", "/var/log/test2/*log*", "/var/log/test2/.*log*"]
    assert source["path_headers"] == {
        "/var/log/test1/example.log": {"headerKey1": "value1"},
        "/var/log/test2/*log*": {"headerKey1": "value2", "headerKey2": "value2-2"},
        "/var/log/test2/.*log*": {"headerKey1": "value2", "headerKey2": "value2-2"},
    }
    assert (source["file_header"], source["exclude"]) == ("file", [])
    assert "skip_to_end" in notes_of(text)["a1.sources.r1.positionFile"]
    # The guide's own example misspells the source.
    assert outcomes_of(text)["a1.sources.ri.maxBatchCount"] is Outcome.LEFT_OUT


def test_import_of_a_pattern_that_is_no_shell_pattern_has_to_be_filled_in() -> None:
    """Reading other files than Flume did would be worse than not starting."""
    lines = "type = TAILDIR\nfilegroups = g\nfilegroups.g = /logs/a\\\\d+\n"
    source = imported(source_text(lines)).tables["sources"]["s"]
    assert source["paths"] == [{"fill_in": "/logs/SHELL PATTERN FOR a\\d+"}]
    assert outcomes_of(source_text(lines))["a.sources.s.filegroups.g"] is Outcome.LEFT_OUT


@pytest.mark.parametrize(
    ("lines", "command"),
    [
        ("command = tail -F '/var/log/a b'", {"command": ["tail", "-F", "'/var/log/a", "b'"]}),
        ("command = cat x | wc\nshell = /bin/sh -c", {"command": "cat x | wc", "shell": True}),
        ("command = cat x | wc\nshell = /bin/bash -c", {"command": ["/bin/bash", "-c", "cat x | wc"]}),
    ],
)
def test_import_of_an_exec_source_runs_the_same_command(lines: str, command: dict[str, object]) -> None:
    """Flume splits at spaces and knows no quotes; a shell gets the whole command."""
    source = source_of(f"type = exec\n{lines}")
    assert source == {"type": "exec", "channels": ["c"], **command, "restart": "never"}


@pytest.mark.parametrize(
    ("lines", "settings"),
    [
        ("", {"done": {"type": "rename", "suffix": ".COMPLETED"}}),
        ("deletePolicy = immediate", {"done": {"type": "delete"}}),
        ("includePattern = ^.*\\\\.(txt|log)$", {"include": ["*.txt", "*.log"]}),
        ("consumeOrder = youngest", {"order": "youngest"}),
        ("basenameHeader = true\nbasenameHeaderKey = name", {"basename_header": "name"}),
        ("", {"format": {"type": "lines", "line_bytes_max": 2048, "decode_errors": "fail"}}),
        (
            "deserializer.maxLineLength = 99\ninputCharset = ISO-8859-1\ndecodeErrorPolicy = IGNORE",
            {"format": {"type": "lines", "line_bytes_max": 99, "decode_errors": "ignore", "charset": "ISO-8859-1"}},
        ),
        (
            "deserializer = org.apache.flume.sink.solr.morphline.BlobDeserializer$Builder",
            {"format": {"type": "blob", "file_bytes_max": 100_000_000}},
        ),
        (
            "deserializer = AVRO\ndeserializer.schemaType = LITERAL",
            {"format": {"type": "avro", "body": "avro", "schema_header": "flume.avro.schema.literal"}},
        ),
    ],
)
def test_import_of_a_spooldir_source_keeps_what_it_does(lines: str, settings: dict[str, object]) -> None:
    """How files are chosen, read and marked as done; Flume's defaults are written where ours differ."""
    source = source_of(f"type = spooldir\nspoolDir = /spool\n{lines}")
    assert source | settings == source


@pytest.mark.parametrize(
    ("lines", "settings"),
    [
        ("type = syslogtcp\nhost = localhost\nport = 82", {"listen": ["tcp://localhost:82"]}),
        ("type = syslogtcp\nhost = localhost\nport = 82", {"message_bytes_max": 2500}),
        ("type = syslogudp\nhost = ::1\nport = 82\nkeepFields = true", {"listen": ["udp://[::1]:82"]}),
        ("type = syslogudp\nhost = ::1\nport = 82\nkeepFields = true", {"keep_fields": ["all"]}),
        (
            "type = multiport_syslogtcp\nhost = 127.0.0.1\nports = 1 2\nportHeader = p",
            {"listen": ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"], "port_header": "p"},
        ),
        (
            "type = multiport_syslogtcp\nhost = 127.0.0.1\nports = 1\nkeepFields = priority hostname",
            {"keep_fields": ["priority", "hostname"]},
        ),
        ("type = netcatudp\nbind = localhost\nport = 66", {"listen": ["udp://localhost:66"], "keep_fields": ["all"]}),
        ("type = netcat\nbind = localhost\nport = 66", {"listen": "localhost:66", "line_bytes_max": 512}),
        ("type = http\nbind = localhost\nport = 81", {"listen": "localhost:81"}),
    ],
)
def test_import_of_a_source_that_listens_has_its_addresses(lines: str, settings: dict[str, object]) -> None:
    """Nothing about plain text is said where only this machine reaches it."""
    source = source_of(lines, allow_plaintext=True)
    assert source | settings == source
    assert "allow_plaintext" not in source


def test_import_of_a_host_that_is_not_known_has_to_be_filled_in_without_brackets() -> None:
    """The colon of `${env:HOST}` makes it no IPv6 address."""
    source = imported(source_text("type = avro\nbind = ${env:UNKNOWN_HOST}\nport = 4545")).tables["sources"]["s"]
    assert source["listen"] == {"fill_in": "${env:UNKNOWN_HOST}:4545"}


@pytest.mark.parametrize("lines", ["type = http\nport = 81", "type = syslogudp\nhost = 0.0.0.0\nport = 82"])
def test_import_of_a_source_that_others_reach_allows_plain_text_only_if_asked(lines: str) -> None:
    """By default the configuration does not pass the check, which says what to do."""
    unasked = imported(source_text(lines)).tables["sources"]["s"]
    assert "allow_plaintext" not in unasked
    assert source_of(lines, allow_plaintext=True) == {**unasked, "allow_plaintext": True}


@pytest.mark.parametrize("kind", ["jms", "thrift", "org.apache.flume.source.scribe.ScribeSource", "com.example.Mine"])
def test_import_of_a_source_without_counterpart_leaves_it_out_and_says_why(kind: str) -> None:
    """Every property of it is left out, and said to be."""
    text = source_text(f"type = {kind}\nodd = 1\ninterceptors = i\ninterceptors.i.type = host\n")
    assert "sources" not in tables_of(text)
    assert "has no counterpart" in notes_of(text)["a.sources.s"]
    assert {outcome for key, outcome in outcomes_of(text).items() if key.startswith("a.sources.s.")} == {
        Outcome.LEFT_OUT
    }


def test_import_of_a_source_of_no_channel_or_type_leaves_it_out() -> None:
    """The result is the same as Flume's, and it is said."""
    text = f"{CHANNEL}a.sources = s t\na.sources.s.type = seq\na.sources.s.channels = gone\na.sources.t.channels = c\n"
    assert "sources" not in tables_of(text)
    notes = notes_of(text)
    assert "lists gone" in notes["a.sources.s.channels"]
    assert notes["a.sources.s"] == "it has no channel, so Flume leaves it out too"
    assert notes["a.sources.t"] == "it has no type, so Flume leaves it out too"
