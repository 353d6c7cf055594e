from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from millrace.setting_file import SettingsError
from millrace_spark.landing.config import BadLinesConfig, LandingConfig
from millrace_spark.landing.config_file import check_config, load_config, parse_override

GOOD: Mapping[str, Mapping[str, Any]] = {
    "source": {"endpoints": ["mill-1:7070"], "channels": ["web"]},
    "target": {"path": "/landed/web"},
}


def checked(**tables: Mapping[str, Any]) -> LandingConfig:
    return check_config({name: {**GOOD.get(name, {}), **tables.get(name, {})} for name in {*GOOD, *tables}}, "web.toml")


def problems(**tables: Mapping[str, Any]) -> list[str]:
    with pytest.raises(SettingsError) as refused:
        checked(**tables)
    return list(map(str, refused.value.problems))


def test_config_with_what_is_needed_has_defaults_for_the_rest() -> None:
    """Two tables suffice: lines are text, and bad lines go to a folder beside the target."""
    config = checked()
    assert config.parse.type == "text"
    assert config.bad_lines_path == "/landed/web.bad"
    assert config.compaction.enabled
    assert not config.run.follow


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        ({"source": {"endpoints": ["mill"]}}, "source.endpoints: 'mill' is not host:port, such as 127.0.0.1:7070"),
        ({"source": {"endpoints": ["a:1", "a:1"]}}, "source.endpoints: a:1 is duplicated, and its events would be too"),
        ({"source": {"endpoints": []}}, "source.endpoints: has no value; it must have at least 1"),
        (
            {"source": {"channels": ["A b"]}},
            "source.channels: 'A b' is neither a channel's name nor a pattern such as web-*",
        ),
        ({"source": {"channel": "web"}}, "source.channel: is not known; did you mean channels?"),
        ({"source": {"lease_seconds": 0}}, "source.lease_seconds: is 0; it must be a number above 0, at most 3_600"),
        ({"source": {"events_per_batch_max": "many"}}, 'is "many"; it must be a whole number from 1 to 1_000_000_000'),
        (
            {"source": {"tls": {"private_key": "k"}}},
            "source.tls: certificate and private_key must be given together; one",
        ),
        ({"source": {"tls": {}}}, "source.tls: has no file; set ca, or remove the table"),
        ({"source": {"reader_id": "a b"}}, 'source.reader_id: is "a b"; it must match ^[!-~]+$'),
        (
            {"parse": {"type": "csv"}},
            'parse.type: is "csv"; it must be "text" or "json" or "regex" or "access_log" or "syslog"',
        ),
        ({"parse": {}}, 'parse.type: is missing; it must be "text" or "json" or "regex" or "access_log" or "syslog"'),
        ({"parse": {"type": "json"}}, "parse: must have columns, or columns_file, and not both"),
        (
            {"parse": {"type": "json", "columns": "a int", "columns_file": "b"}},
            "parse: must have columns, or columns_file",
        ),
        ({"parse": {"type": "regex"}}, "parse.pattern: is missing; it must be text"),
        (
            {"parse": {"type": "regex", "pattern": "(?P<a>"}},
            "parse.pattern: is not a valid regular expression: missing )",
        ),
        ({"parse": {"type": "regex", "pattern": "(a)"}}, "parse.pattern: has no named group"),
        (
            {"parse": {"type": "regex", "pattern": "(?P<a>.)", "types": {"a": "money"}}},
            "parse.types: a is 'money'; it must",
        ),
        (
            {"parse": {"type": "regex", "pattern": "(?P<a>.)", "types": {"b": "int"}}},
            "types: b is not a group of the pattern",
        ),
        ({"parse": {"type": "text", "pattern": "x"}}, 'parse.pattern: is only for type "regex"'),
        ({"target": {"path": ""}}, "target.path: is ''; it must be a folder of its own, such as landed/web"),
        ({"target": {"path": "/"}}, "target.path: is '/'; it must be a folder of its own"),
        ({"target": {"path": "s3a://bucket"}}, "it must be a folder below the root"),
        ({"target": {"compression": "brotli"}}, 'it must be "zstd" or "snappy" or "gzip" or "lz4" or "none"'),
        (
            {"target": {"event_columns": ["key"]}},
            "target.event_columns: 'key' is not a column of events; these are channel,",
        ),
        ({"target": {"file_prefix": "_x"}}, "target.file_prefix: is '_x'; it must be letters, digits"),
        (
            {"target": {"work_path": "/landed/web/work"}},
            "target.work_path: is /landed/web/work, which is in target.path",
        ),
        ({"target": {"path": "/w/staging", "work_path": "/w"}}, "target.path: is /w/staging, which is in target.wo"),
        ({"target": {"work_path": "/landed/web"}}, "target.work_path: is /landed/web, which is in target.path"),
        (
            {"bad_lines": {"path": "/landed/web.landing/bad"}},
            "bad_lines.path: is /landed/web.landing/bad, which is in target.work_path, /landed/web.landing; each",
        ),
        ({"bad_lines": {"path": "/landed"}}, "target.work_path: is /landed/web.landing, which is in bad_lines.path"),
        (
            {"target": {"work_path": "/aside"}, "bad_lines": {"path": "/landed"}},
            "target.path: is /landed/web, which is in bad_lines.path, /landed; each must be a separate folder",
        ),
        ({"target": {"work_path": "hdfs://n/work"}}, "it must be on the file system of target.path, /landed/web"),
        ({"bad_lines": {"path": "/landed/web/bad"}}, "bad_lines.path: is /landed/web/bad, which is in target.path"),
        (
            {"bad_lines": {"path": "/bad", "channel": "bad"}},
            "bad_lines: has channel and path; it must have one of them",
        ),
        (
            {"source": {"endpoints": ["a:1"], "channels": ["web-*"]}, "bad_lines": {"channel": "web-rejected"}},
            "bad_lines.channel: is web-rejected, which source.channels match too",
        ),
        ({"bad_lines": {"endpoints": ["a:1"]}}, "bad_lines: has endpoints, but no channel"),
        ({"bad_lines": {"channel": "bad", "endpoints": ["a"]}}, "bad_lines.endpoints: 'a' is not host:port"),
        (
            {"partitions": {"by": ["date"]}},
            "partitions.time: 'time' is not a parsed column; the columns are line. Name one of them,",
        ),
        ({"partitions": {"by": ["status"]}}, "partitions.by: 'status' is neither a part of the time (year, month,"),
        ({"partitions": {"by": ["date", "Date"]}}, "partitions.by: 'date' is empty or duplicated"),
        ({"partitions": {"by": ["headers."]}}, "partitions.by: 'headers.' is empty or duplicated"),
        (
            {"parse": {"type": "regex", "pattern": "(?P<date>.)"}, "partitions": {"by": ["date"], "time": "landing"}},
            "partitions.by: 'date' is both a part of the time and a parsed column; rename the column",
        ),
        (
            {"target": {"event_columns": ["sequence", "sequence"]}},
            "target: the column 'sequence' would be duplicated; set target.event_column_prefix, or remove it from",
        ),
        ({"target": {"header_columns": ["Line"]}}, "target: the column 'line' would be duplicated"),
        ({"partitions": {"by": ["headers.line"]}}, "target: the column 'line' would be duplicated"),
        (
            {"target": {"header_columns": ["shop"]}, "partitions": {"by": ["headers.shop"]}},
            "target: the column 'shop' would be duplicated",
        ),
        (
            {"parse": {"type": "json", "columns": "a int"}, "target": {"header_columns": ["Sequence"]}},
            "target: the column 'sequence' would be duplicated",
        ),
        ({"partitions": {"time_zone": "Berlin"}}, "it must be the name of a time zone, such as Europe/Berlin"),
        (
            {"partitions": {"round_minutes": 0}},
            "partitions.round_minutes: is 0; it must be a whole number from 1 to 1_440",
        ),
        ({"partitions": {"no_time": "drop"}}, 'partitions.no_time: is "drop"; it must be "landing" or "bad"'),
        ({"compaction": {"files_min": 1}}, "compaction.files_min: is 1; it must be a whole number from 2 to 1_000_000"),
        ({"run": {"follow": 1}}, "run.follow: is 1; it must be true or false"),
        ({"spark": {"conf": {"spark.x": 1}}}, 'spark.conf."spark.x": is 1; it must be text'),
        (
            {"source": {"starting_timestamp": "today"}},
            "source.starting_timestamp: is 'today'; it must be a time in ISO 8601 with a zone",
        ),
        (
            {"source": {"starting_timestamp": "0", "starting_sequences": "latest"}},
            "source: starting_timestamp excludes starting_sequences; remove one of them",
        ),
        ({"sprak": {}}, "sprak: is not known; did you mean spark?"),
    ],
)
def test_config_with_a_mistake_is_refused_by_a_sentence(tables: Mapping[str, Any], problem: str) -> None:
    """The error names the setting, its value and the allowed values."""
    [reported] = problems(**tables)
    assert problem in reported


