"""The results of a run, as a table and as JSON for comparisons."""

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from google import protobuf
from rich.console import Console
from rich.table import Table

from tests.bench.findings import Section
from tests.bench.measuring import Figures, Scenario, share_of_target
from tests.bench.scenarios.memory import SHARE_MAX, MemoryFigures

EXPLANATION = """\
Batches have 1,000 events unless it says otherwise, each with a body of 512 bytes and two headers. Server and client
are two processes on loopback. Rates are medians. A share is the median of each round's share: in a round all have their
turn. File channels sync each commit before they respond to it.
[b]bare echo[/b] is a grpc.aio server that sends back the very bytes that came. [b]bare sink[/b] and [b]bare source[/b]
carry them only the way that Millrace does, and swallow or invent them: a harder yardstick, since they store nothing.
[b]bare loop[/b] has no RPC: it takes the checksum of the same bytes, writes them and syncs them, one batch after the
other, into space that it sets aside ahead of the writing as the log does, or into a file that grows. [b]bare log[/b] is
both, a grpc.aio server that responds to what is on the disk, with one sync for all calls that wait, and does nothing
else. [b]bare parsing log[/b] also parses each request with protobuf and responds to it with a message.
[b]log alone[/b] is Millrace's own log behind grpc.aio: requests are parsed, checked and written as they are with a
channel, and there is none. These are what could be reached.
[b]CPU us[/b] is the server's processor time for one batch, or call.
"""


@dataclass
class Report:
    """All results of a run."""

    rounds: int
    results: list[tuple[Scenario, dict[str, Figures]]] = field(default_factory=list)
    memory: MemoryFigures | None = None
    surveys: dict[str, tuple[str, list[Section]]] = field(default_factory=dict)
    """The title and the findings of each, by name."""

    def show(self, console: Console) -> None:
        """Prints the tables."""
        if self.results:
            console.print(self._rates())
        if self.memory is not None:
            console.print(
                f"Memory: {self.memory.body_bytes:,} bytes of bodies in {self.memory.resident_bytes:,} bytes, "
                f"{self.memory.share:.2f} times (at most {SHARE_MAX})."
            )
        for title, sections in self.surveys.values():
            console.print(_table(title, sections))
        console.print(EXPLANATION)

    def _rates(self) -> Table:
        table = Table(title=f"Millrace beside bare gRPC and bare disk, medians of {self.rounds}", title_justify="left")
        table.add_column("")
        for heading in ("events/s", "of echo", "of one way", "CPU us"):
            table.add_column(heading, justify="right")
        table.add_column("target")
        notes: list[str] = []
        for scenario, figures in self.results:
            table.add_section()
            table.add_row(f"[b]{scenario.title}[/b]")
            for name, measured in figures.items():
                is_ours = any(name == contender.name for contender in scenario.ours)
                is_log = any(name == log.name for log in scenario.logs)
                table.add_row(
                    f"  {name}",
                    f"{measured.rate:,.0f}",
                    f"{measured.share_of(figures[scenario.echo.name]):.2f}" if is_ours or is_log else "",
                    f"{measured.share_of(figures[scenario.one_way.name]):.2f}" if is_ours and scenario.one_way else "",
                    f"{measured.cost:,.0f}",
                    _verdict(scenario, figures, name) if name == scenario.ours[0].name or is_log else "",
                )
            for what, value in scenario.remarks().items():
                table.add_row(f"    {what}", f"{value:,.0f}")
            notes += [f"{words}." for words in scenario.notes]
        table.caption = "\n".join(notes) or None
        table.caption_justify = "left"
        return table

    def save(self, path: Path) -> None:
        """Writes the results as JSON."""
        path.write_text(json.dumps(self._plain(), indent=2) + "\n", encoding="utf-8")

    def _plain(self) -> dict[str, Any]:
        return {
            "machine": _machine(),
            "versions": {"grpcio": grpc.__version__, "protobuf": protobuf.__version__},
            "rounds": self.rounds,
            "scenarios": {scenario.name: _plain_scenario(scenario, figures) for scenario, figures in self.results},
            "memory": None
            if self.memory is None
            else {"body_bytes": self.memory.body_bytes, "resident_bytes": self.memory.resident_bytes},
            **{name: [asdict(section) for section in sections] for name, (_, sections) in self.surveys.items()},
        }


def _machine() -> dict[str, Any]:
    described = Path("/proc/cpuinfo")
    models = re.findall(r"^model name\s*: (.+)$", described.read_text(), re.MULTILINE) if described.exists() else []
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        # Above the number of cores, other programs had their share of them.
        "load": round(os.getloadavg()[0], 1),
    }


def _plain_scenario(scenario: Scenario, figures: Mapping[str, Figures]) -> dict[str, Any]:
    echo, one_way = figures[scenario.echo.name], scenario.one_way
    return {
        "title": scenario.title,
        "target": None
        if scenario.target is None
        else {
            "of": scenario.target.words,
            "least": scenario.target.least,
            "reached": share_of_target(scenario.target, scenario.ours[0].name, figures),
        },
        "contenders": {
            name: {
                "events_per_second": measured.rate,
                "of_echo": measured.share_of(echo),
                "of_one_way": measured.share_of(figures[one_way.name]) if one_way else None,
                "server_cpu_microseconds": measured.cost,
                "rounds_events_per_second": measured.events_per_second,
            }
            for name, measured in figures.items()
        },
        "remarks": dict(scenario.remarks()),
        "notes": list(scenario.notes),
    }


def _verdict(scenario: Scenario, figures: Mapping[str, Figures], name: str) -> str:
    target = scenario.target
    if target is None:
        return ""
    share = share_of_target(target, name, figures)
    if name != scenario.ours[0].name:
        return f"{share:.2f} of {target.words}"
    words = f"{share:.2f} of {target.words}, {target.least:.2f}"
    return _coloured(words, is_reached=share >= target.least)


def _table(title: str, sections: Sequence[Section]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    table.add_column("measured", justify="right")
    table.add_column("target")
    for section in sections:
        table.add_section()
        table.add_row(f"[b]{section.title}[/b]")
        for line in section.lines:
            verdict = _coloured(line.target, is_reached=line.is_reached) if line.target else ""
            table.add_row(f"  {line.what}", line.shown, verdict)
    return table


def _coloured(words: str, *, is_reached: bool) -> str:
    return f"[green]{words} reached[/green]" if is_reached else f"[red]{words} missed[/red]"
