"""Errors of the disk at each Nth call that a file channel makes."""

import asyncio
import copy
import errno
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transaction import TxnState
from millrace_server.errors import ChannelCorruptError, ChannelLogFailedError, DiskFullError
from tests.channel_events import append, begin, begin_with_puts, begin_with_takes, check_accounts, queued, stored, take
from tests.crash.channel_histories import Allowed, Moment, Steps, Story, check_moment, new_disk, outcome_of
from tests.fuzz import channel_calls as calls
from tests.fuzz.channel_account import ExpectedTxn
from tests.simulated_channels import TWO_DIRECTORIES, Held, held_on, open_simulated_channel, small_limits
from tests.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("simple_channels")

_CHANGING_KINDS = ["create", "open_directory", "list", "rename", "write", "reserve", "truncate", "unlink"]
_SYNC_KINDS = ["sync", "sync_directory"]
_OPENING_KINDS = ["list", "open", "read", "size", "truncate", "write", *_SYNC_KINDS]
_ERRORS = [errno.EIO, errno.ENOSPC]
_REFUSALS = (DiskFullError, ChannelLogFailedError)
_CONFIG = small_limits(data_dirs=list(TWO_DIRECTORIES), segment_bytes_max=900)


class FaultyStory(Story):
    """A story whose disk may fail: refused calls have no effect, and failed ones may or may not."""

    has_failed = False

    def allowed(self) -> Allowed:
        """The states also without the rollbacks: they are not waited for, and a full disk does not store them."""
        allowed = super().allowed()
        return Allowed(_with_lost_rollbacks(allowed.after_cut), _with_lost_rollbacks(allowed.after_kill))

    async def do(self, *together: calls.Call) -> list[Any]:
        before, states = copy.deepcopy(self.account), list(self.states)
        expected, lasting = self.expect(together)
        tasks = [asyncio.ensure_future(call.make(self.opened.channel)) for call in together]
        await asyncio.wait(tasks)
        outcomes = [outcome_of(task) for task in tasks]
        made = [call for call, outcome in zip(together, outcomes, strict=True) if outcome not in _REFUSALS]
        failed_before = self.has_failed
        self.has_failed |= ChannelLogFailedError in outcomes
        doubtful = self.states
        if len(made) < len(together):
            self.account, self.states = before, list(states)
            expected, lasting = self.expect(made)
        assert [outcome for outcome in outcomes if outcome not in _REFUSALS] == expected
        if failed_before:
            # The log accepts nothing more.
            self.states = states
        else:
            self.have_lasted(lasting)
            self.states = doubtful if self.has_failed else self.states
        check_accounts(self.opened.channel)
        return outcomes


def _with_lost_rollbacks(states: Sequence[Held]) -> list[Held]:
    """The states, each with all of its rollbacks or with some of them missing."""
    found = []
    for held in states:
        rolled_back = [txn_id for txn_id, (state, _) in held.ended.items() if state == TxnState.ROLLED_BACK.value]
        for count in range(len(rolled_back) + 1):
            for lost in combinations(rolled_back, count):
                ended = {txn_id: outcome for txn_id, outcome in held.ended.items() if txn_id not in lost}
                found.append(replace(held, ended=ended))
    return found


async def _work_with_fault(
    disk: SimulatedDisk, kind: str, nth: int, error_number: int, chance: random.Random
) -> tuple[FaultyStory, list[Moment]]:
    """A story in which one call fails; returns it, and the moments between two steps from then on."""
    story = FaultyStory(disk, config=_CONFIG)
    await story.open()
    steps = Steps(story, chance, [_CONFIG], is_plain=True)
    await steps.go(3)
    disk.fail(kind, nth, error_number)
    moments = []
    for _ in range(12):
        await steps.go(1)
        moments.append(story.moment("between", disk.copy()))
    disk.heal()
    return story, moments


