"""A channel driven at random, compared with plain lists and dicts."""

import asyncio
import os
import time
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transactions import TxnDirectory
from tests.channel_events import begin, limits_of, open_channel
from tests.fuzz import channel_calls as calls
from tests.fuzz.channel_account import Account, micros_at
from tests.fuzz.channel_history import History
from tests.virtual_clock import VirtualClockLoop

EPOCHS_FROM = 1_000
ENDED_MAX = 3
LEASE_SECONDS = 6.0

OWN_IDS = ["t0", "t1", "t2", "t3", "t4"]
READERS = ["r", "s"]

# Choices among the existing ids: most select a valid one, the highest another one.
CHOICES = st.integers(0, 9)
USUAL_CHOICES = 8
HASTY = st.booleans()
SIZES = st.lists(st.integers(0, 6), min_size=1, max_size=3)
OFFSETS = st.sampled_from([None, None, 0, 0, -1, -2, -9, 1])
PRODUCERS = st.sampled_from(["p", "q"])
STAMPS = st.one_of(
    st.none(),
    st.builds(
        lambda producer_id, first, span: Stamp(producer_id, first, first + span - 1),
        PRODUCERS,
        st.integers(0, 12),
        st.integers(1, 5),
    ),
)
# Distances from the oldest queued sequence; the lowest value stands for none.
SPANS = st.tuples(st.integers(-2, 4), st.integers(-2, 7))
SEQUENCE_ABSENT = -2
TAKE_LIMITS = st.tuples(st.integers(0, 3), st.sampled_from([0, 0, 1, 8]))
WAITS = st.sampled_from([None, 0.0, 0.5, 2.0, 9.0])
CLAIM_TERMS = st.tuples(st.sampled_from([0.5, 3.0]), st.booleans())
EPOCHS_BACK = st.sampled_from([None, 0, 0, 0, 1, -1])
LIMITS = st.builds(
    lambda capacity, transaction_capacity, body_bytes_max, keep_alive_seconds: limits_of(
        capacity=capacity,
        transaction_capacity=min(capacity, transaction_capacity),
        body_bytes_max=body_bytes_max,
        keep_alive_seconds=keep_alive_seconds,
        open_transactions_max=5,
    ),
    st.integers(3, 9),
    st.integers(3, 5),
    st.integers(10, 40),
    st.sampled_from([0.0, 1.0, 2.5]),
)


