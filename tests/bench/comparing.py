"""Compares this checkout's server with that of another checkout, both running at the same time.

A second server of the other checkout shows what the machine can tell: its ratio to the first would be 1 without noise.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.bench.measuring import Figures, Scenario, measure
from tests.bench.world import World, server_of

_BASE = "{}, base"
_BASE_AGAIN = "{}, base again"

MakeScenario = Callable[[World], Scenario]
Results = dict[str, tuple[Scenario, dict[str, Figures]]]


class Plan(NamedTuple):
    """The duration of the measurements."""

    rounds: int = 11
    """More than with bare servers, since differences of a hundredth count."""
    scale: float = 1.0
    """The share of the scenario's operations in each round."""


def python_of(checkout: Path) -> str:
    """Returns the interpreter of a checkout in which `make setup` has run.

    Raises:
        SystemExit: There is none.
    """
    python = checkout / ".venv" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python} does not exist: run `make setup` in {checkout} first")
    return str(python)


async def compare(
    world: World, python: str, scenarios: Mapping[str, MakeScenario], plan: Plan, on_scenario: Callable[[str], None]
) -> Results:
    """Measures each scenario with all three servers in alternation.

    Args:
        world: This checkout's server and the bare ones.
        python: The other checkout's interpreter.
        scenarios: What to measure, by name.
        plan: How long.
        on_scenario: Called before each scenario with its title.
    """
    results: Results = {}
    async with server_of(world, python) as base_world, server_of(world, python) as again:
        for name, make in scenarios.items():
            bases = {_BASE: make(base_world), _BASE_AGAIN: make(again)}
            scenario = _with_bases(make(world), bases)
            on_scenario(scenario.title)
            results[name] = (scenario, await measure(scenario, plan.rounds, plan.scale, lambda: None))
    return results


def _with_bases(ours: Scenario, bases: Mapping[str, Scenario]) -> Scenario:
    """Removes the other contenders, so that the turns of the servers are close in time."""
    renamed = [
        replace(contender, name=name.format(contender.name)) for name, base in bases.items() for contender in base.ours
    ]
    return replace(ours, ours=[*ours.ours, *renamed], one_way=None, logs=(), loops=(), peers=(), target=None)


def ratios(results: Results) -> dict[str, float]:
    """Returns each rate as a ratio to the other checkout's: the median over the rounds."""
    shares = {}
    for name, (scenario, figures) in results.items():
        for contender in scenario.ours:
            if (base := figures.get(_BASE.format(contender.name))) is not None:
                shares[f"{name}: {contender.name}"] = figures[contender.name].share_of(base)
    return shares


def show(results: Results, console: Console) -> None:
    """Prints the table."""
    table = Table(title="This checkout beside the other, medians", title_justify="left")
    table.add_column("")
    for heading in ("events/s", "base events/s", "ratio", "base to itself", "CPU us", "base CPU us"):
        table.add_column(heading, justify="right")
    for title, ratio in ratios(results).items():
        name, _, contender = title.partition(": ")
        scenario, figures = results[name]
        ours, base = figures[contender], figures[_BASE.format(contender)]
        limit = figures[_BASE_AGAIN.format(contender)].share_of(base)
        rates = (f"{ours.rate:,.0f}", f"{base.rate:,.0f}", f"{ratio:.3f}", f"{limit:.3f}")
        table.add_row(f"{scenario.title}: {contender}", *rates, f"{ours.cost:.0f}", f"{base.cost:.0f}")
    console.print(table)


def document(results: Results) -> dict[str, float]:
    """Returns the ratios as JSON-ready figures."""
    return {title: round(ratio, 4) for title, ratio in ratios(results).items()}


def chosen(names: Sequence[str], scenarios: Mapping[str, MakeScenario]) -> dict[str, MakeScenario]:
    """Returns the scenarios that run on a world's server."""
    return {name: scenarios[name] for name in names if name in scenarios}