async def _check_fault(kind: str, nth: int, error_number: int, chance: random.Random) -> None:
    disk = new_disk(chance, TWO_DIRECTORIES)
    story, moments = await _work_with_fault(disk, kind, nth, error_number, chance)
    for moment in [chance.choice(moments), moments[-1]]:
        await check_moment(moment, chance, 1)
    if not story.has_failed:
        # Unless the log has failed after the last step without a call that noticed it.
        await story.do(calls.Append([b"goes on"], None))
    # A full disk is not a failure of the log, except in a sync.
    assert not story.has_failed or error_number == errno.EIO or kind in _SYNC_KINDS
    if not story.has_failed:
        assert story.responded == len(story.states) - 1
        await story.stop()
        assert await held_on(disk, _CONFIG) == story.states[-1]


@pytest.mark.parametrize("error_number", _ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", [*_CHANGING_KINDS, *_SYNC_KINDS])
async def test_calls_with_a_call_of_the_disk_failing_acknowledge_nothing_falsely(
    kind: str, error_number: int, chance: random.Random
) -> None:
    """Whichever call fails, acknowledged events are found later, refused ones are not, and a full disk is survived."""
    for nth in [1, 2, *chance.sample(range(3, 20), 3)]:
        await _check_fault(kind, nth, error_number, chance)


@pytest.mark.torture
@pytest.mark.parametrize("error_number", _ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", [*_CHANGING_KINDS, *_SYNC_KINDS])
async def test_calls_with_any_call_of_the_disk_failing_acknowledge_nothing_falsely(
    kind: str, error_number: int, chance: random.Random
) -> None:
    """The same for each of the calls of many histories."""
    for nth in range(1, 40):
        for _history in range(5):
            await _check_fault(kind, nth, error_number, chance)


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", _OPENING_KINDS)
async def test_open_with_any_call_failing_loses_nothing(kind: str, error_number: int, chance: random.Random) -> None:
    """A channel that could not be opened opens completely once the error is gone."""
    story, moments = await _work_with_fault(new_disk(chance, TWO_DIRECTORIES), "none", 1, 0, chance)
    story.opened.abandon()
    moment = chance.choice(moments)
    for nth in range(1, 5):
        disk = moment.disk.copy()
        disk.fail(kind, nth, error_number)
        with suppress(OSError, DiskFullError, ChannelLogFailedError):
            (await open_simulated_channel(disk, _CONFIG)).abandon()
        disk.heal()
        await check_moment(moment.on("failed to open", disk), chance, 1)


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", [*_CHANGING_KINDS, *_SYNC_KINDS])
async def test_first_open_with_any_call_failing_leaves_a_channel_that_opens(kind: str, error_number: int) -> None:
    """Whatever fails while a channel is created, it can be created once the error is gone."""
    for nth in range(1, 5):
        disk = SimulatedDisk(TWO_DIRECTORIES, nth)
        disk.fail(kind, nth, error_number)
        with suppress(OSError, DiskFullError, ChannelLogFailedError):
            (await open_simulated_channel(disk, _CONFIG)).abandon()
        disk.heal()
        for crashed in (disk.copy(), disk.crashed(nth)):
            assert await held_on(crashed, _CONFIG) == Held.nothing()


async def test_sync_that_fails_fails_the_channel_until_it_is_opened_again(chance: random.Random) -> None:
    """What waited for the sync is not acknowledged, nothing more is accepted, and the next opening decides."""
    for _disk in range(5):
        story = FaultyStory(new_disk(chance))
        await story.open()
        await story.do(calls.Append([b"before"], None))
        story.disk.fail("sync", 1, errno.EIO)
        together = [calls.Append([b"%d" % number], None) for number in range(3)]
        assert await story.do(*together) == [ChannelLogFailedError] * 3
        story.disk.heal()
        assert await story.do(calls.Append([b"refused"], None)) == [ChannelLogFailedError]
        assert await story.do(calls.Claim("r", 60.0, takeover=False)) == [ChannelLogFailedError]
        channel = story.opened.channel
        # Events can be peeked at and taken, but a take cannot be committed.
        txn_id = await begin_with_takes(channel, 1)
        with pytest.raises(ChannelLogFailedError):
            await channel.transactions.commit([txn_id], None)
        assert channel.transactions._open[txn_id].state is TxnState.OPEN
        channel.transactions.rollback(txn_id)
        assert queued(channel) == [b"before"]
        assert len(story.opened.changes) == 1
        await check_moment(story.moment("failed", story.disk.copy()), chance, 2)
        await story.opened.close()
        assert await held_on(story.disk) in story.allowed().after_cut


async def test_repeat_of_what_the_full_disk_refused_is_refused_too(chance: random.Random) -> None:
    """Neither a stamped append nor its repeat that waits with it is acknowledged; both may be repeated."""
    opened = await open_simulated_channel(new_disk(chance))
    channel, stamp = opened.channel, Stamp("p", 0, 1)
    opened.disk.fail("write", 1, errno.ENOSPC)
    responses = await asyncio.gather(
        *(append(channel, b"one", b"two", stamp=stamp) for _ in range(2)), return_exceptions=True
    )
    assert [type(response) for response in responses] == [DiskFullError, DiskFullError]
    assert not len(channel._contents.ledger)
    assert (await append(channel, b"one", b"two", stamp=stamp)).last_sequence == 2
    assert queued(channel) == [b"one", b"two"]


async def test_takes_on_a_full_disk_are_committed_while_puts_are_refused(chance: random.Random) -> None:
    """Takes that wait together with refused puts succeed, and finally there is space again."""
    opened = await open_simulated_channel(new_disk(chance))
    channel, disk = opened.channel, opened.disk
    await append(channel, *(b"%d" % number for number in range(20)))
    disk.capacity_bytes -= disk.free_bytes(TWO_DIRECTORIES[0]) - 1000
    for _round in range(4):
        takes = [await begin_with_takes(channel, 1) for _ in range(2)]
        put = begin_with_puts(channel, bytes(2000))
        responses = await asyncio.gather(
            channel.appends.append([stored(bytes(2000))], None),
            channel.transactions.commit(takes, None),
            channel.transactions.commit([put], None),
            return_exceptions=True,
        )
        assert [type(response).__name__ for response in responses] == ["DiskFullError", "Receipt", "DiskFullError"]
        # The transaction stays open, and may be committed again.
        with pytest.raises(DiskFullError):
            await channel.transactions.commit([put], None)
        channel.transactions.rollback(put)
        check_accounts(channel)
    assert queued(channel) == [b"%d" % number for number in range(8, 20)]
    disk.capacity_bytes = 1 << 40
    await opened.store._journal.measure()
    assert (await append(channel, bytes(2000))).first_sequence == 21
    held = Held.by(channel)
    opened.abandon()
    assert await held_on(disk.crashed(1)) == held


async def test_settle_that_the_disk_refuses_returns_the_delivery(chance: random.Random) -> None:
    """If an ack cannot be written, its events are delivered again, neither lost nor forgotten."""
    opened = await open_simulated_channel(new_disk(chance))
    channel = opened.channel
    await append(channel, b"one", b"two")
    deliver = calls.Lend(1, [])
    await deliver.make(channel)
    assert deliver.delivery is not None
    opened.disk.fail("write", 1, errno.ENOSPC, count=2)
    with pytest.raises(DiskFullError):
        await calls.EndLoan(deliver.delivery, ExpectedTxn(), is_settled=True).make(channel)
    assert queued(channel) == [b"one", b"two"]
    check_accounts(channel)


async def test_read_that_fails_says_corrupt_and_takes_nothing(chance: random.Random) -> None:
    """Events that the disk cannot return stay in their places, which is reported; nothing is skipped."""
    story = Story(new_disk(chance))
    await story.open()
    await story.do(calls.Append([b"one"], None), calls.Append([b"two"], None))
    await story.stop()
    opened = await open_simulated_channel(story.disk)
    opened.disk.fail("read", 1, errno.EIO)
    txn_id = begin(opened.channel)
    with pytest.raises(ChannelCorruptError):
        await take(opened.channel, txn_id)
    assert opened.store.fault
    assert len(opened.changes) == 1
    check_accounts(opened.channel)
    assert await take(opened.channel, txn_id) == [b"one", b"two"]
