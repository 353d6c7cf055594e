"""Single events that are taken out of the middle of a channel, and removed or kept."""

import pytest

from millrace_server.errors import ChannelClaimedError, DrainingError
from tests.channel_events import append, check_accounts, open_channel, queued
from tests.file_channels import durable_state_on, file_channel
from tests.simulated_channels import DATA, make_simple, open_simulated_channel, small_spillable_limits
from tests.simulated_disk import SimulatedDisk
from tests.spillable_channels import check_share, in_log, in_memory

HAS_THREADS = True


async def test_taking_removes_exactly_the_events_that_are_not_kept() -> None:
    """What is not queued, or asked for twice, is passed over; all accounts agree."""
    channel = open_channel()
    await append(channel, b"a", b"b", b"c", b"d")
    async with channel.taking([4, 2, 9, 1, 2]) as taking:
        assert [event.first_sequence for event in taking.events] == [4, 2, 1]
        assert queued(channel) == [b"c"]
        taking.kept.add(1)
    assert queued(channel) == [b"a", b"c"]
    assert (channel.counters.take_successes, channel.gauges().taken_events) == (2, 0)
    check_accounts(channel)


async def test_taking_that_fails_keeps_all() -> None:
    """They are in their places again."""
    channel = open_channel()
    await append(channel, b"a", b"b", b"c")
    with pytest.raises(ValueError, match="no"):
        async with channel.taking([2, 3]):
            raise ValueError("no")
    assert queued(channel) == [b"a", b"b", b"c"]
    check_accounts(channel)


async def test_taking_of_what_is_taken_already_passes_over_it() -> None:
    """Nobody gets an event twice."""
    channel = open_channel()
    await append(channel, b"a", b"b")
    async with channel.taking([1]) as first, channel.taking([1, 2]) as second:
        assert [len(first.events), len(second.events)] == [1, 1]


async def test_taking_under_a_claim_or_while_the_server_stops_is_refused() -> None:
    """As any other take."""
    channel = open_channel()
    await append(channel, b"a")
    await channel.claim("reader", None, takeover=False)
    with pytest.raises(ChannelClaimedError):
        async with channel.taking([1]):
            pytest.fail("it was taken")
    channel.claims.forget()
    channel.drain()
    with pytest.raises(DrainingError):
        async with channel.taking([1]):
            pytest.fail("it was taken")


async def test_taking_out_of_a_log_survives_a_crash(disk: SimulatedDisk) -> None:
    """Removed events stay away, also out of the middle of small commits that were merged; others return."""
    async with file_channel(disk) as opened:
        for number in range(6):
            await append(opened.channel, b"%d" % number)
        async with opened.channel.taking([2, 5]):
            pass
        with pytest.raises(ValueError, match="no"):
            async with opened.channel.taking([3]):
                raise ValueError("no")
        before = opened.durable_state()
    assert [body for _, body in before.events] == [b"0", b"2", b"3", b"5"]
    assert await durable_state_on(disk) == before


async def test_taking_out_of_memory_and_log_removes_from_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spillable channel goes on as one queue."""
    make_simple(monkeypatch)
    disk, limits = SimulatedDisk([DATA]), small_spillable_limits(memory_capacity=3)
    opened = await open_simulated_channel(disk, limits)
    await append(opened.channel, b"a", b"b", b"c")
    await append(opened.channel, b"d", b"e")
    async with opened.channel.taking([2, 4, 5]) as taking:
        taking.kept.add(5)
    assert (in_memory(opened.channel), in_log(opened.channel)) == ([1, 3], [5])
    check_share(opened.channel)
    await opened.close()
    again = await open_simulated_channel(disk, limits)
    assert queued(again.channel) == [b"a", b"c", b"e"]
    again.abandon()
