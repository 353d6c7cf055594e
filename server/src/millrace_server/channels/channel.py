"""The channel: transactions, deliveries and claims on its contents."""

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import takewhile

from millrace_server.channels.batches import Form, StoredBatch, StoredColumns, Window
from millrace_server.channels.claims import Claim, ClaimRegistry
from millrace_server.channels.commits import ClaimNote, CommitEnd, Commits, MemoryCommits, remove
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.contents import Change, Contents, Receipt
from millrace_server.channels.limits import ChannelLimits
from millrace_server.channels.names import check_identifier
from millrace_server.channels.queue import Portion, PortionMeter
from millrace_server.channels.room import Room
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transactions import EndedTxns, Outcome, Transaction, TxnLimit, TxnState
from millrace_server.channels.txn_directory import TxnDirectory
from millrace_server.errors import (
    BadArgumentError,
    DiskFullError,
    DrainingError,
    MillraceError,
    TxnNotFoundError,
    TxnStateError,
)

_MICROSECONDS = 1_000_000
_FOREVER_SECONDS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeLimits:
    """What a take or a delivery asks for, before the channel's limits are laid on it."""

    events_max: int = 0
    """At most so many events; 0: as many as may be."""

    body_bytes_max: int = 0
    """At most so many bytes of bodies; 0: no limit."""

    form: Form = Form.COLUMNS
    """How the answer will be encoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelBasis:
    """What a channel stands on: its identity, what it holds, and how its changes become lasting."""

    channel_id: str
    """Names this making of the channel."""
    contents: Contents
    commits: Commits
    epochs_from: int
    """All epochs of its claims are above it, so that none of a former channel of the name is ever granted again."""
    ended: EndedTxns = field(default_factory=EndedTxns)
    """Transactions that ended before a restart."""
    claim: ClaimNote | None = None
    """The newest claim before a restart."""


def memory_basis(name: str, config: ChannelConfig) -> ChannelBasis:
    """What a new channel in memory stands on."""
    contents = Contents(name, Room(config.capacity, config.body_bytes_max))
    return ChannelBasis(
        channel_id=secrets.token_hex(16),
        contents=contents,
        commits=MemoryCommits(contents),
        epochs_from=int(time.time() * _MICROSECONDS),
    )


class Channel:
    """A channel: transactions, deliveries and claims on what it holds.

    All methods run on the event loop that made the channel. Those that are not coroutines are atomic. A coroutine that
    is cancelled while it waits has either changed nothing, or goes on to its whole effect.
    """

    def __init__(
        self, name: str, config: ChannelConfig, basis: ChannelBasis, directory: TxnDirectory, answer_bytes_max: int
    ) -> None:
        self.name = name
        self.channel_id = basis.channel_id
        self.config = config
        self.start_time = time.time()
        self.updating = asyncio.Lock()
        """Held by whoever changes the limits: a change may wait for room, and the next one builds on it."""
        self.contents = basis.contents
        self.commits = basis.commits
        self.claims = ClaimRegistry(basis.contents, basis.commits, basis.epochs_from)
        self._clock = asyncio.get_running_loop().time
        self._directory = directory
        self._answer_bytes_max = answer_bytes_max
        self._limits = ChannelLimits(config, answer_bytes_max)
        self._limit = TxnLimit(f"channel {name!r}", lambda: self.config.open_transactions_max)
        self._open: dict[str, Transaction] = {}
        self._ended = basis.ended
        self._deliveries: set[Transaction] = set()
        self._open_body_bytes = 0
        self._is_draining = False
        self._appended = CommitEnd(made=self._count_commit, refused=_nothing)
        if basis.claim is not None:
            self.claims.restore(basis.claim)
        for txn_id in basis.ended:
            # An id that another channel has used since is known there.
            with suppress(TxnStateError):
                directory.add(txn_id, self)

    @property
    def open_transactions(self) -> int:
        """Open transactions, deliveries included."""
        return self._limit.open_count

    # Transactions.

    def begin(self, txn_id: str | None, lease_seconds: float | None) -> tuple[str, float]:
        """Opens a transaction, or finds the open one of that id.

        Returns:
            The transaction's id and its lease.

        Raises:
            TxnStateError: The id is another channel's, or its transaction has ended.
            TooManyTxnsError: The channel or the server has as many as it may.
        """
        txn_id = secrets.token_hex(16) if txn_id is None else txn_id
        check_identifier("txn_id", txn_id)
        if txn_id in self._open:
            return txn_id, self._find_open(txn_id).lease.seconds
        if outcome := self._ended.get(txn_id):
            raise TxnStateError(f"txn_id: its transaction is {outcome.state.value}; use another id", txn_id=txn_id)
        self._refuse_new()
        self._refuse_one_more()
        self._directory.add(txn_id, self)
        txn = Transaction(txn_id, lease_seconds or self.config.lease_seconds, self._expire)
        self._open[txn_id] = txn
        self._count_open(1)
        return txn_id, txn.lease.seconds

    def put(self, txn_id: str, batches: Sequence[StoredColumns], put_offset: int | None) -> int:
        """Adds events to a transaction, all of them or none.

        Returns:
            How many events the transaction has put so far.

        Raises:
            BytesFullError: Open transactions hold as many bytes as the channel may.
        """
        count = sum(stored.count for stored in batches)
        self.contents.counters.put_attempts += count
        txn = self._find_open(txn_id)
        known_count = txn.put_count_from(put_offset)
        if known_count >= count:
            return txn.put_count
        new = list(_without_first(known_count, batches))
        new_body_bytes = sum(window.body_bytes for window in new)
        self._limits.refuse_too_large(batches)
        self._limits.refuse_too_much(txn.put_count + count - known_count, txn.put_body_bytes + new_body_bytes)
        self._limits.refuse_crowding(self._open_body_bytes, new_body_bytes)
        txn.add_puts(new)
        self._open_body_bytes += new_body_bytes
        return txn.put_count

    async def take(
        self, txn_id: str, limits: TakeLimits, wait_seconds: float | None, take_offset: int | None
    ) -> tuple[list[StoredBatch], int]:
        """Takes events as soon as there are any.

        Returns:
            The events, none where the wait passed; and how many the transaction has taken up to their end.
        """
        batches: list[StoredBatch] = []
        try:
            txn = self._find_open(txn_id)
            wait_seconds = self.config.keep_alive_seconds if wait_seconds is None else wait_seconds
            give_up = self._clock() + wait_seconds
            is_woken = True
            with txn.lease.paused(), self.contents.takers.place() as place:
                while True:
                    await self.contents.load_ahead(self._portion(limits, self.config.transaction_capacity))
                    batches, take_count = self._take_at_once(txn_id, limits, take_offset)
                    if batches and txn.lease.waiting_calls > 1:
                        # A repeat of this call may wait too: it is to send the same events.
                        self.contents.takers.wake_all()
                    if batches or not is_woken:
                        return batches, take_count
                    if self._is_draining and give_up > self._clock():
                        # No answer at all: an empty one would say that the whole wait has passed.
                        raise _draining()
                    is_woken = await place.wait(give_up - self._clock())
        finally:
            self._count_take_attempts(batches)

    def _take_at_once(self, txn_id: str, limits: TakeLimits, take_offset: int | None) -> tuple[list[StoredBatch], int]:
        txn = self._find_open(txn_id)
        if again_count := txn.take_count_from(take_offset):
            meter = PortionMeter(self._portion(limits, again_count))
            again = list(meter.first_of(txn.last_taken(again_count)))
            return again, txn.take_count - again_count + sum(batch.count for batch in again)
        room_count = self._limits.taking_room(txn.take_count, txn_id)
        self.claims.refuse_if_claimed()
        batches = self._take_removable(self._portion(limits, room_count))
        txn.add_takes(batches)
        return batches, txn.take_count

    def _take_removable(self, portion: Portion) -> list[StoredBatch]:
        """Takes the oldest events.

        Where the log has failed and the oldest are in memory only, none of the log is taken with them: so they can
        still be removed.
        """
        batches = self.contents.take(portion)
        if self.commits.fault is None:
            return batches
        removable = list(takewhile(lambda batch: not batch.is_in_log, batches))
        if not removable:
            return batches
        self.contents.put_back(batches[len(removable) :])
        return removable

    async def commit(self, txn_ids: Sequence[str], stamp: Stamp | None) -> Receipt:
        """Commits transactions, all or none, as soon as there is room for their puts.

        Raises:
            ChannelFullError, BytesFullError: There was no room in the channel's keep-alive; the transactions stay open.
            OffsetGapError: What the stamp is to come after is not there; they stay open.
            DiskFullError: The disk has no room; they stay open.
            ChannelLogFailedError: The channel's log has failed; they stay open.
        """
        if len(set(txn_ids)) != len(txn_ids):
            raise BadArgumentError("txn_ids: names a transaction twice; each may come once")
        planned = self._plan_commit(txn_ids, stamp)
        if isinstance(planned, Change) and not self.contents.goes_at_once(planned):
            with ExitStack() as leases:
                for txn_id in txn_ids:
                    leases.enter_context(self._open[txn_id].lease.paused())
                planned = await self.contents.wait_for_room(
                    lambda: self._plan_commit(txn_ids, stamp), self.config.keep_alive_seconds
                )
        if isinstance(planned, Change):
            planned = self._begin_commit(planned, txn_ids)
        return planned if isinstance(planned, Receipt) else await asyncio.shield(planned)

    def _begin_commit(self, change: Change, txn_ids: Sequence[str]) -> "Receipt | asyncio.Future[Receipt]":
        self._refuse_gap(change.stamp)
        txns = [self._open[txn_id] for txn_id in txn_ids]
        end = CommitEnd(made=lambda receipt: self._end_committed(txns, receipt), refused=lambda: _reopen(txns))
        commit = self.commits.make(change, txn_ids, end)
        if not isinstance(commit, Receipt):
            for txn in txns:
                txn.begin_commit(commit)
        return commit

    def _plan_commit(self, txn_ids: Sequence[str], stamp: Stamp | None) -> "Change | Receipt | asyncio.Future[Receipt]":
        """What a commit would do now; or what it came to, or comes to, where this is a repeat."""
        known = [self._known_commit(txn_id) for txn_id in txn_ids]
        if known[0] is not None and all(commit is known[0] for commit in known):
            return known[0]
        txns = [self._find_open(txn_id) for txn_id in txn_ids]
        puts = [window for txn in txns for window in txn.puts]
        takes = [batch for txn in txns for batch in txn.takes]
        return self.contents.plan(puts, takes, stamp)

    def _known_commit(self, txn_id: str) -> "Receipt | asyncio.Future[Receipt] | None":
        if txn := self._open.get(txn_id):
            return txn.committing
        outcome = self._ended.get(txn_id)
        return outcome.receipt if outcome else None

    async def append(
        self, batches: Sequence[StoredColumns], stamp: Stamp | None, *, also_draining: bool = False
    ) -> Receipt:
        """Puts and commits at once, all or none, as soon as there is room.

        Args:
            batches: The events.
            stamp: Who stores them.
            also_draining: Whether it is one of the server's own sinks that sets events aside: sinks go on while the
                server drains, since that is how it is drained.

        Raises:
            ChannelFullError, BytesFullError: There was no room in the channel's keep-alive.
            OffsetGapError: What the stamp is to come after is not there.
            DiskFullError: The disk has no room.
            ChannelLogFailedError: The channel's log has failed.
        """
        for stored in batches:
            self.contents.counters.put_attempts += stored.count
        change = self.plan_append(batches, stamp, also_draining=also_draining)
        if not self.contents.goes_at_once(change):
            puts = [Window.whole(stored) for stored in batches]
            change = await self.contents.wait_for_room(
                lambda: self.contents.plan(puts, [], stamp), self.config.keep_alive_seconds
            )
        commit = self.begin_append(change)
        # Not shielded, since nobody else waits for it: who is cancelled leaves, and the commit goes on.
        return commit if isinstance(commit, Receipt) else await commit

    def plan_append(
        self, batches: Sequence[StoredColumns], stamp: Stamp | None, *, also_draining: bool = False
    ) -> Change:
        """What appending these would do now. For whoever appends to several channels as one; see `append`."""
        if self._is_draining and not also_draining:
            raise _draining()
        puts = []
        event_count = body_bytes = 0
        for stored in batches:
            puts.append(Window.whole(stored))
            event_count += stored.count
            body_bytes += stored.body_bytes
        self._limits.refuse_too_large(batches)
        self._limits.refuse_too_much(event_count, body_bytes)
        return self.contents.plan(puts, [], stamp)

    def begin_append(self, change: Change) -> "Receipt | asyncio.Future[Receipt]":
        """Begins an append that was planned just now, and for which there is room; see `Commits.make`."""
        self._refuse_gap(change.stamp)
        return self.commits.make(change, (), self._appended)

    def refuse_unstorable(self, batches: Sequence[StoredColumns]) -> None:
        """Raises EventTooLargeError where one event could never be put, however empty the channel were."""
        self._limits.refuse_too_large(batches)
        self._limits.refuse_above_open_bytes(batches)

    async def settled(self) -> None:
        """Waits until all that is on its way into the channel is stored, or will not be.

        Raises:
            ChannelLogFailedError: Nothing is stored any more.
        """
        self.contents.refuse_if_closed()
        nothing = Change([], [], None, 0)
        # Finished behind all that began before; or undone with it, and then that is settled too.
        with suppress(DiskFullError):
            settling = self.commits.make(nothing, (), CommitEnd(made=_ignore_receipt, refused=_nothing))
            if not isinstance(settling, Receipt):
                await settling

    def _refuse_gap(self, stamp: Stamp | None) -> None:
        """Asked when a change is about to begin, no earlier: what it comes after may have waited before it."""
        if stamp is not None:
            self.contents.ledger.refuse_gap(stamp)

    def _count_commit(self, _receipt: Receipt) -> None:
        self.contents.counters.commits += 1

    def rollback(self, txn_id: str) -> None:
        """Ends a transaction without effect. Does nothing where it was rolled back before."""
        self.contents.refuse_if_closed()
        outcome = self._ended.get(txn_id)
        if outcome is None or outcome.receipt is not None:
            self._roll_back(self._find_open(txn_id), TxnState.ROLLED_BACK)

    def renew(self, txn_id: str) -> float:
        """Starts a transaction's lease anew; returns its seconds."""
        return self._find_open(txn_id).lease.seconds

    # Deliveries: takes that one stream owns, and that end with it.

    async def deliver(self, limits: TakeLimits) -> Transaction:
        """Takes events as soon as there are any, however long that lasts."""
        delivery = await self._deliver(limits, self._admits_new)
        assert delivery is not None, "who is not let in is refused"
        return delivery

    async def deliver_while(self, limits: TakeLimits, is_wanted: Callable[[], bool]) -> Transaction | None:
        """Takes events as soon as there are any; None once they are not wanted any more.

        For the server's own sinks: they go on while the server drains, since that is how it is drained. Whoever
        changes what `is_wanted` says wakes the takers.
        """
        return await self._deliver(limits, is_wanted)

    def _admits_new(self) -> bool:
        self._refuse_new()
        return True

    async def _deliver(self, limits: TakeLimits, is_wanted: Callable[[], bool]) -> Transaction | None:
        batches: list[StoredBatch] = []
        try:
            with self.contents.takers.place() as place:
                while True:
                    await self.contents.load_ahead(self._portion(limits, self.config.transaction_capacity))
                    self.contents.refuse_if_closed()
                    if not is_wanted():
                        return None
                    self.claims.refuse_if_claimed()
                    self._refuse_one_more()
                    batches = self._deliverable(self._portion(limits, self.config.transaction_capacity))
                    if batches:
                        break
                    await place.wait(_FOREVER_SECONDS)
        finally:
            self._count_take_attempts(batches)
        delivery = Transaction("", math.inf, self._expire)
        delivery.add_takes(batches)
        self._deliveries.add(delivery)
        self._count_open(1)
        return delivery

    def _deliverable(self, portion: Portion) -> list[StoredBatch]:
        batches = self._take_removable(portion)
        fault = self.commits.fault
        if fault is not None and not (batches and not batches[0].is_in_log):
            # What is delivered could not be acknowledged, and would be delivered for ever.
            self.contents.put_back(batches)
            raise fault
        return batches

    def settle(self, delivery: Transaction) -> "asyncio.Future[Receipt] | None":
        """Removes what was lent. Where that cannot be, it returns to its place, to be delivered once more.

        Returns:
            A future that ends once it is removed, or with an error where it is back; None where it is removed already.

        Raises:
            ChannelLogFailedError: It is back.
        """
        if delivery not in self._deliveries or delivery.committing is not None:
            return None
        end = CommitEnd(
            made=lambda receipt: self._end_committed([delivery], receipt),
            refused=lambda: self._return_delivery(delivery),
        )
        try:
            commit = self.commits.make(Change([], delivery.takes, None, 0), (), end)
        except MillraceError:
            self._return_delivery(delivery)
            raise
        if isinstance(commit, Receipt):
            return None
        delivery.begin_commit(commit)
        return commit

    def join(self, delivery: Transaction, other: Transaction) -> None:
        """Makes two deliveries one: from now on the other's events are settled or given back with the first's."""
        if delivery not in self._deliveries or other not in self._deliveries:
            # The channel was deleted meanwhile, and has ended both.
            return
        assert delivery.committing is None, "what is being settled takes nothing on"
        assert other.committing is None, "what is being settled goes nowhere else"
        delivery.add_takes(other.takes)
        self._deliveries.remove(other)
        other.end(TxnState.ROLLED_BACK)
        self._count_open(-1)

    def _return_delivery(self, delivery: Transaction) -> None:
        if delivery in self._deliveries:
            delivery.committing = None
            self._roll_back(delivery, TxnState.ROLLED_BACK)

    def nack(self, delivery: Transaction) -> None:
        """Returns what was lent to its place."""
        if delivery in self._deliveries and delivery.committing is None:
            self._roll_back(delivery, TxnState.ROLLED_BACK)

    # Operations.

    def parts(self, batch: StoredBatch, form: Form) -> Iterator[StoredBatch]:
        """A batch in parts that each fit an answer; most often in one."""
        start = 0
        while start < batch.count:
            rest = batch.part(start, batch.count)
            count = PortionMeter(self._portion(TakeLimits(form=form), rest.count)).admit(rest)
            yield rest.part(0, count)
            start += count

    async def claim(self, reader_id: str, lease_seconds: float | None, *, takeover: bool) -> Claim:
        """Gives the channel to a reader, or renews its claim; see `ClaimRegistry.grant`."""
        self._refuse_new()
        return await self.claims.grant(reader_id, lease_seconds or self.config.lease_seconds, takeover=takeover)

    def renew_claim(self, reader_id: str, epoch: int, lease_seconds: float | None) -> Claim:
        """Renews a claim that lives; see `ClaimRegistry.renew`. A server that drains does so too."""
        return self.claims.renew(reader_id, epoch, lease_seconds or self.config.lease_seconds)

    async def wait_for_events(self, claim: Claim, after_sequence: int, wait_seconds: float) -> None:
        """Waits until there is an event after a sequence, or the time has passed. The claim's lease does not run.

        Raises:
            NotClaimedError, ChannelClaimedError, StaleEpochError: The claim has ended meanwhile.
            DrainingError: The server drains.
        """
        give_up = self._clock() + wait_seconds
        with claim.lease.paused(), self.contents.readers.place() as place:
            while self.contents.next_sequence - 1 <= after_sequence and give_up > self._clock():
                self._refuse_new()
                await place.wait(give_up - self._clock())
                self.claims.renew(claim.reader_id, claim.epoch)

    async def purge(self) -> int:
        """Removes all queued events without anybody having had them; returns how many.

        Raises:
            DiskFullError, ChannelLogFailedError: They could not be removed, and are still there.
        """
        self.contents.refuse_if_closed()
        purged = self.contents.take_all()
        await remove(self.contents, self.commits, purged, is_purge=True)
        return sum(batch.count for batch in purged)

    async def update(self, config: ChannelConfig) -> str:
        """Puts a new configuration in force, all of it or nothing.

        Growing is at once. Shrinking below what the channel holds waits up to the keep-alive.

        Returns:
            Why nothing was changed, in a sentence; empty where it was.
        """
        if not await self.contents.resize(config.capacity, config.body_bytes_max, self.config.keep_alive_seconds):
            return (
                f"the channel holds {self.contents.room.event_count} events with {self.contents.room.body_bytes} body "
                f"bytes, and the new limits are {config.capacity} and {config.body_bytes_max}; nothing was changed"
            )
        self.enforce(config)
        return ""

    def enforce(self, config: ChannelConfig) -> None:
        """Puts a configuration in force at once; what the channel holds may be above its limits."""
        self.config = config
        self._limits = ChannelLimits(config, self._answer_bytes_max)
        self.commits.enforce(config)
        self.contents.room.resize(config.capacity, config.body_bytes_max)

    def drain(self) -> None:
        """Begins nothing new from now on; what is open may end."""
        self._is_draining = True
        self.contents.takers.wake_all()
        self.contents.readers.wake_all()

    def delete(self) -> None:
        """Ends everything; whoever waits or comes later is told that the channel is not there."""
        self.contents.close()
        self.claims.forget()
        for txn in [*self._open.values(), *self._deliveries]:
            self._end(txn, Outcome(TxnState.ROLLED_BACK))
        for txn_id in self._ended:
            self._directory.remove(txn_id, self)
        # The former one is the store's too, which may still write it down.
        self._ended = EndedTxns()

    # The ways of a transaction.

    def _find_open(self, txn_id: str) -> Transaction:
        """The open transaction, whose lease starts anew."""
        self.contents.refuse_if_closed()
        txn = self._open.get(txn_id)
        if txn is None:
            if outcome := self._ended.get(txn_id):
                outcome.refuse(txn_id)
            raise TxnNotFoundError("no transaction of this id is known in the channel", txn_id=txn_id)
        txn.refuse_while_committing()
        txn.lease.renew()
        return txn

    def _expire(self, txn: Transaction) -> None:
        self.contents.counters.leases_expired += 1
        self._roll_back(txn, TxnState.EXPIRED)

    def _roll_back(self, txn: Transaction, state: TxnState) -> None:
        takes = txn.takes
        self._end(txn, Outcome(state))
        self.contents.put_back(takes)

    def _end_committed(self, txns: Sequence[Transaction], receipt: Receipt) -> None:
        for txn in txns:
            if txn.state is TxnState.OPEN:
                self._end(txn, Outcome(TxnState.COMMITTED, receipt))

    def _end(self, txn: Transaction, outcome: Outcome) -> None:
        self._open_body_bytes -= txn.put_body_bytes
        txn.end(outcome.state)
        # The commit itself counts as one, where it is on its way to the disk.
        if txn.lease.waiting_calls > int(txn.committing is not None):
            # Calls of it that wait are to be told at once, and not to keep others waiting behind them.
            self.contents.takers.wake_all()
            self.contents.room.line.wake_all()
        self._count_open(-1)
        if outcome.state is TxnState.COMMITTED:
            self.contents.counters.commits += 1
        else:
            self.contents.counters.rollbacks += 1
        if txn in self._deliveries:
            self._deliveries.remove(txn)
            return
        del self._open[txn.txn_id]
        if (forgotten := self._ended.add(txn.txn_id, outcome)) is not None:
            self._directory.remove(forgotten, self)
        if outcome.receipt is None:
            self.commits.note_rollback(txn.txn_id, has_expired=outcome.state is TxnState.EXPIRED)

    def _count_open(self, change: int) -> None:
        self._limit.count(change)
        self._directory.limit.count(change)

    def _count_take_attempts(self, batches: Sequence[StoredBatch]) -> None:
        self.contents.counters.take_attempts += sum(batch.count for batch in batches) or 1
        # Whoever was woken may have left events for the next.
        self.contents.wake_taker()

    # Limits.

    def _refuse_new(self) -> None:
        self.contents.refuse_if_closed()
        if self._is_draining:
            raise _draining()

    def _refuse_one_more(self) -> None:
        self._directory.limit.refuse_if_reached()
        self._limit.refuse_if_reached()

    def _portion(self, limits: TakeLimits, events_max: int) -> Portion:
        return self._limits.portion(limits.form, limits.events_max, limits.body_bytes_max, events_max)


def _reopen(txns: Sequence[Transaction]) -> None:
    for txn in txns:
        txn.reopen()


def _ignore_receipt(_receipt: Receipt) -> None:
    """Nothing is to be done: nobody asked for it."""


def _nothing() -> None:
    """Nothing is to be done: an append holds nothing that must be given back."""


def _draining() -> DrainingError:
    return DrainingError("the server is stopping and begins nothing new; go to another or come back later")


def _without_first(count: int, batches: Sequence[StoredColumns]) -> Iterator[Window]:
    """Windows on all events but the first `count`."""
    for stored in batches:
        skipped = min(count, stored.count)
        count -= skipped
        if skipped < stored.count:
            yield Window.whole(stored).part(skipped, stored.count)
