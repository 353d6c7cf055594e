"""Fixtures for tests of the log."""

import pytest

from tests.log_histories import DATA, make_small
from tests.simulated_disk import SimulatedDisk


@pytest.fixture
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes logs preallocate little, so that copies are cheap, and write a SYNC_POINT only when they close."""
    make_small(monkeypatch)


@pytest.fixture
def disk() -> SimulatedDisk:
    """An empty disk."""
    return SimulatedDisk([DATA])
