"""Charts as SVG, legible on light and on dark pages: words in a mid grey, and no background."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT, _LEFT, _TOP = 640, 300, 90, 40
_COLOURS = ("#2a7fd4", "#d9822b", "#3a9d5d", "#b0479c")
_LEGEND_WIDTH = 135
_GREY = "#808890"
_BAR_LEFT, _BAR_HEIGHT, _BAR_STEP, _FIGURE_WIDTH = 270, 14, 26, 90


class Line(NamedTuple):
    """A line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]


class Bar(NamedTuple):
    """A bar of a chart: its value, between the least and the greatest one that were measured."""

    name: str
    value: float
    least: float
    greatest: float
    is_ours: bool = True


def line_chart(title: str, across: str, lines: Sequence[Line]) -> str:
    """A line chart; both axes begin at 0."""
    x_max = max(x for line in lines for x, _ in line.points)
    greatest = max(1.0, *(y for line in lines for _, y in line.points))
    y_step = _round_step(greatest)
    y_ticks = math.ceil(greatest / y_step)
    wide, high = _WIDTH - _LEFT - 20, _HEIGHT - _TOP - 60
    base = _TOP + high
    parts = [_text(_LEFT, 20, title), _text(_LEFT + wide / 2, _HEIGHT - 25, across, anchor="middle")]
    for tick in range(y_ticks + 1):
        y = base - high * tick / y_ticks
        parts += [f'<path d="M{_LEFT} {y:.0f}h{wide}" stroke="{_GREY}" stroke-opacity=".3"/>']
        parts += [_text(_LEFT - 8, y + 4, f"{y_step * tick:,.0f}", anchor="end")]
    for tick in range(5):
        parts += [_text(_LEFT + wide * tick / 4, base + 16, f"{x_max * tick / 4:,.0f}", anchor="middle")]
    for number, (line, colour) in enumerate(zip(lines, _COLOURS, strict=False)):
        places = ((_LEFT + wide * x / x_max, base - high * y / (y_step * y_ticks)) for x, y in line.points)
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts += [f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>']
        parts += [_text(_LEFT + number * _LEGEND_WIDTH, _HEIGHT - 6, line.name, colour)]
    return _picture(title, _HEIGHT, parts)


def _round_step(greatest: float) -> float:
    """Returns the distance of at most five ticks that reach the greatest value: 1, 2, 2.5 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(greatest / 5))
    return next(step for factor in (1, 2, 2.5, 5, 10) if (step := factor * power) >= greatest / 5)


def bar_chart(title: str, remark: str, bars: Sequence[Bar], digits: int = 0) -> str:
    """A chart of horizontal bars that begin at 0, with their spread, and a remark below them."""
    scale = (_WIDTH - _BAR_LEFT - _FIGURE_WIDTH) / max(bar.greatest for bar in bars)
    parts = [_text(10, 20, title)]
    for number, bar in enumerate(bars):
        parts += _bar(bar, 36 + number * _BAR_STEP, scale, digits)
    height = 36 + len(bars) * _BAR_STEP + 24
    return _picture(title, height, [*parts, _text(10, height - 8, remark)])


def _bar(bar: Bar, top: int, scale: float, digits: int) -> Iterator[str]:
    middle = top + _BAR_HEIGHT / 2
    least, greatest = _BAR_LEFT + scale * bar.least, _BAR_LEFT + scale * bar.greatest
    colour = _COLOURS[0] if bar.is_ours else _GREY
    yield _text(_BAR_LEFT - 10, middle + 4, bar.name, anchor="end")
    place = f'x="{_BAR_LEFT}" y="{top}" width="{max(1.0, scale * bar.value):.1f}" height="{_BAR_HEIGHT}"'
    yield f'<rect {place} fill="{colour}"/>'
    yield f'<path d="M{least:.1f} {middle}H{greatest:.1f}" stroke="{_COLOURS[1]}" stroke-width="2"/>'
    yield _text(max(greatest, _BAR_LEFT + scale * bar.value) + 8, middle + 4, f"{bar.value:,.{digits}f}")


def _picture(title: str, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif"'
    return "\n".join([f'{head} font-size="12" role="img" aria-label="{escape(title)}">', *parts, "</svg>\n"])


def _text(x: float, y: float, words: str, colour: str = _GREY, anchor: str = "start") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" text-anchor="{anchor}">{escape(words)}</text>'
