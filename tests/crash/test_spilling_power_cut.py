"""Power cuts and kills at every change that a spillable channel makes to its disk."""

import asyncio
import random

import pytest

from millrace_server.channels import memory_tier
from tests.crash.spilling_histories import History, check_moment

pytestmark = pytest.mark.usefixtures("simple_channels")

RESERVED_AHEAD = 40


@pytest.fixture(autouse=True)
def _small_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the reserve so small that it is renewed in each history, and sometimes runs out."""
    monkeypatch.setattr(memory_tier, "RESERVED_AHEAD", RESERVED_AHEAD)
    monkeypatch.setattr(memory_tier, "_COMMITS_AHEAD", 0)


def _history(chance: random.Random, step_count: int) -> History:
    history = History(chance)
    asyncio.run(history.go(step_count))
    return history


def test_open_after_a_crash_at_any_change_finds_the_log_and_nothing_of_lost_memory(chance: random.Random) -> None:
    """Acknowledged events in the log are there, lost ones are not reported as stored, and no sequence is reused."""
    for moment in _history(chance, 25).moments:
        asyncio.run(check_moment(moment, chance, 1))


def test_open_after_a_crash_in_a_long_history_finds_the_log_and_nothing_of_lost_memory(chance: random.Random) -> None:
    """The same with restarts, checkpoints and many segments."""
    moments = _history(chance, 200).moments
    for moment in chance.sample(moments, min(25, len(moments))):
        asyncio.run(check_moment(moment, chance, 2))


@pytest.mark.torture
def test_open_after_ten_thousand_crashes_finds_the_log_and_nothing_of_lost_memory(chance: random.Random) -> None:
    """Ten histories, with several power cuts at each moment."""
    crash_count = 0
    while crash_count < 10_000:
        for moment in _history(chance, 300).moments:
            asyncio.run(check_moment(moment, chance, 3))
            crash_count += 4
