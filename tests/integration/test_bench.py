import json
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).resolve().parents[1] / "bench" / "run.py"


def test_bench_in_a_hurry_reports_and_saves(tmp_path: Path) -> None:
    """The benchmark still runs: it shows a table, and writes the same as JSON."""
    saved = tmp_path / "bench.json"
    result = subprocess.run(
        [sys.executable, RUN, "--quick", "--only", "small_calls", "--json", saved],
        capture_output=True,
        check=True,
        encoding="utf-8",
        timeout=100,
    )
    assert "Append, batches of 1, 32 callers" in result.stdout
    report = json.loads(saved.read_text())
    contenders = report["scenarios"]["small_calls"]["contenders"]
    assert set(contenders) == {"Append, columns", "Append, rows", "bare echo", "bare sink"}
    assert all(measured["events_per_second"] > 0 for measured in contenders.values())
    assert contenders["bare echo"]["of_echo"] == 1
