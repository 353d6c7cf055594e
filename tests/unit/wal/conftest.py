"""Fixtures for tests of the log."""

import pytest

from tests.log_histories import make_small


@pytest.fixture
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has logs reserve little, so that copies are cheap, and mark their end only when they close."""
    make_small(monkeypatch)
