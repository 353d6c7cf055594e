import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = Path(__file__).resolve().parents[1] / "bench" / "run.py"


def _bench(scratch: Path, *names: str, seconds_max: float = 250.0) -> tuple[str, dict[str, Any]]:
    """The output of a quick run, and its saved results."""
    saved = scratch / "bench.json"
    result = subprocess.run(
        [sys.executable, RUN, "--quick", "--only", *names, "--json", saved, "--dir", scratch],
        capture_output=True,
        check=False,
        encoding="utf-8",
        timeout=seconds_max,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout, json.loads(saved.read_text())


@pytest.mark.torture
def test_bench_of_a_quick_run_reports_and_saves(tmp_path: Path) -> None:
    """A quick run shows a table, and saves the same as JSON."""
    shown, report = _bench(tmp_path, "small_calls")
    assert "Append, batches of 1, 32 callers" in shown
    contenders = report["scenarios"]["small_calls"]["contenders"]
    assert set(contenders) == {"Append, columns", "Append, rows", "bare echo", "bare sink"}
    assert all(measured["events_per_second"] > 0 for measured in contenders.values())
    assert contenders["bare echo"]["of_echo"] == 1


def test_bench_of_file_channels_measures_beside_bare_loops(tmp_path: Path) -> None:
    """A scenario of a file channel is also compared with the disk, and shows the ratio to its target."""
    shown, report = _bench(tmp_path, "file_lone_call")
    assert "of echo then loop" in shown
    scenario = report["scenarios"]["file_lone_call"]
    assert set(scenario["contenders"]) == {
        "Append",
        "bare echo",
        "bare log",
        "log alone",
        "bare loop",
        "bare loop, growing",
    }
    assert scenario["target"]["reached"] > 0
    assert list(tmp_path.iterdir()) == [tmp_path / "bench.json"]


@pytest.mark.torture
def test_bench_against_another_checkout_reports_the_ratio_of_each_scenario(tmp_path: Path) -> None:
    """Each result is given as a ratio to that of the other checkout's server, beside that server's ratio to itself."""
    saved = tmp_path / "ratios.json"
    checkout = tmp_path / "other"
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (checkout / ".venv" / "bin" / "python").chmod(0o755)
    scratch = tmp_path / "scratch"
    arguments = ("--quick", "--only", "file_lone_call", "--against", checkout, "--json", saved, "--dir", scratch)
    done = subprocess.run([sys.executable, RUN, *arguments], capture_output=True, check=True, timeout=100, text=True)
    assert "base to itself" in done.stdout
    assert set(json.loads(saved.read_text())) == {"file_lone_call: Append"}


@pytest.mark.torture
def test_bench_of_restarts_reports_how_soon_a_channel_is_open(tmp_path: Path) -> None:
    """The results contain memory and opening times after a checkpoint, with queued events, and of the whole log."""
    shown, report = _bench(tmp_path, "file_restart")
    assert "after SIGKILL, by what came after the checkpoint" in shown
    sections = report["file_restart"]
    assert [len(section["lines"]) for section in sections] == [5, 2, 2, 6]
    assert all(line["value"] > 0 for section in sections[1:] for line in section["lines"])


@pytest.mark.torture
def test_bench_of_kafka_reports_the_shares_of_bare_loops(tmp_path: Path) -> None:
    """Source and sink are measured beside bare loops of the same client library."""
    shown, report = _bench(tmp_path, "kafka")
    assert "share of the bare loop's rate" in shown
    assert [len(section["lines"]) for section in report["kafka"]] == [3, 3]
    assert all(line["value"] > 0 for section in report["kafka"] for line in section["lines"])


@pytest.mark.torture
def test_bench_of_taildir_reports_how_fast_lines_are_read(tmp_path: Path) -> None:
    """Memory and file channels are measured, and the cost of the source once everything is read."""
    shown, report = _bench(tmp_path, "taildir")
    assert "taildir: lines of 200 bytes into a file channel" in shown
    assert [len(section["lines"]) for section in report["taildir"]] == [4, 4]
    assert all(section["lines"][0]["value"] > 0 for section in report["taildir"])


@pytest.mark.torture
def test_bench_of_takeovers_reports_how_soon_the_next_owner_serves(tmp_path: Path) -> None:
    """With large and with small batches, for an owner that died and for one that left."""
    shown, report = _bench(tmp_path, "takeovers")
    assert "its owner died, beside the lease" in shown
    [section] = report["takeovers"]
    assert len(section["lines"]) == 4


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_bench_of_spark_reports_batches_and_streams(tmp_path: Path) -> None:
    """Each is compared with Spark's own sources or with a source without servers, and with its target."""
    shown, report = _bench(tmp_path, "spark", seconds_max=800.0)
    assert "the same rows natively from Parquet" in shown
    assert [len(section["lines"]) for section in report["spark"]] == [5, 3, 3, 1, 3]
    assert all(line["value"] > 0 for section in report["spark"] for line in section["lines"])


@pytest.mark.torture
def test_bench_without_peers_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer and its cost for a program are measured all the same."""
    monkeypatch.setenv("PATH", str(tmp_path))
    shown, report = _bench(tmp_path, "file_peers", "producer_costs")
    assert "JetStream is left out: the program nats-server is not installed." in shown
    scenario = report["scenarios"]["file_peers"]
    assert set(scenario["contenders"]) == {"Producer", "Producer, send_many", "bare echo"}
    assert scenario["target"] is None
    assert [len(section["lines"]) for section in report["producer_costs"]] == [2, 5]
    assert all(line["value"] > 0 for section in report["producer_costs"] for line in section["lines"])


@pytest.mark.torture
def test_bench_of_starts_measures_beside_mere_imports(tmp_path: Path) -> None:
    """Each program is a share of an interpreter that imports what the program needs of others."""
    shown, report = _bench(tmp_path, "starts")
    assert "Starts of the programs" in shown
    medians, shares = report["starts"]
    assert [line["what"] for line in shares["lines"]] == [
        "millraced serve, of server's modules",
        "millrace channels, of command's modules",
        "millrace --help, of command's modules",
    ]
    assert all(line["value"] > 0 for line in (*medians["lines"], *shares["lines"]))
