"""The transactions of a channel: begin, put, take, commit, roll back; and appends, which put and commit at once."""

import asyncio
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Never

from millrace_server.access.quotas import UNBOUNDED, Quota
from millrace_server.channels.activity import OpenTransaction, Origin
from millrace_server.channels.admission import always_allowed
from millrace_server.channels.batches import StoredBatch, StoredColumns, Window
from millrace_server.channels.channel_core import ChannelCore
from millrace_server.channels.commit import Commit, CommitState, Receipt
from millrace_server.channels.config import check_channel_name, check_identifier
from millrace_server.channels.queue import ResponseBudget, TakeLimits
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transaction import EndedTxns, Outcome, Transaction, TxnLimit, TxnState
from millrace_server.errors import (
    BadArgumentError,
    DiskFullError,
    QuotaExceededError,
    TxnNotFoundError,
    TxnStateError,
)


class TxnDirectory:
    """Finds the channel of each transaction, open or ended: transaction ids are one namespace for the server.

    `refuse_unless_known` raises while the transactions of a channel are not known: of that which the caller has named,
    or of any that this server will know soon.
    """

    def __init__(
        self, open_transactions_max: int, refuse_unless_known: Callable[[str], None] = lambda _channel: None
    ) -> None:
        self._refuse_unless_known = refuse_unless_known
        self._channels: dict[str, Transactions] = {}
        self.limit = TxnLimit("the server", lambda: open_transactions_max)
        self.open_counts = Counter[str]()  # By the identities that began them.

    def add(self, txn_id: str, channel: "Transactions") -> None:
        """Adds a transaction; raises TxnStateError where another channel has one of this id."""
        if self._channels.setdefault(txn_id, channel) is not channel:
            raise TxnStateError(
                f"txn_id: belongs to a transaction of another channel than {channel.name!r}; use another",
                txn_id=txn_id,
            )

    def refuse_one_more_of(self, owner: str, quota: Quota) -> None:
        """Raises QuotaExceededError where an owner of transactions has as many open as its quota allows."""
        open_max = quota.open_transactions
        if open_max is not None and self.open_counts[owner] >= open_max:
            quota.refused_transactions += 1
            raise QuotaExceededError(
                f"the quota of {open_max} open_transactions is used up; end one first", retry_delay_seconds=1.0
            )

    def is_owner(self, owner: str) -> bool:
        """Whether an owner has a transaction open."""
        return owner in self.open_counts

    def count_open(self, owner: str, change: int) -> None:
        if owner:
            self.open_counts[owner] += change
            if not self.open_counts[owner]:
                del self.open_counts[owner]

    def remove(self, txn_id: str, channel: "Transactions") -> None:
        if self._channels.get(txn_id) is channel:
            del self._channels[txn_id]

    def owner_of(self, txn_id: str) -> str | None:
        """Returns the name of the channel that has a transaction; None if it is not known."""
        channel = self._channels.get(txn_id)
        return None if channel is None else channel.name

    def find(self, txn_id: str, channel: str = "") -> "Transactions":
        """Returns the transactions of the channel that has this one; the caller may have named the channel."""
        if (found := self._channels.get(txn_id)) is not None:
            return found
        check_identifier("txn_id", txn_id)
        return self.refuse_unknown(txn_id, channel)

    def refuse_unknown(self, txn_id: str, channel: str = "") -> Never:
        """Raises the error for a transaction that does not exist, at least for the caller."""
        if channel:
            check_channel_name(channel)
        self._refuse_unless_known(channel)
        raise TxnNotFoundError(
            "no transaction with this id is known: it never existed, it ended long ago, or the server was restarted",
            txn_id=txn_id,
        )

    def find_common(self, txn_ids: Sequence[str], channel: str = "") -> "Transactions":
        """Returns the transactions of the one channel that has all of these; raises TxnStateError if several do."""
        found = self.find(txn_ids[0], channel)
        for txn_id in txn_ids:
            if (other := self.find(txn_id, channel)) is not found:
                raise TxnStateError(
                    f"txn_ids: belong to different channels, {found.name!r} and {other.name!r}; commit them separately",
                    txn_id=txn_id,
                )
        return found


