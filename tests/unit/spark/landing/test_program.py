import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from rich.console import Console
from typer.testing import CliRunner

from millrace_client import Tls
from millrace_spark import OptionError
from millrace_spark.landing import program
from millrace_spark.landing.commands import MEANINGS, ExitCode, ShutdownSignals
from millrace_spark.landing.config import LandingConfig
from millrace_spark.landing.config_file import check_config, command_line_overrides, load_config, parse_conf
from millrace_spark.landing.display import ProgressDisplay, report_json, report_table
from millrace_spark.landing.formats import columns_of
from millrace_spark.landing.landing_run import LandingState, check_package, lag_of, source_options
from millrace_spark.landing.local_storage import FolderBusyError, folder_lock
from millrace_spark.landing.paths import WorkFolder
from millrace_spark.landing.program import app

ROOT = Path(__file__).parents[4]


def config(**tables: Mapping[str, Any]) -> LandingConfig:
    source = {"endpoints": ["a:1", "b:2"], "channels": ["web", "x-*"], **tables.pop("source", {})}
    return check_config({"source": source, "target": {"path": "/landed/web"}, **tables}, "web.toml")


def test_import_of_the_connector_brings_nothing_of_the_command_line() -> None:
    """A notebook does not import the packages of the command line."""
    program = "import sys, millrace_spark; print(sorted({'pydantic', 'rich', 'typer'} & set(sys.modules)))"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    assert finished.stdout == "[]\n"


def test_main_without_the_extra_says_how_to_get_it() -> None:
    """The program prints one line and exits with the usage code."""
    program = "import sys; sys.modules['typer'] = None; from millrace_spark.cli import main; main()"
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True)
    assert (finished.returncode, finished.stderr.count("\n")) == (ExitCode.USAGE, 1)
    assert "run `pip install 'millrace-spark[cli]'`" in finished.stderr


def test_help_shows_each_exit_code() -> None:
    """The help lists all exit codes."""
    shown = CliRunner().invoke(app, ["--help"]).output
    assert set(MEANINGS) == set(ExitCode)
    assert all(f"{code.value}  {meaning}" in shown for code, meaning in MEANINGS.items())


def test_check_tells_all_mistakes_with_their_paths(tmp_path: Path) -> None:
    """Each error is one line, and the exit code is that of wrong usage."""
    file = tmp_path / "web.toml"
    file.write_text('[source]\nendpoints = ["x"]\nchannels = ["web"]\n[target]\npth = "y"\n')
    checked = CliRunner().invoke(app, ["check", str(file)])
    assert checked.exit_code == ExitCode.USAGE
    assert len(checked.stderr.splitlines()) == 3
    assert "target.pth: is not known; did you mean path?" in checked.stderr
    mended = CliRunner().invoke(app, ["check", str(file), "--set", "source.endpoints=[]", "--set", "target.path=y"])
    assert mended.exit_code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("setting", "reported"),
    [
        ("target.header_columns=['sequence']", "target: the column 'sequence' would be duplicated; set target"),
        ("target.format=delta", 'target.format: is "delta", which needs the package delta-spark'),
    ],
)
def test_check_of_what_land_would_refuse_refuses_it(tmp_path: Path, setting: str, reported: str) -> None:
    """The error is the same as that of `land`."""
    file = tmp_path / "web.toml"
    file.write_text('[source]\nendpoints = ["a:1"]\nchannels = ["web"]\n[target]\npath = "y"\n')
    assert CliRunner().invoke(app, ["check", str(file)]).exit_code == ExitCode.OK
    checked, landed = (CliRunner().invoke(app, [command, str(file), "--set", setting]) for command in ("check", "land"))
    assert (checked.exit_code, checked.stderr) == (landed.exit_code, landed.stderr)
    assert checked.exit_code == ExitCode.USAGE
    assert reported in checked.stderr


@pytest.mark.parametrize(
    ("arguments", "reported"),
    [
        (["land"], "source: is missing"),
        (["land", "--conf", "x"], "it must be NAME=VALUE"),
        (["land", "-e", "a:1", "-c", "web", "--to", "y", "--set", "target.format=delta"], "pip install delta-spark"),
        (["compact", "/"], "FOLDER: is '/'; it must be a folder of its own"),
        (["compact", "landed", "--work-path", "/"], "--work-path: is '/'; it must be a folder of its own"),
        (["compact", "landed", "--compression", "zip"], "'zip' is not one of"),
        (["compact", "landed", "--quiet-seconds", "inf"], "quiet_seconds: is inf; it must be"),
        (["compact", "landed", "--files-min", "1"], "files_min: is 1; it must be a whole number from 2"),
    ],
)
def test_commands_with_wrong_arguments_start_nothing(arguments: list[str], reported: str) -> None:
    """The error is one sentence with the usage exit code."""
    finished = CliRunner().invoke(app, arguments)
    assert finished.exit_code == ExitCode.USAGE
    assert reported in finished.stderr


