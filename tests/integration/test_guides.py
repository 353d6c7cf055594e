"""The guides, and pages that are read like them, followed by a reader from their first block to their last."""

from pathlib import Path

import pytest

from tests.guide_reader import GUIDES, GuideReader


def test_guides_are_found() -> None:
    """A folder that was renamed would pass all other tests here."""
    assert len(GUIDES) > 5


@pytest.mark.parametrize("page", GUIDES, ids=[page.stem for page in GUIDES])
def test_guide_followed_does_what_it_says(page: Path, tmp_path: Path) -> None:
    """Every block works after the one before it, and prints what the page shows."""
    GuideReader(tmp_path).follow(page)
