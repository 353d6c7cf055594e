"""Retention: expired events leave the channel durably, in time and in order, and nothing else does."""

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest
import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from millrace_server.channels import retention as retention_module
from millrace_server.channels.channel import Channel
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.transaction import Transaction
from millrace_server.errors import DrainingError, SequenceGoneError
from tests.channel_events import append, begin, begin_with_takes, check_accounts, numbered, open_channel, queued, take
from tests.file_channels import file_channel
from tests.simulated_disk import SimulatedDisk
from tests.virtual_clock import VirtualClockLoop, WallClock
from tests.waiting import until

HAS_THREADS = True
NOW = 1_790_000_000_000_000
SECOND = 1_000_000
YEAR_SECONDS = 31_536_000
_PRECISION = 1e-5


@pytest.fixture
def wall_clock(wall_clock: WallClock, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    """A clock that goes right: what it shows has passed has passed."""
    wall_clock.micros = NOW
    monkeypatch.setattr(retention_module, "elapsed_seconds", lambda: wall_clock.micros / SECOND)
    return wall_clock


def check(channel: Channel) -> None:
    """Lets the channel look at once for what has expired."""
    channel._core.retention._check()


def fails(error: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


async def append_at(channel: Channel, clock: WallClock, *seconds: float) -> None:
    for second in seconds:
        clock.micros = NOW + int(second * SECOND)
        await append(channel, b"%g" % second)


async def test_events_expire_a_part_of_a_run_too(disk: SimulatedDisk, wall_clock: WallClock) -> None:
    """They count as expired, not as taken; their space is free; and a kill does not bring them back."""
    async with file_channel(disk, retention_seconds=10.0, capacity=4) as opened:
        await append_at(opened.channel, wall_clock, 0, 1, 2, 3)
        assert [batch.count for batch in opened.channel._contents.queue] == [4]
        opened.columns._recent.written.bytes_max = 0
        wall_clock.micros = NOW + int(11.5 * SECOND)
        check(opened.channel)
        # The run must be read to be cut, and not on the event loop.
        assert not opened.channel._core.retention._is_removing
        await until(lambda: opened.channel.event_count == 2)
        assert queued(opened.channel) == [b"2", b"3"]
        await append(opened.channel, b"new", b"newer")
        counters = opened.channel.counters
        assert (counters.expired, counters.take_successes) == (2, 0)
        check_accounts(opened.channel)
        killed = disk.copy()
    wall_clock.micros = NOW
    async with file_channel(killed, retention_seconds=10.0) as found:
        assert queued(found.channel) == [b"2", b"3", b"new", b"newer"]


async def test_what_a_transaction_has_taken_expires_when_it_comes_back(
    disk: SimulatedDisk, wall_clock: WallClock
) -> None:
    """Nobody gets it once more; a commit of it is not concerned."""
    async with file_channel(disk, retention_seconds=10.0) as opened:
        channel = opened.channel
        await append_at(channel, wall_clock, 0, 0.25, 0.5)
        kept, returned = await begin_with_takes(channel, 1), await begin_with_takes(channel, 1)
        wall_clock.micros += 11 * SECOND
        check(channel)
        await until(lambda: channel.counters.expired == 1)
        assert (channel._contents.taken_count, queued(channel)) == (2, [])
        channel.transactions.rollback(returned)
        assert await take(channel, begin(channel)) == []
        await channel.transactions.commit([kept], None)
        await until(lambda: channel.counters.expired == 2)
        assert (channel.event_count, channel.counters.take_successes) == (0, 1)


async def test_many_batches_expire_one_after_the_other_without_another_check(
    wall_clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal that is refused leaves them to the next check."""
    monkeypatch.setattr(retention_module, "REMOVED_BATCHES_MAX", 1)
    channel = open_channel(retention_seconds=10.0)
    await append_at(channel, wall_clock, 0, 1, 2)
    wall_clock.micros += 11 * SECOND
    with monkeypatch.context() as broken:
        broken.setattr(channel._contents, "take_through", fails(DrainingError("closing")))
        check(channel)
    assert len(queued(channel)) == 3
    check(channel)
    for _ in range(10):
        await asyncio.sleep(0)
    assert (queued(channel), channel.counters.expired) == ([], 3)
    channel.delete()


async def test_read_of_an_expired_range_is_gone(wall_clock: WallClock) -> None:
    """A claim keeps nothing back; the reader learns it as from a purge."""
    channel = open_channel(retention_seconds=10.0)
    await append_at(channel, wall_clock, 0, 5)
    claim = await channel.claim("r", 30.0, takeover=False)
    wall_clock.micros = NOW + 11 * SECOND
    check(channel)
    with pytest.raises(SequenceGoneError):
        channel.claims.read("r", claim.epoch, 1, 3)
    read = [batch async for batch in channel.claims.read("r", claim.epoch, 0, 3)]
    assert numbered(read) == [(2, b"5")]
    channel.delete()


async def test_update_sets_how_long_events_are_kept(wall_clock: WallClock) -> None:
    """A shorter time is in force at once, and none keeps all."""
    channel = open_channel()
    await append_at(channel, wall_clock, 0, 5)
    wall_clock.micros = NOW + 11 * SECOND
    for seconds, left in ((None, [b"0", b"5"]), (12.0, [b"0", b"5"]), (8.0, [b"5"]), (None, [b"5"])):
        assert await channel.update(channel.config.model_copy(update={"retention_seconds": seconds})) == ""
        await asyncio.sleep(0.001)
        assert queued(channel) == left
    channel.drain()


async def test_events_without_a_time_expire_with_the_first_that_has_one(wall_clock: WallClock) -> None:
    """Or once the channel has been open for so long: by then they are certainly old enough."""
    for appended, seconds, left in (([0], 9, 2), ([0], 11, 0), ([], 9, 1), ([], 11, 0)):
        wall_clock.micros = NOW
        channel = open_channel(retention_seconds=10.0)
        wall_clock.micros = 0
        await append(channel, b"old")
        await append_at(channel, wall_clock, *appended)
        wall_clock.micros = NOW + seconds * SECOND
        check(channel)
        assert len(queued(channel)) == left
        channel.delete()


async def test_clock_that_is_set_forward_expires_nothing_early_and_is_logged_once(
    wall_clock: WallClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was committed before goes by time elapsed, also after an update; what is committed since, by the clock."""
    monkeypatch.setattr(retention_module, "elapsed_seconds", lambda: wall_clock.micros / SECOND % YEAR_SECONDS)
    channel = open_channel(retention_seconds=10.0)
    await append_at(channel, wall_clock, 0, YEAR_SECONDS)
    with structlog.testing.capture_logs() as logs:
        for seconds, left in ((0, 2), (9, 2), (2, 0)):
            wall_clock.micros += seconds * SECOND
            await channel.update(channel.config)
            check(channel)
            await asyncio.sleep(0.001)
            assert len(queued(channel)) == left
    [warning] = [entry for entry in logs if entry["log_level"] == "warning"]
    assert (warning["clock_seconds"], warning["elapsed_seconds"]) == (YEAR_SECONDS, 0)
    channel.delete()


async def test_removal_that_finds_no_space_is_tried_again(disk: SimulatedDisk, wall_clock: WallClock) -> None:
    """Until then the events stay, and can be taken."""
    async with file_channel(disk, retention_seconds=10.0) as opened:
        await append_at(opened.channel, wall_clock, 0)
        wall_clock.micros += 11 * SECOND
        # A later check, on a busy machine, must not succeed either.
        disk.fail("write", 1, errno.ENOSPC, count=1_000)
        check(opened.channel)
        await until(lambda: not opened.channel._core.retention._is_removing)
        assert (queued(opened.channel), opened.channel.counters.expired) == ([b"0"], 0)
        disk.heal()
        check(opened.channel)
        await until(lambda: opened.channel.counters.expired == 1)


class RetentionModel(RuleBasedStateMachine):
    """A channel whose events expire, compared with the times of its commits."""

    SECONDS = 4.0

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._loop = VirtualClockLoop()
        self._patch.setattr(retention_module, "REMOVED_BATCHES_MAX", 2)
        self.times: dict[int, float] = {}
        self.consumed: set[int] = set()
        self.away: list[Transaction] = []
        self.ahead_seconds = 0.0

    @initialize()
    def open(self) -> None:
        self._run(self._open())

    async def _open(self) -> None:
        self._patch.setattr("millrace_server.channels.contents.time_ns", self._now)
        self._patch.setattr(retention_module, "elapsed_seconds", self._loop.time)
        self.channel = open_channel(capacity=1_000, transaction_capacity=1_000, retention_seconds=self.SECONDS)

    def _now(self) -> int:
        return NOW * 1000 + int((self._loop.time() + self.ahead_seconds) * 1_000_000_000)

    def _run(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    @rule(count=st.integers(1, 3))
    def append(self, count: int) -> None:
        receipt = self._run(append(self.channel, *[b"x"] * count))
        self.times |= dict.fromkeys(range(receipt.first_sequence, receipt.last_sequence + 1), self._loop.time())

    @precondition(lambda self: self.channel._contents.queue.event_count)
    @rule(events_max=st.integers(1, 4))
    def take(self, events_max: int) -> None:
        self.away.append(self._run(self.channel.deliveries.deliver(TakeLimits(events_max=events_max))))

    @precondition(lambda self: self.away)
    @rule(index=st.integers(0, 9), is_settled=st.booleans())
    def end(self, index: int, *, is_settled: bool) -> None:
        delivery = self.away.pop(index % len(self.away))
        if is_settled:
            self.consumed |= sequences(delivery.takes)
            self._run(self._settle(delivery))
            return
        returned = sequences(delivery.takes)
        self._run(self._nack(delivery))
        expired = {one for one in returned if self._age(one) > self._kept_seconds_max}
        assert not expired & sequences(self.channel._contents.queue)

    async def _settle(self, delivery: Transaction) -> None:
        await self.channel.deliveries.settle(delivery)

    async def _nack(self, delivery: Transaction) -> None:
        self.channel.deliveries.nack(delivery)

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.5, 9.0]))
    def pass_time(self, seconds: float) -> None:
        self._run(asyncio.sleep(seconds))

    @rule(seconds=st.sampled_from([100.0, 1e7]))
    def set_clock_forward(self, seconds: float) -> None:
        self.ahead_seconds += seconds

    @property
    def _kept_seconds_max(self) -> float:
        # A jump of the clock may be noticed as late as the next event expires.
        return self.SECONDS * (2 if self.ahead_seconds else 1) + _PRECISION

    def _age(self, sequence: int) -> float:
        return self._loop.time() - self.times[sequence]

    @invariant()
    def keeps_what_is_young_and_nothing_else(self) -> None:
        if not hasattr(self, "channel"):
            return
        check_accounts(self.channel)
        held = sequences(self.channel._contents.held_batches())
        expired = self.times.keys() - held - self.consumed
        assert all(self._age(one) > self.SECONDS - _PRECISION for one in expired)
        assert all(self._age(one) <= self._kept_seconds_max + 1 for one in sequences(self.channel._contents.queue))
        assert self.channel.counters.expired == len(expired)

    def teardown(self) -> None:
        if hasattr(self, "channel"):
            self.channel.delete()
        self._loop.close()
        self._patch.undo()


def sequences(batches: Any) -> set[int]:
    return {sequence for sequence, _ in numbered(batches)}


def test_retention_driven_at_random_is_in_time() -> None:
    """No event is removed too early, none later than a second after it has expired, and taken ones are not touched."""
    run_state_machine_as_test(RetentionModel, settings=settings(max_examples=25, stateful_step_count=25))
