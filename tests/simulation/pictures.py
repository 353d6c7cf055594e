"""Draws the pictures of `docs/scale.md` from simulations: `make docs PICTURES=1` runs it, in about a minute."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from tests.simulation.costs import Costs
from tests.simulation.scenario import Outcome, Sample, Scenario, simulate

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 300, 90, 40
_COLOURS = ("#2a7fd4", "#d9822b", "#3a9d5d")
# Legible on light and on dark pages: text in a mid grey, and no background.
_GREY = "#808890"


class Line(NamedTuple):
    name: str
    points: Sequence[tuple[float, float]]


def chart(title: str, across: str, lines: Sequence[Line]) -> str:
    """A line chart as SVG; both axes begin at 0."""
    x_max = max(x for line in lines for x, _ in line.points)
    y_max = max(1.0, *(y for line in lines for _, y in line.points))
    wide, high = _WIDTH - _LEFT - 20, _HEIGHT - _TOP - 60
    base = _TOP + high
    parts = [_text(_LEFT, 20, title), _text(_LEFT + wide / 2, _HEIGHT - 25, across, anchor="middle")]
    for tick in range(5):
        x, y = _LEFT + wide * tick / 4, base - high * tick / 4
        parts += [f'<path d="M{_LEFT} {y:.0f}h{wide}" stroke="{_GREY}" stroke-opacity=".3"/>']
        parts += [_text(_LEFT - 8, y + 4, f"{y_max * tick / 4:,.0f}", anchor="end")]
        parts += [_text(x, base + 16, f"{x_max * tick / 4:,.0f}", anchor="middle")]
    for number, (line, colour) in enumerate(zip(lines, _COLOURS, strict=False)):
        points = " ".join(f"{_LEFT + wide * x / x_max:.1f},{base - high * y / y_max:.1f}" for x, y in line.points)
        parts += [f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>']
        parts += [_text(_LEFT + number * 180, _HEIGHT - 6, line.name, colour)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif"'
    return "\n".join([f'{head} font-size="12" role="img" aria-label="{title}">', *parts, "</svg>\n"])


def _text(x: float, y: float, words: str, colour: str = _GREY, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}">{words}</text>'


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
    return chart("Events per second, offered 80 % of what the servers can carry", "servers", lines)


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
        chart("Events that wait at producers", "seconds", _lines(cases, costs, "unsettled")),
        chart("Events in the channels", "seconds", _lines(cases, costs, "queued")),
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
