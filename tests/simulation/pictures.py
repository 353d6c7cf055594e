"""Draws the pictures of `docs/scale.md` from simulations: `make docs PICTURES=1` runs it, in some minutes."""

from dataclasses import replace
from pathlib import Path

from tests.simulation.costs import Costs
from tests.simulation.scenario import Outcome, Sample, Scenario, simulate
from tools.site.charts import Line, line_chart

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
_REPLICATED_EACH = 4


def throughput(costs: Costs) -> str:
    """What 3 to 200 servers acknowledge when offered more than they can carry, without and with a hot key."""
    lines = []
    capacity = 1 / (costs.append_seconds + costs.stall_seconds + costs.consume_seconds)
    for name, hot_share in (("even load", 0.0), ("a tenth on one hot key", 0.1)):
        points = [(0.0, 0.0)]
        for count in (3, 10, 30, 60, 100, 200):
            load = Scenario(servers=count, seconds=1.0, batches_per_second=0.8 * count * capacity, hot_share=hot_share)
            stored = simulate(load, costs).account.acknowledged
            points.append((count, stored * costs.batch_events / load.seconds))
            print(f"{name}: {count} servers, {points[-1][1]:,.0f} events/s")  # noqa: T201 - figures for the page
        lines.append(Line(name, points))
    return line_chart("Events per second, offered 80% of what the servers can carry", "servers", lines)


def troubles(costs: Costs) -> tuple[str, str]:
    """Ten servers at half load: a rolling restart, and a machine lost for 20 seconds, for both types of channel."""
    half = 0.5 * 10 / (costs.replicated_seconds + costs.stall_seconds + costs.consume_seconds)
    calm = Scenario(servers=10, seconds=40.0, batches_per_second=half)
    cases = {}
    for suffix, each in (("", 0), (", replicated", _REPLICATED_EACH)):
        kind = replace(calm, replicated_each=each)
        cases[f"restarts{suffix}"] = simulate(replace(kind, restart_every_seconds=1.0), costs)
        cases[f"loss{suffix}"] = simulate(replace(kind, lost_servers=1), costs)
    for name, outcome in cases.items():
        _report(name, outcome)
    return (
        line_chart("Events that wait at producers", "seconds", _lines(cases, costs, "unsettled")),
        line_chart("Events in the channels", "seconds", _lines(cases, costs, "queued")),
    )


def owners(costs: Costs) -> None:
    """Prints what becomes of replicated channels of 3 to 200 servers, by a restart of all and by losses.

    Their load is light, since nothing here depends on it.
    """
    for count in (3, 20, 200):
        calm = Scenario(servers=count, seconds=40.0, batches_per_second=1_000.0, replicated_each=_REPLICATED_EACH)
        hot = replace(calm, hot_share=0.1)
        lost = max(1, count // 10)
        _report(f"{count} servers restart in 20 s", simulate(replace(hot, restart_every_seconds=20 / count), costs))
        _report(f"{lost} of {count} servers lost", simulate(replace(hot, lost_servers=lost), costs))


def _report(name: str, outcome: Outcome) -> None:
    account = outcome.account
    late = account.late / account.acknowledged
    unserved = [sample.unserved for sample in outcome.samples]
    print(  # noqa: T201 - figures for the page
        f"{name}: longest {account.longest_seconds:.1f} s, late {late:.2%}, {outcome.unsettled} unsettled, "
        f"{account.withheld} withheld, {account.repeats} repeats; up to {max(unserved)} channels without a server"
    )


def _lines(cases: dict[str, Outcome], costs: Costs, figure: str) -> list[Line]:
    def events(sample: Sample) -> float:
        return float(getattr(sample, figure) * costs.batch_events)

    return [Line(name, [(one.second, events(one)) for one in found.samples]) for name, found in cases.items()]


def main() -> None:
    """Writes all pictures."""
    costs = Costs.measured()
    owners(costs)
    waiting, queued = troubles(costs)
    pictures = {"throughput": throughput(costs), "waiting": waiting, "queued": queued}
    for name, picture in pictures.items():
        (IMAGES / f"scale-{name}.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
