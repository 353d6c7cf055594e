"""Draws the pictures of `docs/scale.md` from simulations: `make docs PICTURES=1` runs it, in about a minute."""

from dataclasses import replace
from pathlib import Path

from tests.simulation.costs import Costs
from tests.simulation.scenario import Outcome, Sample, Scenario, simulate
from tools.site.charts import Line, line_chart

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


def throughput(costs: Costs) -> str:
    """What 3 to 200 servers acknowledge when offered more than they can carry, without and with a hot key."""
    lines = []
    capacity = 1 / (costs.append_seconds + costs.consume_seconds)
    for name, hot_share in (("even load", 0.0), ("a tenth on one hot key", 0.1)):
        points = [(0.0, 0.0)]
        for count in (3, 10, 30, 60, 100, 200):
            load = Scenario(servers=count, seconds=2.0, batches_per_second=0.8 * count * capacity, hot_share=hot_share)
            stored = simulate(load, costs).account.acknowledged
            points.append((count, stored * costs.batch_events / load.seconds))
            print(f"{name}: {count} servers, {points[-1][1]:,.0f} events/s")  # noqa: T201 - figures for the page
        lines.append(Line(name, points))
    return line_chart("Events per second, offered 80 % of what the servers can carry", "servers", lines)


def troubles(costs: Costs) -> tuple[str, str]:
    """Twenty servers at half load: a rolling restart, and two machines lost for 20 seconds."""
    half = 0.5 * 20 / (costs.append_seconds + costs.consume_seconds)
    calm = Scenario(servers=20, seconds=40.0, batches_per_second=half)
    cases = {
        "rolling restart": simulate(replace(calm, restart_every_seconds=1.0), costs),
        "two machines lost": simulate(replace(calm, lost_servers=2), costs),
    }
    for name, outcome in cases.items():
        account = outcome.account
        late = account.late / account.acknowledged
        print(f"{name}: longest {account.longest_seconds:.1f} s, late {late:.2%}, {outcome.unsettled} unsettled")  # noqa: T201 - figures for the page
    return (
        line_chart("Events that wait at producers", "seconds", _lines(cases, costs, "unsettled")),
        line_chart("Events in the channels", "seconds", _lines(cases, costs, "queued")),
    )


def _lines(cases: dict[str, Outcome], costs: Costs, figure: str) -> list[Line]:
    def events(sample: Sample) -> float:
        return float(getattr(sample, figure) * costs.batch_events)

    return [Line(name, [(one.second, events(one)) for one in found.samples]) for name, found in cases.items()]


def main() -> None:
    """Writes all pictures."""
    costs = Costs.measured()
    waiting, queued = troubles(costs)
    pictures = {"throughput": throughput(costs), "waiting": waiting, "queued": queued}
    for name, picture in pictures.items():
        (IMAGES / f"scale-{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
