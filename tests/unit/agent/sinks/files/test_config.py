"""The settings of a sink of type `files`."""

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from millrace.setting_file import SettingsError
from millrace_server.agent.sinks.files.sink import FilesSink
from millrace_server.agent.sinks.sink import SinkContext
from millrace_server.configuration.settings import load_settings
from tests.files_sink import config_of


def _problems(tmp_path: Path, *lines: str) -> list[str]:
    path = tmp_path / "millrace.toml"
    settings = ('[channels.orders]\ntype = "file"', '[sinks.archive]\ntype = "files"\nchannel = "orders"', *lines)
    path.write_text("\n".join(settings))
    with pytest.raises(SettingsError) as refused:
        load_settings(path)
    return list(map(str, refused.value.problems))


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ([], "sinks.archive.path: is missing; it must be text"),
        (
            ['path = "/data/{host}"'],
            'sinks.archive.path: is "/data/{host}"; a brace must begin {header:NAME} or {time:',
        ),
        (
            ['path = "nfs4://server/data"'],
            'sinks.archive.path: is "nfs4://server/data", whose file system cannot be used',
        ),
        (['path = "/data"', 'format = "csv"'], 'sinks.archive.format: is "csv"; it must be "text" or "json" or "avro"'),
        (
            ['path = "/data"', 'compression = "snappy"'],
            'compression: is "snappy"; for format "text" it must be "none" or "gzip" or "zstd"',
        ),
        (
            ['path = "/data"', 'format = "avro"', 'compression = "snappy"'],
            'compression: is "snappy"; for format "avro" it must be "none" or "gzip" or "zstd"',
        ),
        (
            ['path = "/data"', 'time_zone = "Mars/Olympus"'],
            'time_zone: is "Mars/Olympus"; it must be the name of a time',
        ),
        (['path = "/data"', 'time_zone = "../etc"'], 'time_zone: is "../etc"; it must be the name of a time zone'),
        (['path = "/data"', "roll_bytes = 10"], "roll_bytes: is 10; it must be a whole number from 1_024 to"),
        (['path = "/data"', "roll_seconds = 0.0"], "roll_seconds: is 0.0; it must be a number from"),
        (['path = "/data"', 'prefix = ".x"'], 'prefix: is ".x"; it must match'),
        (['path = "/data"', 'suffix = "/x"'], 'suffix: is "/x"; it must match'),
        (['path = "/data"', 'missing_word = "a/b"'], 'missing_word: is "a/b"; it must match'),
        (
            ['path = "s3://bucket/x"', "options = { region = [1] }"],
            "options.region: is an array; it must be text, a whole number, true or false",
        ),
        (['path = "/data"', "rolls = 1"], "sinks.archive.rolls: is not known"),
    ],
)
def test_settings_that_are_wrong_are_reported_in_a_sentence(lines: list[str], problem: str, tmp_path: Path) -> None:
    """Each mistake is reported with its setting, its value, and what is allowed."""
    [reported] = _problems(tmp_path, *lines)
    assert problem in reported


@pytest.mark.parametrize(
    ("setting", "library"),
    [
        ({"format": "avro"}, "fastavro"),
        ({"format": "parquet"}, "pyarrow"),
        ({"path": "s3://bucket/logs"}, "fsspec"),
        ({"path": "hdfs://name:8020/logs"}, "pyarrow"),
    ],
)
def test_settings_that_need_a_library_that_is_not_there_say_how_to_install_it(
    setting: dict[str, str], library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing library is found when the configuration is checked, not at the first event."""
    real_find = importlib.util.find_spec

    def find(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == library else real_find(name, package)

    monkeypatch.setattr("importlib.util.find_spec", find)
    with pytest.raises(ValueError, match=rf"needs {library}; install it with: pip install 'millrace-server\[files\]'"):
        config_of(**{"path": "/data", **setting})


@pytest.mark.parametrize(
    ("settings", "suffix"),
    [
        ({}, ".txt"),
        ({"compression": "gzip"}, ".txt.gz"),
        ({"format": "json", "compression": "zstd"}, ".jsonl.zst"),
        ({"format": "avro", "compression": "zstd"}, ".avro"),
        ({"format": "parquet", "compression": "snappy"}, ".parquet"),
        ({"suffix": ""}, ""),
        ({"suffix": ".log", "compression": "gzip"}, ".log"),
    ],
)
def test_suffix_follows_the_format_unless_it_is_given(settings: dict[str, Any], suffix: str) -> None:
    """Names end as the format's tools expect."""
    assert config_of("/data", **settings)._suffix() == suffix


def test_idle_seconds_that_are_not_given_are_the_roll_seconds() -> None:
    """By default a file stays open as long as `roll_seconds` allows."""
    assert config_of("/data", roll_seconds=42.0).idle_seconds == 42.0


def test_make_touches_no_directory(tmp_path: Path) -> None:
    """Creating a sink has no side effects; those begin with its first run."""
    sink = config_of(tmp_path / "out").make(SinkContext("archive", tmp_path / "state"))
    assert isinstance(sink, FilesSink)
    assert list(tmp_path.iterdir()) == []


def test_settings_imported_bring_no_library_that_is_an_extra() -> None:
    """A server without such a sink does not import these libraries."""
    extras = {"fastavro", "fsspec", "pyarrow"}
    program = (
        f"import sys, millrace_server.configuration.settings; sys.exit(repr({extras} & sys.modules.keys() or None))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == "None"