class ChannelModel(RuleBasedStateMachine):
    """Makes calls on a channel, several at once, advances the clock, and cancels calls.

    A rule that is `hasty` makes its call in one turn of the loop with those of the next rules: so a call comes between
    another's wake-up and its next check, or is cancelled there.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ending = ExitStack()
        self._ending.enter_context(mock.patch("millrace_server.channels.transaction.ENDED_MAX", ENDED_MAX))
        self._loop = VirtualClockLoop()
        self._ending.callback(self._loop.close)
        self._troubles: list[dict[str, Any]] = []
        self._loop.set_exception_handler(lambda _, trouble: self._troubles.append(trouble))
        self._calls: list[calls.Call] = []
        self._number = 0

    def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._loop.run_until_complete(coroutine)

    @initialize(limits=LIMITS)
    def open(self, limits: Any) -> None:
        self._run(self._open(limits))

    async def _open(self, limits: Any) -> None:
        directory = TxnDirectory(100)
        self._other = open_channel("other", directory=directory, lease_seconds=3600)
        begin(self._other, "foreign")
        self.channel = open_channel(directory=directory, epochs_from=EPOCHS_FROM)
        self._set_clock()
        assert await self.channel.update(limits) == ""
        account = Account(limits, ["foreign"], ENDED_MAX, EPOCHS_FROM)
        self.history = History(self.channel, directory, 1, account)
        self.deliveries: calls.Loans = []
        for sizes in ([3, 1], [0, 2]):
            self._calls.append(calls.Append(self._bodies(sizes), None))
        await self._settle()

    def _set_clock(self) -> None:
        self.channel._contents.clock = lambda: 1000 * micros_at(self._loop.time())

    def _make(self, call: calls.Call, *, hasty: bool) -> None:
        self._calls.append(call)
        if not hasty:
            self._run(self._settle())

    async def _settle(self) -> None:
        for call in self._calls:
            self.history.make(call)
        self._calls.clear()
        await self._loop.settle()
        assert self._troubles == []
        self.history.check(self._loop.time())

    def _bodies(self, sizes: list[int]) -> list[bytes]:
        """Bodies that are distinct if they are long enough."""
        self._number += 1
        return [(b"%d" % (self._number * 10 + index)).ljust(6, b"_")[:size] for index, size in enumerate(sizes)]

    def _open_id(self, choice: int) -> str:
        """The id of an open transaction, begun now if there is none; or another id."""
        opened = list(self.history.account.open)
        if choice < USUAL_CHOICES:
            return opened[choice % len(opened)] if opened else self._begin(OWN_IDS[choice % 5])
        return (*OWN_IDS, "foreign", "none")[choice % 7]

    def _offset(self, txn_id: str, kind: str, change: int | None) -> int | None:
        """The position of the transaction, or one slightly before or after it."""
        txn = self.history.account.open.get(txn_id)
        held: list[Any] = getattr(txn, kind) if txn else []
        return None if change is None else max(len(held) + change, 0)

    @rule(seconds=st.sampled_from([0.25, 1.0, 1.75, 3.0, 10.0]))
    def pass_time(self, seconds: float) -> None:
        self._run(self._pass_time(seconds))

    async def _pass_time(self, seconds: float) -> None:
        await self._settle()
        await asyncio.sleep(seconds)
        await self._settle()

    @rule(choice=CHOICES, hasty=HASTY)
    def begin(self, choice: int, *, hasty: bool) -> None:
        account = self.history.account
        free = [txn_id for txn_id in OWN_IDS if txn_id not in account.open and txn_id not in account.ended]
        self._begin(free[0] if free and choice < USUAL_CHOICES else self._open_id(choice), hasty=hasty)

    def _begin(self, txn_id: str, *, hasty: bool = False) -> str:
        # Leases differ slightly, so that no two expire in the same moment.
        self._number += 1
        lease = LEASE_SECONDS + (self._number * 40503 % 65536) / (1 << 20)
        self._make(calls.Begin(txn_id, lease), hasty=hasty)
        return txn_id

    @rule(choice=CHOICES, sizes=SIZES, first_part=st.integers(0, 3), change=OFFSETS, hasty=HASTY)
    def put(self, choice: int, sizes: list[int], first_part: int, change: int | None, *, hasty: bool) -> None:
        txn_id = self._open_id(choice)
        offset = self._offset(txn_id, "puts", change)
        self._make(calls.Put(txn_id, self._bodies(sizes), first_part, offset), hasty=hasty)

    @rule(choice=CHOICES, limits=TAKE_LIMITS, wait=WAITS, change=OFFSETS, hasty=HASTY)
    def take(
        self, choice: int, limits: tuple[int, int], wait: float | None, change: int | None, *, hasty: bool
    ) -> None:
        txn_id = self._open_id(choice)
        offset = self._offset(txn_id, "takes", change)
        self._make(calls.Take(txn_id, *limits, wait, offset), hasty=hasty)

    @rule(choice=CHOICES, limits=TAKE_LIMITS, back=st.integers(1, 5), hasty=HASTY)
    def take_again(self, choice: int, limits: tuple[int, int], back: int, *, hasty: bool) -> None:
        """Repeats takes whose responses were lost."""
        txn_id = self._open_id(choice)
        self._make(calls.Take(txn_id, *limits, 0.0, self._offset(txn_id, "takes", -back)), hasty=hasty)

    @rule(choices=st.lists(CHOICES, min_size=1, max_size=3), stamp=STAMPS, hasty=HASTY)
    def commit(self, choices: list[int], stamp: Stamp | None, *, hasty: bool) -> None:
        txn_ids = [self._open_id(choice) for choice in choices]
        if choices[0] < USUAL_CHOICES:
            txn_ids = list(dict.fromkeys(txn_ids))
        self._make(calls.Commit(txn_ids, stamp), hasty=hasty)

    @precondition(lambda self: self.history.account.ended)
    @rule(choices=st.lists(st.integers(0, ENDED_MAX - 1), min_size=1, max_size=2, unique=True), hasty=HASTY)
    def commit_again(self, choices: list[int], *, hasty: bool) -> None:
        ended = list(self.history.account.ended)
        self._make(calls.Commit([ended[-1 - choice % len(ended)] for choice in choices], None), hasty=hasty)

    @rule(sizes=SIZES, stamp=STAMPS, hasty=HASTY)
    def append(self, sizes: list[int], stamp: Stamp | None, *, hasty: bool) -> None:
        self._make(calls.Append(self._bodies(sizes), stamp), hasty=hasty)

    @rule(choice=CHOICES, renews=st.booleans(), hasty=HASTY)
    def rollback_or_renew(self, choice: int, *, renews: bool, hasty: bool) -> None:
        txn_id = self._open_id(choice)
        self._make(calls.Renew(txn_id) if renews else calls.Rollback(txn_id), hasty=hasty)

    @rule(events_max=st.integers(0, 3), hasty=HASTY)
    def deliver(self, events_max: int, *, hasty: bool) -> None:
        self._make(calls.Lend(events_max, self.deliveries), hasty=hasty)

    @precondition(lambda self: self.deliveries)
    @rule(choice=st.integers(1, 4), is_settled=st.booleans(), hasty=HASTY)
    def end_loan(self, choice: int, *, is_settled: bool, hasty: bool) -> None:
        delivery, expected = self.deliveries[-min(choice, len(self.deliveries))]
        self._make(calls.EndLoan(delivery, expected, is_settled), hasty=hasty)

    @rule(limits=LIMITS, hasty=HASTY)
    def update(self, limits: Any, *, hasty: bool) -> None:
        self._make(calls.Update(limits), hasty=hasty)

    @rule(hasty=HASTY)
    def shrink(self, *, hasty: bool) -> None:
        """Shrinks to slightly less than the channel holds, which has to wait."""
        account = self.history.account
        limits = account.limits.model_dump()
        limits["capacity"] = max(len(account.held) - 1, limits["transaction_capacity"])
        self._make(calls.Update(type(account.limits)(**limits)), hasty=hasty)

    @rule(choice=CHOICES, sizes=SIZES, events_max=st.integers(1, 3), commits=st.booleans(), hasty=HASTY)
    def swap(self, choice: int, sizes: list[int], events_max: int, *, commits: bool, hasty: bool) -> None:
        """Takes and puts in one transaction."""
        txn_id = self._open_id(choice)
        self._make(calls.Take(txn_id, events_max, 0, 0.0, None), hasty=True)
        self._make(calls.Put(txn_id, self._bodies(sizes), 9, None), hasty=commits or hasty)
        if commits:
            self._make(calls.Commit([txn_id], None), hasty=hasty)

    @rule(counts=st.lists(st.integers(1, 3), min_size=2, max_size=4), stamp=STAMPS, hasty=HASTY)
    def fill(self, counts: list[int], stamp: Stamp | None, *, hasty: bool) -> None:
        """Makes several appends, some of which will have to wait."""
        for count in counts:
            self._make(calls.Append(self._bodies([2] * count), stamp), hasty=True)
        self._make(calls.Append(self._bodies([1]), None), hasty=hasty)

    @rule(
        events_max=st.integers(0, 2),
        wait=st.sampled_from([1.0, 2.0, 9.0]),
        offset=st.sampled_from([None, 0]),
        seconds=st.sampled_from([0.0, 7.0]),
    )
    def wait_for_events(self, events_max: int, wait: float, offset: int | None, seconds: float) -> None:
        """Makes takes of several transactions, and a delivery, on a channel that was emptied."""
        self._make(calls.Purge(), hasty=True)
        for txn_id in list(self.history.account.open):
            self._make(calls.Take(txn_id, events_max, 0, wait, offset), hasty=True)
            self._make(calls.Lend(events_max, self.deliveries), hasty=True)
        self._make(calls.Take(self._open_id(0), events_max, 0, wait, offset), hasty=True)
        self.pass_time(seconds)

    # Claims keep all others from taking, so they are short, and made while nothing is taken.

    @rule(choice=CHOICES, terms=CLAIM_TERMS, span=SPANS, releases=st.booleans(), hasty=HASTY)
    def claim(
        self, choice: int, terms: tuple[float, bool], span: tuple[int, int], *, releases: bool, hasty: bool
    ) -> None:
        reader_id = self._reader(choice)
        for delivery, expected in list(self.deliveries):
            self._make(calls.EndLoan(delivery, expected, is_settled=False), hasty=True)
        for txn_id, txn in list(self.history.account.open.items()):
            if txn.takes:
                self._make(calls.Rollback(txn_id), hasty=True)
        self._make(calls.Claim(reader_id, *terms), hasty=True)
        first, end = map(self._sequence, span)
        self._make(calls.Read(reader_id, None, first, end), hasty=True)
        self._make(calls.Acknowledge(reader_id, None, min(first, end)), hasty=releases or hasty)
        if releases:
            self._make(calls.Release(reader_id, None), hasty=hasty)

    @precondition(lambda self: self.history.account.epoch > EPOCHS_FROM)
    @rule(choice=CHOICES, epoch_back=EPOCHS_BACK, span=SPANS, hasty=HASTY)
    def read(self, choice: int, epoch_back: int | None, span: tuple[int, int], *, hasty: bool) -> None:
        """Makes calls under a claim, valid and invalid ones."""
        reader_id, epoch = self._reader(choice), self._epoch(epoch_back)
        first, end = map(self._sequence, span)
        self._make(calls.Read(reader_id, epoch, first, end), hasty=True)
        self._make(calls.Acknowledge(reader_id, epoch, first), hasty=hasty)

    @precondition(lambda self: self.history.account.claim)
    @rule(choice=CHOICES, epoch_back=EPOCHS_BACK, hasty=HASTY)
    def release(self, choice: int, epoch_back: int | None, *, hasty: bool) -> None:
        self._make(calls.Release(self._reader(choice), self._epoch(epoch_back)), hasty=hasty)

    @rule(choice=CHOICES, epoch_back=EPOCHS_BACK, producer_id=PRODUCERS, hasty=HASTY)
    def operate(self, choice: int, epoch_back: int | None, producer_id: str, *, hasty: bool) -> None:
        """Does what an operator may do to others' transactions, claims and producers."""
        operations = [calls.EndTransaction(self._open_id(choice)), calls.Forget(producer_id)]
        if self.history.account.claim:
            operations.append(calls.Revoke(self._epoch(epoch_back)))
        self._make(operations[choice % len(operations)], hasty=hasty)

    def _reader(self, choice: int) -> str:
        """The reader that holds the claim, or another one."""
        claim = self.history.account.claim
        return claim.reader_id if claim and choice < USUAL_CHOICES else READERS[choice % 2]

    def _epoch(self, back: int | None) -> int | None:
        return None if back is None else max(self.history.account.epoch - back, 0)

    def _sequence(self, change: int) -> int:
        """A sequence near the oldest one, or none."""
        return max(self.history.account.first_sequence + change, 0) if change > SEQUENCE_ABSENT else 0

    @precondition(lambda self: self.history.waiting)
    @rule(choice=CHOICES, hasty=HASTY)
    def cancel(self, choice: int, *, hasty: bool) -> None:
        waiting = self.history.waiting
        self._make(calls.Cancel(waiting[choice % len(waiting)].task), hasty=hasty)

    def teardown(self) -> None:
        try:
            if hasattr(self, "history") and not self.history.is_at_odds:
                self._run(self._close())
        finally:
            self._ending.close()

    async def _close(self) -> None:
        """Ends all waiting calls with the channel."""
        await self._settle()
        waiting = self.history.waiting
        self.channel.delete()
        await self._loop.settle()
        assert all(running.task.done() for running in waiting)
        assert self._troubles == []
        contents = self.channel._contents
        assert (self.channel.open_transactions, len(contents.takers), len(contents.capacity.waiters)) == (0, 0, 0)


SETTINGS = settings(
    max_examples=40,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)


def drive_for_long(model: type[RuleBasedStateMachine]) -> None:
    """Runs longer histories for FUZZ_SECONDS."""
    end = time.monotonic() + float(os.environ.get("FUZZ_SECONDS", "60"))
    long = settings(SETTINGS, max_examples=100, stateful_step_count=120, print_blob=True, database=None)
    while time.monotonic() < end:
        run_state_machine_as_test(model, settings=long)


def test_channel_driven_at_random_keeps_its_account() -> None:
    """With any calls in any order no event is lost or duplicated, and all accounts are exact."""
    run_state_machine_as_test(ChannelModel, settings=SETTINGS)


@pytest.mark.fuzz
@pytest.mark.torture
def test_channel_driven_for_long_keeps_its_account() -> None:
    """Longer histories, as many as there is time for; a failing one is printed as its calls."""
    drive_for_long(ChannelModel)