def test_config_with_many_mistakes_reports_all() -> None:
    """All errors are reported together."""
    reported = problems(source={"endpoints": ["x"]}, target={"format": "orc"}, run={"grace": 1})
    assert [sentence.split(":")[0] for sentence in sorted(reported)] == [
        "run.grace",
        "source.endpoints",
        "target.format",
    ]


@pytest.mark.parametrize("time", ["landing", "headers.timestamp", "at"])
def test_config_takes_times_of_columns_headers_and_landing(time: str) -> None:
    """The time of a row is a column, a header or the landing time."""
    pattern = {"type": "regex", "pattern": "(?P<at>.*)"}
    assert checked(parse=pattern, partitions={"by": ["date"], "time": time}).partitions.needs_time


def test_config_of_json_leaves_columns_to_spark() -> None:
    """Columns of a JSON schema are not checked before Spark has parsed it."""
    checked(parse={"type": "json", "columns": "at timestamp"}, partitions={"by": ["date", "shop"], "time": "at"})


def test_load_config_reads_a_file_and_lets_options_count_instead(tmp_path: Path) -> None:
    """The command line overrides the file, and a relative path starts at the working directory."""
    file = tmp_path / "web.toml"
    file.write_text('source = { endpoints = ["a:1"], channels = ["web"] }\ntarget.path = "landed"\n', encoding="utf-8")
    overrides = [("run.follow", True), ("source.channels", ["x"]), ("spark.conf.spark.driver.memory", "4g")]
    config = load_config(file, overrides)
    assert (config.run.follow, config.source.channels) == (True, ["x"])
    assert config.spark.conf == {"spark.driver.memory": "4g"}
    assert config.target.path == str(Path.cwd() / "landed")


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"\xff", "is not UTF-8"), (b"a = ", "is not TOML"), (b"x" * 2_000_000, "is larger than 1048576 bytes")],
)
def test_load_config_of_a_file_that_is_none_says_why(tmp_path: Path, content: bytes, problem: str) -> None:
    """The error is one sentence with the name of the file."""
    file = tmp_path / "web.toml"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match=problem):
        load_config(file)
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        load_config(tmp_path / "other.toml")


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("run.follow=true", ("run.follow", True)),
        ('partitions.by=["date"]', ("partitions.by", ["date"])),
        ("partitions.time=at", ("partitions.time", "at")),
        ("parse.pattern=a=b", ("parse.pattern", "a=b")),
    ],
)
def test_parse_override_takes_toml_and_else_text(text: str, parsed: tuple[str, object]) -> None:
    """Quotes are needed only for text that is also a TOML value."""
    assert parse_override(text) == parsed


def test_parse_override_without_a_value_is_refused() -> None:
    """The error shows the expected form."""
    with pytest.raises(SettingsError, match=r"it must be SETTING=VALUE, such as run\.follow=true"):
        parse_override("run.follow")


def test_bad_lines_config_checks_its_path() -> None:
    """The path is checked like that of the target."""
    assert BadLinesConfig(path="/x/../bad").path is not None
    with pytest.raises(ValueError, match="it must be a folder of its own"):
        BadLinesConfig(path="")
