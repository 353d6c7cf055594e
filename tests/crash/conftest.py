"""Fixtures for crash tests."""

import os
import random

import pytest

from tests.log_histories import make_small
from tests.simulated_channels import make_simple


@pytest.fixture
def small_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes logs preallocate little, so that copies are cheap, and write a SYNC_POINT only when they close."""
    make_small(monkeypatch)


@pytest.fixture
def simple_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes file channels in this process small, and runs everything on the event loop's thread."""
    make_simple(monkeypatch)


@pytest.fixture
def chance() -> random.Random:
    """Random choices, whose seed a failing test shows; MILLRACE_SEED repeats it."""
    seed = int(os.environ.get("MILLRACE_SEED", random.randrange(1 << 32)))
    print(f"MILLRACE_SEED={seed}")  # noqa: T201 - pytest shows it where the test fails
    return random.Random(seed)
