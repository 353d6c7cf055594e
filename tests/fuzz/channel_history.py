"""A channel compared with its account: the calls and outcomes in their order."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from millrace_server.channels.channel import Channel
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.errors import BadArgumentError, MillraceError, TooManyTxnsError, TxnCapacityError, TxnStateError
from tests.channel_events import check_accounts, numbered, times_of
from tests.fuzz.channel_account import Account, ExpectedTxn, Look, RefusedError
from tests.fuzz.channel_calls import Call, Cancel, Commit, Take

_CANCELLED = "cancelled"


@dataclass(eq=False)
class Running:
    """A call that has begun and may wait."""

    call: Call
    task: "asyncio.Task[None]" = field(init=False)
    give_up: float = 0.0
    paused: list[ExpectedTxn] = field(default_factory=list)
    held_at_start: list[tuple[int, int]] = field(default_factory=list)
    end: "Entry | None" = None
    """Its end, if it took effect before its response."""

    def held_now(self) -> list[tuple[int, int]]:
        return [(len(txn.puts), len(txn.takes)) for txn in self.paused]


@dataclass
class Entry:
    """The start of a call, or its end with an outcome: a value, or an error."""

    time: float
    running: Running
    is_start: bool
    outcome: Any = None


class History:
    """Makes calls on a channel, and compares their outcomes with the account's.

    Attributes:
        commits_later: Whether commits of the channel take time between their preparation and their effect.
    """

    commits_later = False

    def __init__(self, channel: Channel, directory: TxnDirectory, foreign_open: int, account: Account) -> None:
        self.channel = channel
        self.account = account
        self.lines: dict[str, list[Running]] = {"takers": [], "space": [], "": []}
        self.is_at_odds = False
        self._directory = directory
        self._foreign_open = foreign_open
        self._log: list[Entry] = []
        self._made: list[Running] = []

    def go_on_with(self, channel: Channel, directory: TxnDirectory) -> None:
        """Continues with the channel after it was opened again; no call waits."""
        assert not self.waiting
        self.channel = channel
        self._directory = directory

    @property
    def waiting(self) -> list[Running]:
        """The calls that had not ended at the last check."""
        return self.lines["takers"] + self.lines["space"]

    def make(self, call: Call) -> None:
        """Makes a call in the loop's next turn, after those made before."""
        running = Running(call)
        self._made.append(running)
        running.task = asyncio.get_running_loop().create_task(self._make(running))

    async def _make(self, running: Running) -> None:
        clock = asyncio.get_running_loop().time
        self._log.append(Entry(clock(), running, is_start=True))
        outcome: Any
        try:
            outcome = await running.call.make(self.channel)
        except asyncio.CancelledError:
            outcome = _CANCELLED
        except Exception as error:  # noqa: BLE001 - an outcome like another; what is no refusal fails the test
            outcome = error
        if running.end is None:
            self._log.append(Entry(clock(), running, is_start=False, outcome=outcome))
        else:
            running.end.outcome = outcome

    def has_effect(self, task: "asyncio.Task[Any] | None") -> None:
        """Records that a task's call takes effect now; it gets a response later in this turn of the clock."""
        for running in self._made:
            if running.task is task:
                running.end = Entry(asyncio.get_running_loop().time(), running, is_start=False)
                self._log.append(running.end)

    def check(self, now: float) -> None:
        """Compares all outcomes up to now with the account, and then the resulting state."""
        self.is_at_odds = True
        previous = None
        for entry in self._log:
            self.account.pass_time(entry.time)
            if entry.is_start:
                self._start(entry.running)
            else:
                has_waited = not (previous and previous.is_start and previous.running is entry.running)
                self._end(entry.running, entry.outcome, has_waited=has_waited)
            previous = entry
        self._log.clear()
        self._made = [running for running in self._made if not running.task.done()]
        self.account.pass_time(now)
        self._check_state()
        self._check_lines()
        self.is_at_odds = False

    def _start(self, running: Running) -> None:
        call = running.call
        if call.line:
            running.give_up = self.account.now + call.wait_seconds(self.account)
            running.paused = [txn for txn_id in call.txn_ids if (txn := self.account.open.get(txn_id))]
            running.held_at_start = running.held_now()
        call.begin(self.account)
        for txn in running.paused:
            txn.waiting_calls += 1
        self.lines[call.line].insert(0 if call.is_first else len(self.lines[call.line]), running)

    def _end(self, running: Running, outcome: Any, *, has_waited: bool) -> None:
        call, account = running.call, self.account
        line = self.lines[call.line]
        is_turn = line[0] is running
        line.remove(running)
        for txn in running.paused:
            txn.waiting_calls -= 1
        account.touch(call.txn_ids, has_waited=has_waited)
        look = self._look(call)
        if outcome == _CANCELLED:
            assert has_waited
            self._count_take(call, None)
            return
        if self.commits_later and self._is_overtaken(running, outcome):
            # The refusal is due to a pending commit, which the account learns of later.
            self._count_take(call, None)
            return
        if look.is_wait:
            assert account.now == running.give_up, f"{call} ended before its time, which is {running.give_up}"
        if isinstance(outcome, Exception):
            if not isinstance(outcome, MillraceError):
                raise outcome
            outcome = type(outcome)
        assert outcome == look.outcome, f"{call} returned {outcome}, and should have returned {look.outcome}"
        self._count_take(call, outcome)
        if look.is_wait:
            return
        look.effect()
        # Newcomers may take events at once, but never space. A call that waits before all others takes none of theirs.
        if look.in_turn and not call.is_first and (has_waited or call.line == "space"):
            assert is_turn or account.now == running.give_up, f"{call} came before others"

    def _is_overtaken(self, running: Running, outcome: Any) -> bool:
        """Whether a call is refused for a pending one, which has a stamp of its producer or commits its transaction."""
        others = [made.call for made in self._made if made is not running]
        if isinstance(outcome, TxnStateError):
            commits = [call for call in others if isinstance(call, Commit)]
            return isinstance(running.call, Take) and any(running.call.txn_id in commit.ids for commit in commits)
        stamps = [getattr(call, "stamp", None) for call in others]
        own = getattr(running.call, "stamp", None) if isinstance(outcome, BadArgumentError) else None
        return own is not None and any(stamp is not None and stamp.producer_id == own.producer_id for stamp in stamps)

    def _look(self, call: Call) -> Look:
        try:
            return call.look(self.account)
        except RefusedError as refused:
            return Look(refused.kind)

    def _count_take(self, call: Call, outcome: Any) -> None:
        if call.line == "takers":
            events = outcome[0] if isinstance(outcome, tuple) else outcome
            self.account.counters.take_attempts += len(events) if isinstance(events, list) and events else 1

    def _check_state(self) -> None:
        channel, account, contents = self.channel, self.account, self.channel._contents
        check_accounts(channel)
        assert numbered(contents.queue) == account.queue
        assert times_of(contents.held_batches()) == {sequence: account.times[sequence] for sequence, _ in account.held}
        assert contents.next_sequence == account.next_sequence
        for time in {account.times[sequence] for sequence, _ in account.held}:
            assert contents.first_since(time) == (
                min(one for one, _ in account.held if account.times[one] >= time),
                time,
            )
        assert contents.first_since(1 << 62) == (account.next_sequence, 0)
        assert contents.first_sequence == account.first_sequence
        assert (contents.capacity.event_count, contents.capacity.body_bytes) == (len(account.held), account.held_bytes)
        assert (contents.capacity.events_max, contents.capacity.body_bytes_max) == (
            account.limits.capacity,
            account.limits.body_bytes_max,
        )
        assert channel.config == account.limits
        assert channel.open_transactions == account.open_count
        assert channel.transactions._open_body_bytes == account.open_put_bytes
        assert self._directory.limit.open_count == account.open_count + self._foreign_open
        assert {txn_id: (txn.put_count, numbered(txn.takes)) for txn_id, txn in channel.transactions._open.items()} == {
            txn_id: (len(txn.puts), txn.takes) for txn_id, txn in account.open.items()
        }
        assert [(txn_id, txn.state.value) for txn_id, txn in channel.transactions._ended.items()] == [
            (txn_id, txn.state) for txn_id, txn in account.ended.items()
        ]
        assert set(self._directory._channels) == {*account.open, *account.ended, *account.foreign_ids}
        assert contents.counters == account.counters
        claim = channel.claims.claim
        assert (claim and (claim.reader_id, claim.epoch)) == (
            account.claim and (account.claim.reader_id, account.claim.epoch)
        )
        assert len(contents.ledger) == len(account.stamps)
        for producer_id, numbers in account.stamps.items():
            intervals = contents.ledger.intervals_of(producer_id)
            assert {number for first, last in intervals for number in range(first, last + 1)} == numbers
        # Each event that was ever committed is in exactly one place.
        places = Counter(sequence for sequence, _ in (*account.held, *account.consumed))
        assert places == Counter(range(1, account.next_sequence))

    def _check_lines(self) -> None:
        """No call waits that could proceed, and no waiter is left behind."""
        contents = self.channel._contents
        assert not self.lines[""]
        assert len(contents.takers) == len(self.lines["takers"])
        assert len(contents.capacity.waiters) == len(self.lines["space"])
        for running in self.lines["takers"]:
            look = self._look(running.call)
            # Limits that were lowered meanwhile are reported only when there is something to take.
            is_refused = look.outcome is TxnCapacityError or look.outcome is TooManyTxnsError
            assert look.is_wait or is_refused, running
        for running in self.lines["space"]:
            look = self._look(running.call)
            # A call that would need less space because of what others did to its transaction or stored with its stamp
            # is not woken for that.
            is_changed = getattr(running.call, "stamp", None) or running.held_now() != running.held_at_start
            waits_its_turn = look.in_turn and running is not self.lines["space"][0]
            assert look.is_wait or waits_its_turn or is_changed or look.outcome is TxnCapacityError, running

    def cancel(self, running: Running) -> None:
        """Cancels a call in the loop's next turn."""
        self.make(Cancel(running.task))
