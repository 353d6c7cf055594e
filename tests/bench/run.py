"""Measures Millrace beside a bare gRPC server: `make bench`, or `python tests/bench/run.py --help`."""

import argparse
import asyncio
import sys
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

# Run as a script: the repository's folder is where `tests` is found.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measuring import ROUNDS, measure
from tests.bench.report import Report
from tests.bench.scenarios.append import append_scenario
from tests.bench.scenarios.append_in_rows import append_in_rows_scenario
from tests.bench.scenarios.append_stream import append_stream_scenario
from tests.bench.scenarios.consume import consume_scenario
from tests.bench.scenarios.memory import measure_memory
from tests.bench.scenarios.small_calls import small_calls_scenario
from tests.bench.scenarios.take import take_in_rows_scenario, take_scenario
from tests.bench.world import running_world

SCENARIOS = {
    "append": append_scenario,
    "append_stream": append_stream_scenario,
    "take": take_scenario,
    "consume": consume_scenario,
    "small_calls": small_calls_scenario,
    "append_rows": append_in_rows_scenario,
    "take_rows": take_in_rows_scenario,
}
_QUICK_SCALE = 0.25
_QUICK_ROUNDS = 3
_WIDTH = 120


def main() -> None:
    """Runs the scenarios and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: for a first impression")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to FILE")
    parser.add_argument(
        "--only", nargs="+", choices=[*SCENARIOS, "memory"], metavar="NAME", help="only these scenarios"
    )
    arguments = parser.parse_args()
    # Where it is not shown on a terminal, nothing is to be wrapped.
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    names = arguments.only or [*SCENARIOS, "memory"]
    report = asyncio.run(_run(names, console, is_quick=arguments.quick))
    report.show(console)
    if arguments.json is not None:
        report.save(arguments.json)


async def _run(names: list[str], console: Console, *, is_quick: bool) -> Report:
    rounds, scale = (_QUICK_ROUNDS, _QUICK_SCALE) if is_quick else (ROUNDS, 1.0)
    report = Report(rounds)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        async with running_world() as world:
            for name in names:
                if name == "memory":
                    report.memory = await measure_memory(world)
                    continue
                scenario = SCENARIOS[name](world)
                shown = progress.add_task(scenario.title, total=rounds)
                figures = await measure(scenario, rounds, scale, partial(progress.advance, shown))
                report.results.append((scenario, figures))
    return report


if __name__ == "__main__":
    main()