def test_compact_of_a_folder_without_its_records_is_refused(tmp_path: Path) -> None:
    """Otherwise it could merge the same files as the landing."""
    compacted = CliRunner().invoke(app, ["compact", str(tmp_path / "web")])
    assert compacted.exit_code == ExitCode.FAILED
    assert "web.landing: does not exist, but the landing into" in compacted.stderr
    assert list(tmp_path.iterdir()) == []


def test_delta_without_its_package_is_refused_by_a_sentence() -> None:
    """The error names the package and the alternative."""
    with pytest.raises(OptionError, match=r'which needs the package delta-spark; .* or set "parquet"'):
        check_package(config(target={"path": "/x", "format": "delta"}))


def test_land_options_become_settings() -> None:
    """Omitted options leave the settings of the file."""
    options = {
        "source.endpoints": ["a:1"],
        "source.channels": ["web"],
        "target.path": "/y",
        "parse.type": "json",
        "parse.columns": "at timestamp",
        "parse.pattern": None,
        "partitions.by": ["date"],
        "run.follow": True,
    }
    loaded = load_config(None, command_line_overrides(options, ["spark.x.y=z"], ["partitions.time=at"]))
    assert (loaded.run.follow, loaded.partitions.time, loaded.spark.conf) == (True, "at", {"spark.x.y": "z"})
    assert command_line_overrides(dict.fromkeys(options), [], []) == []
    assert parse_conf(["a=b=c"]) == {"a": "b=c"}


def test_source_options_are_those_of_the_data_source() -> None:
    """Each setting becomes an option, and the limits on waiting apply only with follow."""
    source = {"events_per_batch_min": 5, "lease_seconds": 9.0, "takeover": True}
    options = source_options(config(source=source))
    assert options["endpoints"] == "a:1,b:2"
    assert options["channels"] == "web,x-*"
    assert options["takeover"] == "true"
    assert options["leaseSeconds"] == "9.0"
    assert "minEventsPerTrigger" not in options
    following = source_options(config(source=source, run={"follow": True}))
    assert (following["minEventsPerTrigger"], following["maxTriggerDelay"]) == ("5", "900.0s")
    from millrace_spark.option_values import Security
    from millrace_spark.reading.options import parse_stream_options

    assert parse_stream_options(following).claim.reader_id == config().landing_name
    tls = {"ca": "ca.pem", "certificate": "c.pem", "private_key": "c.key"}
    over_tls = source_options(config(source=source | {"tls": tls, "token_file": "token"}))
    assert parse_stream_options(over_tls).claim.security == Security(tls=Tls(**tls), token_file="token")  # noqa: S106 - a path


def test_landing_name_is_the_readers_where_one_is_given() -> None:
    """Otherwise the name is derived from the target."""
    assert config(source={"reader_id": "nightly"}).landing_name == "nightly"
    assert config().landing_name.startswith("land-web-")


def figures(lag: int) -> dict[str, float]:
    """Returns the figures of a shard."""
    return {"lag": lag, "position": 1, "first": 1, "next": 1, "rate": 0.5, "reachable": 1}


@pytest.mark.parametrize(
    ("progress", "lag"),
    [
        (None, None),
        ({"sources": []}, None),
        ({"sources": [{"latestOffset": None}]}, None),
        ({"sources": [{"latestOffset": json.dumps({"web@a:1": figures(lag=3), "web@b:2": figures(lag=4)})}]}, 7),
        ({"sources": [{"latestOffset": {"web@a:1": figures(lag=0)}}]}, 0),
        ({"sources": [{"latestOffset": {"file": {"logOffset": 3}}}]}, None),
    ],
)
def test_lag_of_sums_all_shards(progress: Mapping[str, object] | None, lag: int | None) -> None:
    """The lag is None before the first progress."""
    assert lag_of(progress) == lag


def test_columns_of_formats_are_documented() -> None:
    """The documentation lists the columns of each format."""
    page = (ROOT / "docs" / "landing.md").read_text(encoding="utf-8")
    for name in ("access_log", "syslog"):
        columns = columns_of(config(parse={"type": name}).parse)
        assert columns is not None
        assert ", ".join(f"`{column}`" for column in columns) in page


def test_settings_on_the_page_are_all_that_there_are() -> None:
    """The documentation lists exactly the settings of each table."""
    page = (ROOT / "docs" / "landing.md").read_text(encoding="utf-8").partition("## All settings")[2]
    for section in page.split("### ")[1:]:
        table = section.partition("]`")[0].removeprefix("`[")
        shown = {line.split("`")[1] for line in section.splitlines() if line.startswith("| `")}
        if table == "parse":
            assert {"type", "pattern", "columns", "invalid_utf8"} <= shown
        else:
            model = LandingConfig.model_fields[table].annotation
            assert shown == set(getattr(model, "model_fields", {})), table
    assert page.count("### ") == len(LandingConfig.model_fields)


