"""Fixtures for tests of the log."""

import pytest

from tests.log_histories import make_small


@pytest.fixture
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes logs preallocate little, so that copies are cheap, and write a SYNC_POINT only when they close."""
    make_small(monkeypatch)
