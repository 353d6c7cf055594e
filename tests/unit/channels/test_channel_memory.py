"""The memory of a channel, and its release."""

import asyncio
import gc
import itertools
import tracemalloc
from collections.abc import Iterator
from typing import TypeVar

import pytest

from millrace_server.channels.batches import StoredColumns, Window
from millrace_server.channels.channel import Channel
from millrace_server.channels.leases import Lease
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.transactions import TxnDirectory
from tests.channel_events import (
    append,
    begin,
    begin_with_puts,
    begin_with_takes,
    check_accounts,
    open_channel,
    queued,
    stored,
)
from tests.virtual_clock import settle, started

_T = TypeVar("_T")


@pytest.fixture
def traced() -> Iterator[None]:
    """Traces memory during the test."""
    tracemalloc.start()
    yield
    tracemalloc.stop()


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def least_growth(sizes: list[int]) -> int:
    """The bytes that each round at least added: a leak grows in every one, other threads of the process do not."""
    return min(later - earlier for earlier, later in itertools.pairwise(sizes))


def living(kind: type[_T]) -> list[_T]:
    """The existing objects of a type."""
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is kind]


def live(kind: type) -> int:
    """The number of existing objects of a type."""
    return len(living(kind))


def scheduled_timers() -> int:
    """The number of timers in the loop, including cancelled ones."""
    timers = getattr(asyncio.get_running_loop(), "_scheduled")  # noqa: B009 - private, and asyncio's types say nothing
    return len(timers)


async def test_transactions_abandoned_by_the_thousand_give_all_back() -> None:
    """Their leases end them: events return to their places, puts are dropped, counts and timers are as before."""
    directory = TxnDirectory(2_000)
    channel = open_channel(capacity=4_000, open_transactions_max=2_000, directory=directory)
    for _ in range(20):
        await append(channel, *[b"x" * 10] * 50)
    before, timers_before = [*living(StoredColumns), *living(Window)], scheduled_timers()
    for number in range(1_000):
        await begin_with_takes(channel, 1)
        channel.transactions.put(begin(channel), [stored(b"%d" % number)], None)
    assert (directory.limit.open_count, channel._contents.queue.event_count) == (2_000, 0)
    await asyncio.sleep(30)
    assert (directory.limit.open_count, channel._contents.queue.event_count) == (0, 1_000)
    assert channel._contents.counters.leases_expired == 2_000
    assert len(list(channel.transactions._ended)) == 2_000
    check_accounts(channel)
    # The batches that were taken event by event are whole again, and of the rest nothing is left.
    windows = [batch.window for batch in channel._contents.queue]
    assert len(windows) == 20
    known = {id(one) for one in [*before, *windows]}
    assert [one for one in [*living(StoredColumns), *living(Window)] if id(one) not in known] == []
    assert scheduled_timers() == timers_before
    await append(channel, b"y")
    assert len(queued(channel)) == 1_001


async def test_transactions_that_ended_and_were_forgotten_leave_nothing(
    monkeypatch: pytest.MonkeyPatch, traced: None
) -> None:
    """The memory does not depend on the number of transactions served."""
    monkeypatch.setattr("millrace_server.channels.transaction.ENDED_MAX", 100)
    leases_before = live(Lease)
    channel = open_channel(capacity=10)
    sizes = []
    for number in range(1_500):
        txn_id = begin_with_puts(channel, b"x" * 100)
        await channel.transactions.commit([txn_id], None)
        await channel.transactions.commit([await begin_with_takes(channel, 1)], None)
        # Cancelled timers are removed when the loop runs.
        await settle()
        if number % 250 == 249:
            sizes.append(traced_bytes())
    # The first rounds fill what is bounded.
    assert least_growth(sizes[1:]) < 10_000
    assert live(Lease) - leases_before < 1_000


async def test_calls_that_waited_and_were_cancelled_leave_nothing(traced: None) -> None:
    """Neither places in a queue, nor timers, nor memory remain."""
    channel = open_channel(capacity=1, keep_alive_seconds=60)
    await append(channel, b"x")
    await begin_with_takes(channel, 1)
    txn_id = begin(channel)
    sizes = []
    for _ in range(4):
        takes = [await started(channel.transactions.take(txn_id, TakeLimits(), 3600, None)) for _ in range(300)]
        appends = [await started(append(channel, b"x" * 1000)) for _ in range(300)]
        for call in takes:
            call.cancel()
        for commit in appends:
            commit.cancel()
        await settle()
        del takes, appends
        assert (len(channel._contents.takers), len(channel._contents.capacity.waiters)) == (0, 0)
        sizes.append(traced_bytes())
    assert least_growth(sizes) < 20_000
    assert scheduled_timers() < 1_500


async def test_events_queued_in_batches_cost_little_more_than_their_bytes(traced: None) -> None:
    """Batches of a thousand events of 100 bytes take at most 1.3 times their bytes."""
    channel: Channel = open_channel(capacity=1_000_000, transaction_capacity=1_000)
    before = traced_bytes()
    for _ in range(100):
        await append(channel, *[b"x" * 100] * 1_000)
    assert channel._contents.capacity.body_bytes == 10_000_000
    assert traced_bytes() - before < 1.3 * 10_000_000


async def test_channel_that_was_deleted_holds_nothing() -> None:
    """Its events and transactions are freed."""
    channel = open_channel(capacity=100)
    before = living(StoredColumns)
    await append(channel, b"a", b"b")
    begin_with_puts(channel, b"c")
    await begin_with_takes(channel, 1)
    channel.delete()
    del channel
    await asyncio.sleep(60)
    assert live(StoredColumns) == len(before)
