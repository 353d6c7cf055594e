"""The pictures that tools draw: the committed ones are up to date, and terminals show what programs left."""

import json
from xml.etree import ElementTree as ET

import pytest

from tests.unit.repository.checkout import ROOT
from tools.site import diagrams, performance_plots
from tools.site.charts import Bar, Line, bar_chart, line_chart
from tools.site.terminals import picture, screen_of

IMAGES = ROOT / "docs" / "images"


def test_diagrams_committed_are_those_of_the_tool() -> None:
    """A change of a diagram comes with both of its pictures: `make docs`."""
    for name, diagram in diagrams.DIAGRAMS.items():
        for scheme, palette in diagrams.SCHEMES.items():
            assert (IMAGES / f"{name}-{scheme}.svg").read_text() == diagrams.drawn(diagram, palette), (name, scheme)


def test_plots_committed_are_those_of_the_report() -> None:
    """A new report comes with its plots, which name its machine and its date."""
    report = json.loads(performance_plots.REPORT.read_text())
    plots = performance_plots.plots(report)
    assert len(plots) == 3
    for name, plot in plots.items():
        assert (IMAGES / f"performance-{name}.svg").read_text() == plot, name
        assert report["machine"]["date"] in plot
        assert report["machine"]["processor"] in plot


def test_pictures_are_xml_and_load_nothing() -> None:
    """Each is well-formed, and shows without a network."""
    found = list(IMAGES.glob("*.svg"))
    assert len(found) > 10
    for path in found:
        _parsed(path.read_text())
        assert "url(http" not in path.read_text(), path.name


def test_line_chart_has_round_figures_at_its_axis() -> None:
    """A reader compares lines with the axis, whatever the greatest value is."""
    drawn = line_chart("title", "servers", [Line("load", [(0, 0), (200, 20_148_700)])])
    assert [f"{million},000,000<" in drawn for million in (5, 10, 15, 20, 25, 30)] == [True] * 5 + [False]


def test_bar_chart_escapes_names_and_shows_values() -> None:
    """Names may hold what XML reserves."""
    drawn = bar_chart("a < b", "a remark", [Bar("x & y", 12_345.0, 10_000.0, 20_000.0)])
    words = [one.text for one in _parsed(drawn) if one.text and one.text.strip()]
    assert words == ["a < b", "x & y", "12,345", "a remark"]


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("a\r\nb\r\n", "a\nb"),
        ("1 %\r\n2 %\r\n\x1b[1A\x1b[2K\x1b[1A\x1b[2K100 %\r\ndone\r\n", "100 %\ndone"),
        ("\x1b[?1049h\x1b[Hfirst\r\n\x1b[Hsecond   \r\n", "second"),
        ("\x1b[1mbold\x1b[0m", "\x1b[1mbold\x1b[0m"),
    ],
)
def test_screen_of_shows_what_a_terminal_has_in_the_end(written: str, shown: str) -> None:
    """What was erased or written over is gone, and colours stay."""
    assert screen_of(written) == shown


def test_picture_of_a_terminal_has_its_words_and_colours() -> None:
    """It has the command as its title, and what it shows."""
    drawn = picture("millrace channels", "\x1b[33mfull\x1b[0m")
    assert "millrace&#160;channels" in drawn or "millrace channels" in drawn
    assert "full" in drawn


def _parsed(drawn: str) -> ET.Element:
    return ET.fromstring(drawn)  # noqa: S314 - the repository's own pictures
