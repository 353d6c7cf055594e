"""The numbers of a channel at one moment."""

from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.stamps import Stamp
from tests.channel_events import append, begin, begin_with_takes, open_channel
from tests.virtual_clock import WallClock, started


async def test_gauges_of_a_busy_channel_have_each_number_under_its_name(wall_clock: WallClock) -> None:
    """A transaction has taken everything, takes wait for events, and commits for room."""
    channel = open_channel(capacity=7, body_bytes_max=100, keep_alive_seconds=60.0)
    wall_clock.micros = 10
    await append(channel, b"aa", b"bb", stamp=Stamp("producer", 1, 2))
    wall_clock.micros = 20
    await append(channel, b"cc", b"dd", b"ee")
    wall_clock.micros = 30
    await begin_with_takes(channel, 5)
    takes = [await started(channel.transactions.take(begin(channel), TakeLimits(), 60.0, None)) for _ in range(2)]
    appends = [await started(append(channel, b"f", b"g", b"h")) for _ in range(4)]
    assert not any(call.is_done for call in takes + appends)
    assert channel.gauges()._asdict() == {
        "capacity": 7,
        "queued_events": 0,
        "taken_events": 5,
        "memory_events": 5,
        "body_bytes": 10,
        "body_bytes_max": 100,
        "open_transactions": 3,
        "waiting_takes": 2,
        "waiting_commits": 4,
        "producers": 1,
        "claims": 0,
        "first_sequence": 6,
        "next_sequence": 6,
        "oldest_commit_time": 10,
        "last_put_time": 20,
        "last_take_time": 30,
    }


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
