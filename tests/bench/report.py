"""What a run has found, as a table for people and as JSON for comparisons."""

import json
import platform
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google import protobuf
from rich.console import Console
from rich.table import Table

from tests.bench.measuring import Figures, Scenario
from tests.bench.scenarios.memory import SHARE_MAX, MemoryFigures

EXPLANATION = """\
Batches have 1,000 events, each with a body of 512 bytes and two headers. Server and client are two processes on
loopback. Rates are medians. A share is the median of each round's share: in a round all have their turn.
[b]bare echo[/b] is a grpc.aio server that sends back the very bytes that came. [b]bare sink[/b] and [b]bare source[/b]
carry them only the way that Millrace does, and swallow or invent them: a harder yardstick, since they store nothing.
[b]CPU us[/b] is the server's processor time for one batch, or call.
"""


@dataclass
class Report:
    """All results of a run."""

    rounds: int
    results: list[tuple[Scenario, dict[str, Figures]]] = field(default_factory=list)
    memory: MemoryFigures | None = None

    def show(self, console: Console) -> None:
        """Prints the table."""
        table = Table(title=f"Millrace beside bare gRPC, medians of {self.rounds}", title_justify="left")
        table.add_column("")
        for heading in ("events/s", "of echo", "of one way", "CPU us"):
            table.add_column(heading, justify="right")
        table.add_column("target")
        for scenario, figures in self.results:
            table.add_section()
            table.add_row(f"[b]{scenario.title}[/b]")
            for name, measured in figures.items():
                is_ours = any(name == contender.name for contender in scenario.ours)
                share = measured.share_of(figures[scenario.echo.name])
                one_way_share = measured.share_of(figures[scenario.one_way.name])
                table.add_row(
                    f"  {name}",
                    f"{measured.rate:,.0f}",
                    f"{share:.2f}" if is_ours else "",
                    f"{one_way_share:.2f}" if is_ours else "",
                    f"{measured.cost:,.0f}",
                    _verdict(share, scenario.target) if name == scenario.ours[0].name else "",
                )
        console.print(table)
        if self.memory is not None:
            console.print(
                f"Memory: {self.memory.body_bytes:,} bytes of bodies in {self.memory.resident_bytes:,} bytes, "
                f"{self.memory.share:.2f} times (at most {SHARE_MAX})."
            )
        console.print(EXPLANATION)

    def save(self, path: Path) -> None:
        """Writes the results as JSON."""
        path.write_text(json.dumps(self._plain(), indent=2) + "\n", encoding="utf-8")

    def _plain(self) -> dict[str, Any]:
        return {
            "machine": {"processor": platform.machine(), "python": platform.python_version()},
            "versions": {"grpcio": grpc.__version__, "protobuf": protobuf.__version__},
            "rounds": self.rounds,
            "scenarios": {scenario.name: _plain_scenario(scenario, figures) for scenario, figures in self.results},
            "memory": None
            if self.memory is None
            else {"body_bytes": self.memory.body_bytes, "resident_bytes": self.memory.resident_bytes},
        }


def _plain_scenario(scenario: Scenario, figures: dict[str, Figures]) -> dict[str, Any]:
    echo, one_way = figures[scenario.echo.name], figures[scenario.one_way.name]
    return {
        "title": scenario.title,
        "target_of_echo": scenario.target,
        "contenders": {
            name: {
                "events_per_second": measured.rate,
                "of_echo": measured.share_of(echo),
                "of_one_way": measured.share_of(one_way),
                "server_cpu_microseconds": measured.cost,
                "rounds_events_per_second": measured.events_per_second,
            }
            for name, measured in figures.items()
        },
    }


def _verdict(share: float, target: float | None) -> str:
    if target is None:
        return ""
    return f"[green]{target} reached[/green]" if share >= target else f"[red]{target} missed[/red]"