class Transactions:
    """The transactions of one channel.

    All methods run on the event loop that created the channel. Those that are not coroutines are atomic. A coroutine
    that is cancelled while it waits has either changed nothing, or its whole effect follows.
    """

    def __init__(self, core: ChannelCore, directory: TxnDirectory, ended: EndedTxns) -> None:
        self._core = core
        self._contents = core.contents
        self._clock = asyncio.get_running_loop().time
        self._directory = directory
        self._open: dict[str, Transaction] = {}
        self._ended = ended
        self._open_body_bytes = 0
        for txn_id in ended:
            # An id that another channel has used since belongs to that one.
            with suppress(TxnStateError):
                directory.add(txn_id, self)

    @property
    def name(self) -> str:
        return self._core.name

    def begin(
        self,
        txn_id: str | None,
        lease_seconds: float | None,
        origin: Origin = Origin(),  # noqa: B008 - immutable
        quota: Quota = UNBOUNDED,
    ) -> tuple[str, float]:
        """Opens a transaction, or finds the identity's open one of that id; returns its id and its lease.

        The identity's quota bounds how many transactions of all channels it may have open.
        """
        txn_id = secrets.token_hex(16) if txn_id is None else txn_id
        check_identifier("txn_id", txn_id)
        if txn_id in self._open:
            if self._open[txn_id].origin.identity != origin.identity:
                raise TxnStateError("txn_id: belongs to a transaction of another identity; use another", txn_id=txn_id)
            return txn_id, self._find_open(txn_id).lease.seconds
        if outcome := self._ended.get(txn_id):
            raise TxnStateError(f"txn_id: its transaction is {outcome.state.value}; use another id", txn_id=txn_id)
        self._core.refuse_new()
        self._core.refuse_one_more()
        self._directory.refuse_one_more_of(origin.identity, quota)
        self._directory.add(txn_id, self)
        txn = Transaction(txn_id, lease_seconds or self._core.config.lease_seconds, self._expire, origin)
        self._open[txn_id] = txn
        self._core.count_open(1)
        self._directory.count_open(origin.identity, 1)
        return txn_id, txn.lease.seconds

    def owner_of(self, txn_id: str) -> str:
        """Returns the identity that a transaction, open or ended, belongs to; empty if unknown."""
        if txn := self._open.get(txn_id):
            return txn.origin.identity
        outcome = self._ended.get(txn_id)
        return outcome.owner if outcome else ""

    def describe(self) -> list[OpenTransaction]:
        return [txn.describe(self.name, is_delivery=False) for txn in self._open.values()]

    def counts_of(self, txn_id: str) -> tuple[int, int]:
        """Returns how many events an open transaction has put and taken."""
        txn = self._open.get(txn_id)
        return (txn.put_count, txn.take_count) if txn else (0, 0)

    def renew(self, txn_id: str) -> float:
        """Restarts a transaction's lease; returns its seconds."""
        return self._find_open(txn_id).lease.seconds

    def put(self, txn_id: str, batches: Sequence[StoredColumns], put_offset: int | None) -> int:
        """Adds events to a transaction, all or none; returns how many it has put so far."""
        count = sum(stored.count for stored in batches)
        self._contents.counters.put_attempts += count
        txn = self._find_open(txn_id)
        known_count = txn.put_count_from(put_offset)
        if known_count >= count:
            return txn.put_count
        new = list(_without_first(known_count, batches))
        new_body_bytes = sum(window.body_bytes for window in new)
        limits = self._core.limits
        limits.refuse_too_large(batches)
        limits.refuse_too_much(txn.put_count + count - known_count, txn.put_body_bytes + new_body_bytes)
        limits.refuse_open_bytes(self._open_body_bytes, new_body_bytes)
        txn.add_puts(new)
        self._open_body_bytes += new_body_bytes
        return txn.put_count

    # Takes.

    async def take(
        self, txn_id: str, limits: TakeLimits, wait_seconds: float | None, take_offset: int | None
    ) -> tuple[list[StoredBatch], int]:
        """Takes events as soon as there are any.

        Returns:
            The events, none after a timeout; and how many the transaction has taken up to their end.
        """
        batches: list[StoredBatch] = []
        core, takers = self._core, self._contents.takers
        try:
            txn = self._find_open(txn_id)
            wait_seconds = core.config.keep_alive_seconds if wait_seconds is None else wait_seconds
            give_up = self._clock() + wait_seconds
            is_woken = True
            with txn.lease.paused(), takers.join() as waiter:
                while True:
                    await self._contents.prefetch(core.largest_response(limits))
                    batches, take_count = self._take_now(txn_id, limits, take_offset)
                    if batches and txn.lease.waiting_calls > 1:
                        # A repeat of this call may wait too: it has to return the same events.
                        takers.wake_all()
                    if batches or not is_woken:
                        return batches, take_count
                    if give_up > self._clock():
                        # An empty response would say that the whole wait has passed.
                        core.refuse_if_draining()
                    is_woken = await waiter.wait(give_up - self._clock())
        finally:
            core.count_take(batches)

    def _take_now(self, txn_id: str, limits: TakeLimits, take_offset: int | None) -> tuple[list[StoredBatch], int]:
        txn = self._find_open(txn_id)
        core = self._core
        if again_count := txn.take_count_from(take_offset):
            self._contents.refuse_reading()
            meter = ResponseBudget(core.limits.response_limits(limits, again_count))
            again = list(meter.first_of(txn.last_taken(again_count)))
            return again, txn.take_count - again_count + sum(batch.count for batch in again)
        left_count = core.limits.takes_left(txn.take_count, txn_id)
        core.claims.refuse_if_claimed()
        batches = core.take_removable(core.limits.response_limits(limits, left_count))
        txn.add_takes(batches)
        return batches, txn.take_count

    # Commits.

    async def commit(
        self, txn_ids: Sequence[str], stamp: Stamp | None, recheck: Callable[[], None] = always_allowed
    ) -> Receipt:
        """Commits transactions, all or none, as soon as there is space for their puts. They stay open after an error.

        `recheck` is called after each wait, and raises where the caller may not commit any more.
        """
        if len(set(txn_ids)) != len(txn_ids):
            raise BadArgumentError("txn_ids: lists a transaction twice; list each one once")

        def plan() -> Commit:
            recheck()
            return self._plan_commit(txn_ids, stamp)

        give_up = self._clock() + self._core.config.keep_alive_seconds
        while True:
            commit = self._plan_commit(txn_ids, stamp)
            if commit.state is CommitState.PLANNED and not self._contents.admits(commit):
                with self._leases_paused(txn_ids):
                    commit = await self._contents.wait_for_space(plan, self._core.config.keep_alive_seconds)
            try:
                if commit.state is CommitState.PLANNED:
                    self._submit(commit, txn_ids)
                return await commit
            except DiskFullError:
                with self._leases_paused(txn_ids):
                    if not await self._contents.wait_for_disk(give_up - self._clock()):
                        raise
                recheck()

    @contextmanager
    def _leases_paused(self, txn_ids: Sequence[str]) -> Iterator[None]:
        with ExitStack() as leases:
            for txn_id in txn_ids:
                if txn := self._open.get(txn_id):
                    leases.enter_context(txn.lease.paused())
            yield

    def _submit(self, commit: Commit, txn_ids: Sequence[str]) -> None:
        if stamp := commit.stamp:
            self._contents.ledger.refuse_gap(stamp)
        txns = [self._open[txn_id] for txn_id in txn_ids]
        commit.txn_ids, commit.txn_count = txn_ids, len(txn_ids)
        commit.on_committed = partial(self._end_committed, txns)
        commit.on_aborted = partial(_reopen, txns)
        self._core.committer.submit(commit)
        if commit.is_in_flight:
            for txn in txns:
                txn.begin_commit(commit)

    def _plan_commit(self, txn_ids: Sequence[str], stamp: Stamp | None) -> Commit:
        """Plans a commit, or finds the earlier one that this repeats."""
        receipts = [self._receipt_of(txn_id) for txn_id in txn_ids]
        # Transactions that were committed together share one receipt.
        if receipts[0] is not None and all(receipt is receipts[0] for receipt in receipts):
            txn = self._open.get(txn_ids[0])
            return Commit.repeated(receipts[0]) if txn is None or txn.committing is None else txn.committing
        txns = [self._find_open(txn_id) for txn_id in txn_ids]
        puts = [window for txn in txns for window in txn.puts]
        takes = [batch for txn in txns for batch in txn.takes]
        return self._contents.plan(puts, takes, stamp)

    def _receipt_of(self, txn_id: str) -> Receipt | None:
        """Returns the receipt of a transaction's commit, which may still be in flight."""
        if txn := self._open.get(txn_id):
            return txn.committing.receipt if txn.committing is not None else None
        outcome = self._ended.get(txn_id)
        return outcome.receipt if outcome else None

    # The end of a transaction.

    def rollback(self, txn_id: str) -> None:
        """Ends a transaction without effect; does nothing where it was rolled back before."""
        self._contents.refuse_if_closed()
        outcome = self._ended.get(txn_id)
        if outcome is None or outcome.receipt is not None:
            self._roll_back(self._find_open(txn_id), TxnState.ROLLED_BACK)

    def roll_back_unless(self, may_keep: Callable[[Transaction], bool]) -> None:
        """Rolls back open transactions that may not be kept any more; whatever waits for space is checked again."""
        for txn in tuple(self._open.values()):
            if txn.committing is None and not may_keep(txn):
                self._roll_back(txn, TxnState.ROLLED_BACK)
        self._contents.capacity.waiters.wake_all()

    def close(self) -> None:
        for txn in list(self._open.values()):
            self._end(txn, TxnState.ROLLED_BACK)
        for txn_id in self._ended:
            self._directory.remove(txn_id, self)
        # The former object is the journal's too, which may still write it.
        self._ended = EndedTxns()

    def _find_open(self, txn_id: str) -> Transaction:
        """Returns the open transaction, and restarts its lease."""
        self._contents.refuse_if_closed()
        txn = self._open.get(txn_id)
        if txn is None:
            if outcome := self._ended.get(txn_id):
                outcome.refuse(txn_id)
            raise TxnNotFoundError("the channel knows no transaction with this id", txn_id=txn_id)
        txn.refuse_while_committing()
        txn.lease.renew()
        return txn

    def expire_all(self) -> None:
        """Rolls back all open transactions as if their leases had expired; those that are being committed continue."""
        for txn in tuple(self._open.values()):
            if txn.committing is None:
                self._expire(txn)

    def _expire(self, txn: Transaction) -> None:
        self._contents.counters.leases_expired += 1
        self._roll_back(txn, TxnState.EXPIRED)

    def _roll_back(self, txn: Transaction, state: TxnState) -> None:
        takes = txn.takes
        self._end(txn, state)
        self._contents.put_back(takes)

    def _end_committed(self, txns: Sequence[Transaction], commit: Commit) -> None:
        for txn in txns:
            if txn.state is TxnState.OPEN:
                self._end(txn, TxnState.COMMITTED, commit.receipt)

    def _end(self, txn: Transaction, state: TxnState, receipt: Receipt | None = None) -> None:
        self._open_body_bytes -= txn.put_body_bytes
        txn.end(state)
        # A commit in flight counts as one waiting call.
        if txn.lease.waiting_calls > int(txn.committing is not None):
            # Its waiting calls must respond at once, and not keep others waiting behind them.
            self._contents.takers.wake_all()
            self._contents.capacity.waiters.wake_all()
            self._contents.disk_waiters.wake_all()
        self._core.count_open(-1)
        self._directory.count_open(txn.origin.identity, -1)
        del self._open[txn.txn_id]
        self.remember(txn.txn_id, Outcome(state, receipt, txn.origin.identity))
        if receipt is None:
            self._contents.counters.rollbacks += 1
            self._core.committer.record_rollback(txn.txn_id, has_expired=state is TxnState.EXPIRED)

    # The deliveries that were listed, and so have an id.

    def add_delivery(self, txn_id: str) -> None:
        """Makes this the channel of a delivery's id."""
        self._directory.add(txn_id, self)

    def forget_delivery(self, txn_id: str) -> None:
        self._directory.remove(txn_id, self)

    def remember(self, txn_id: str, outcome: Outcome) -> None:
        """Remembers how a transaction or delivery has ended, and forgets the oldest one."""
        if (forgotten := self._ended.add(txn_id, outcome)) is not None:
            self._directory.remove(forgotten, self)


def _reopen(txns: Sequence[Transaction], _commit: Commit) -> None:
    for txn in txns:
        txn.reopen()


def _without_first(count: int, batches: Sequence[StoredColumns]) -> Iterator[Window]:
    """Yields windows on all events but the first `count`."""
    for stored in batches:
        skipped = min(count, stored.count)
        count -= skipped
        if skipped < stored.count:
            yield Window.whole(stored).part(skipped, stored.count)
