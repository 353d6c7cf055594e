"""The numbers of a channel at one moment."""

import pytest

from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.stamps import Stamp
from tests.channel_events import append, begin, begin_with_takes, make_space, open_channel
from tests.simulated_channels import DATA, make_simple, open_simulated_channel, small_spillable_limits
from tests.simulated_disk import SimulatedDisk
from tests.virtual_clock import WallClock, started


async def test_gauges_of_a_busy_channel_have_each_number_under_its_name(wall_clock: WallClock) -> None:
    """Takes have waited for events until a rollback, and commits wait for space. All numbers differ."""
    channel = open_channel(capacity=11, body_bytes_max=100, keep_alive_seconds=60.0)
    await append(channel, *[b"gone"] * 10)
    await make_space(channel, 10)
    wall_clock.micros = 30
    await append(channel, *[b"aaa"] * 5)
    wall_clock.micros = 40
    for name in ("one", "two", "three"):
        await append(channel, b"bbb", stamp=Stamp(name, 1, 1))
    await append(channel, b"bbb")
    wall_clock.micros = 50
    await begin_with_takes(channel, 5)
    ending = await begin_with_takes(channel, 4)
    for _ in range(4):
        begin(channel)
    takes = [await started(channel.transactions.take(begin(channel), TakeLimits(), 60.0, None)) for _ in range(2)]
    appends = [await started(append(channel, b"f", b"g", b"h")) for _ in range(6)]
    assert not any(call.is_done for call in takes + appends)
    channel.transactions.rollback(ending)
    # The takes that it wakes have not run yet.
    assert channel.gauges()._asdict() == {
        "capacity": 11,
        "queued_events": 4,
        "taken_events": 5,
        "memory_events": 9,
        "body_bytes": 27,
        "body_bytes_max": 100,
        "open_transactions": 7,
        "waiting_takes": 2,
        "waiting_commits": 6,
        "producers": 3,
        "claims": 0,
        "first_sequence": 16,
        "next_sequence": 20,
        "oldest_commit_time": 30,
        "last_put_time": 40,
        "last_take_time": 50,
    }


async def test_gauges_of_a_claimed_channel_count_the_claim() -> None:
    """Not its reader, who has no stamp."""
    channel = open_channel()
    await channel.claim("reader", 60.0, takeover=False)
    gauges = channel.gauges()
    assert (gauges.claims, gauges.producers, gauges.open_transactions) == (1, 0, 0)


async def test_gauges_of_a_spillable_channel_count_what_is_in_memory_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queued or taken; the log has the others."""
    make_simple(monkeypatch)
    opened = await open_simulated_channel(SimulatedDisk([DATA]), small_spillable_limits(memory_capacity=2))
    await append(opened.channel, b"a", b"b")
    await append(opened.channel, *[b"c"] * 4)
    await begin_with_takes(opened.channel, 1)
    gauges = opened.channel.gauges()
    assert (gauges.memory_events, gauges.queued_events, gauges.taken_events) == (2, 5, 1)
    opened.abandon()


async def test_gauges_tell_when_the_oldest_event_was_committed(wall_clock: WallClock) -> None:
    """Whether it is queued or taken; 0 without events."""
    channel = open_channel()
    assert channel.gauges().oldest_commit_time == 0
    for wall_clock.micros in (10, 20):
        await append(channel, b"x")
    assert channel.gauges().oldest_commit_time == 10
    oldest = await begin_with_takes(channel, 1)
    assert channel.gauges().oldest_commit_time == 10
    newest = await begin_with_takes(channel, 1)
    channel.transactions.rollback(oldest)
    assert channel.gauges().oldest_commit_time == 10
    await channel.transactions.commit([await begin_with_takes(channel, 1)], None)
    assert channel.gauges().oldest_commit_time == 20
    await channel.transactions.commit([newest], None)
    assert channel.gauges().oldest_commit_time == 0
