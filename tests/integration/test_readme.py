"""The commands and programs of the README and of the client's, executed by a reader."""

from pathlib import Path

from tests.guide_reader import GuideReader
from tests.unit.repository.checkout import ROOT

_LINES_MAX = 180


def test_readme_followed_does_what_it_says(tmp_path: Path) -> None:
    """Its commands and its program work one after the other, around a kill of the server."""
    GuideReader(tmp_path).follow(ROOT / "README.md")


def test_readme_of_the_client_followed_does_what_it_says(tmp_path: Path) -> None:
    """Its program works with a server that has the channel."""
    start = tmp_path / "start.md"
    start.write_text(
        "<!-- run: serve -->\n```sh\nmillraced serve\n```\n"
        "<!-- run: shell -->\n```sh\nmillrace channel create orders\n```\n"
        + (ROOT / "client" / "README.md").read_text()
    )
    GuideReader(tmp_path).follow(start)


def test_readme_is_read_in_three_minutes() -> None:
    """What is longer belongs on a page of the site."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= _LINES_MAX