def test_options_of_flumes_hdfs_sink_are_all_on_the_page() -> None:
    """The documentation covers all options of Flume's HDFS sink."""
    page = (ROOT / "docs" / "landing.md").read_text(encoding="utf-8").partition("## From Flume")[2]
    options = (
        "path filePrefix fileSuffix inUsePrefix inUseSuffix emptyInUseSuffix rollInterval rollSize rollCount "
        "idleTimeout batchSize codeC fileType maxOpenFiles minBlockReplicas writeFormat threadsPoolSize "
        "rollTimerPoolSize kerberosPrincipal kerberosKeytab proxyUser round roundValue roundUnit timeZone "
        "useLocalTimeStamp closeTries retryInterval callTimeout"
    )
    assert [name for name in options.split() if f"`hdfs.{name}`" not in page] == []
    assert "`serializer`" in page


def test_folder_lock_held_refuses_a_second_program(tmp_path: Path) -> None:
    """The error names the process that holds the lock, which is released at the end."""
    work = WorkFolder(str(tmp_path / "work"))
    with folder_lock(work), pytest.raises(FolderBusyError, match=f"process {os.getpid()}; stop it"), folder_lock(work):
        pass
    with folder_lock(work):
        pass
    with folder_lock(WorkFolder("hdfs://n/work")):
        pass


def test_shutdown_signals_stop_once_and_are_restored() -> None:
    """The first signal requests a stop, and the former handlers are restored."""
    former = signal.getsignal(signal.SIGTERM)
    with ShutdownSignals() as signals:
        signal.raise_signal(signal.SIGTERM)
    assert signals.is_stopping.is_set()
    assert signals.exit_code == ExitCode.TERMINATED
    assert signal.getsignal(signal.SIGTERM) == former


def test_shutdown_signals_end_at_once_on_a_second_ctrl_c() -> None:
    """A second Ctrl-C prints one line and exits with the documented code."""
    program = (
        "import os, signal as s; from millrace_spark.landing.commands import ShutdownSignals; "
        "ShutdownSignals().install(); "
        # Like the start of Spark.
        "os.dup2(os.open(os.devnull, os.O_WRONLY), 2); "
        "s.raise_signal(s.SIGINT); print('asked', flush=True); s.raise_signal(s.SIGINT); print('went on')"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False, text=True)
    assert (finished.returncode, finished.stdout) == (ExitCode.INTERRUPTED, "asked\n")
    assert finished.stderr == (
        "millrace-spark: stopped immediately by Ctrl-C; nothing is lost, and the next run resumes from here\n"
    )


def test_land_interrupted_while_spark_starts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's own handler of Ctrl-C raises KeyboardInterrupt during its start."""
    monkeypatch.setattr(program, "land_channels", Mock(side_effect=KeyboardInterrupt))
    finished = CliRunner().invoke(app, ["land", "-e", "a:1", "-c", "web", "--to", "y"])
    assert finished.exit_code == ExitCode.INTERRUPTED
    assert finished.stderr == (
        "millrace-spark: stopped by Ctrl-C while Spark was starting; nothing is lost, and the next run resumes\n"
    )


def landed() -> LandingState:
    state = LandingState(phase="landing a batch", lag=12)
    state.totals.batches, state.totals.events, state.totals.rows = 2, 2_000, 1_990
    state.totals.bad_lines, state.totals.files, state.totals.files_bytes = 10, 6, 3 * 1024 * 1024
    state.totals.partitions, state.totals.decided_before, state.swaps_finished = 3, 1, 1
    state.compaction.files_before, state.compaction.files_after = 16, 2
    state.compaction.refusals = ("[bold]/x: no",)
    return state


def test_report_tells_what_was_landed() -> None:
    """The report for people and the one for scripts have the same counts."""
    written = StringIO()
    Console(file=written, width=120).print(report_table(landed(), config(), 4.0))
    for reported in (
        "/landed/web",
        "2,000 in 2 batches",
        "10 in /landed/web.bad",
        "6 in 3 folders, 3.0 MiB",
        "16 files into 2",
        "1 batch and 1 compaction that an earlier run had left unfinished",
        "12 events",
        "500 events/s",
        "[bold]/x: no",
    ):
        assert reported in written.getvalue()
    told_json = json.loads(json.dumps(report_json(landed(), config(), 4.0, "done")))
    assert (told_json["outcome"], told_json["events"], told_json["lag"]) == ("done", 2_000, 12)


def test_display_without_a_terminal_writes_lines() -> None:
    """A line is written only after a change, with the recent rate."""
    now = 0.0
    written = StringIO()
    with ProgressDisplay(Console(file=written, width=40), lambda: now) as display:
        state = LandingState(phase="landing a batch")
        display.show(state)
        for second in range(40):
            now = float(second)
            if second < 20:
                state.totals.events += 100
                state.totals.batches = 1
                state.totals.bad_lines = 1
            display.refresh()
    assert written.getvalue().splitlines() == [
        "landing a batch · 1 batch · 1,100 events · 100/s · 0 files · 1 bad line",
        "landing a batch · 1 batch · 2,000 events · 90/s · 0 files · 1 bad line",
        "landing a batch · 1 batch · 2,000 events · 0/s · 0 files · 1 bad line",
    ]
