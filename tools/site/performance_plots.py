"""Draws the plots of `docs/performance.md` from a report of `make bench`, with its machine and date.

`make docs` runs it. `python tests/bench/run.py --json docs/data/bench.json` makes the report.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.site.charts import Bar, bar_chart

DOCS = Path(__file__).resolve().parents[2] / "docs"
REPORT = DOCS / "data" / "bench.json"
_MILLISECONDS = 1000.0


class Figure(NamedTuple):
    """A contender of a scenario, and its name in a plot."""

    scenario: str
    contender: str
    name: str


THROUGHPUT = (
    Figure("file_append_stream", "AppendStream", "AppendStream, batches of 1,000"),
    Figure("file_producer", "Producer, send_many", "Producer, send_many"),
    Figure("file_append", "Append", "Append, batches of 1,000, 4 callers"),
    Figure("file_append_100", "Append", "Append, batches of 100, 8 callers"),
    Figure("file_consume", "Consume", "Consume, batches of 1,000"),
    Figure("file_take", "BeginTxn, Take, Commit", "BeginTxn, Take, Commit"),
    Figure("file_consumer", "Consumer, bodies", "Consumer in Python, bodies"),
)
LATENCY = (
    Figure("file_lone_call", "Append", "Append of one event, stored"),
    Figure("file_lone_call", "bare echo", "bare gRPC, stored nowhere"),
    Figure("file_lone_call", "bare loop", "write and sync alone, no gRPC"),
)


def machine_of(report: dict[str, Any]) -> str:
    """Where and when a report was made, in one line."""
    machine = report["machine"]
    words = f"{machine['date']}, {machine['processor']}, {machine['cores']} cores, Python {machine['python']}"
    # Server and client load a core each.
    busy = f"; busy, load {machine['load']}" if machine["load"] > 2 * machine["cores"] else ""
    return f"{words}, medians of {report['rounds']}{busy}"


def plots(report: dict[str, Any]) -> dict[str, str]:
    """All plots, by their names."""
    remark = machine_of(report)
    peers = [
        Figure("file_peers", name, name)
        for name in report["scenarios"]["file_peers"]["contenders"]
        if name != "bare echo"
    ]
    return {
        "throughput": bar_chart("Events per second, file channel, 512 bytes each", remark, _rates(report, THROUGHPUT)),
        "latency": bar_chart("Milliseconds of one call, one caller", remark, _latencies(report), digits=1),
        "peers": bar_chart(
            "Events per second from one process, synced before the response", remark, _rates(report, peers)
        ),
    }


def _rates(report: dict[str, Any], figures: Sequence[Figure]) -> list[Bar]:
    return [
        _bar(report, figure, lambda rate: rate, is_ours="Producer" in figure.name or figure.scenario != "file_peers")
        for figure in figures
    ]


def _latencies(report: dict[str, Any]) -> list[Bar]:
    return [
        _bar(report, figure, lambda rate: _MILLISECONDS / rate, is_ours=figure.contender == "Append")
        for figure in LATENCY
    ]


def _bar(report: dict[str, Any], figure: Figure, convert: Callable[[float], float], *, is_ours: bool) -> Bar:
    measured = report["scenarios"][figure.scenario]["contenders"][figure.contender]
    rounds = list(map(convert, measured["rounds_events_per_second"]))
    return Bar(figure.name, convert(measured["events_per_second"]), min(rounds), max(rounds), is_ours)


def main() -> None:
    """Writes all plots."""
    for name, picture in plots(json.loads(REPORT.read_text(encoding="utf-8"))).items():
        (DOCS / "images" / f"performance-{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
