"""The deliveries of a channel: takes that one stream or sink owns, settled by acks and returned by nacks."""

import math
from collections.abc import Callable

from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.channel_core import ChannelCore
from millrace_server.channels.commit import Commit, Receipt
from millrace_server.channels.queue import AnswerLimits, TakeLimits
from millrace_server.channels.transaction import Transaction, TxnState
from millrace_server.errors import MillraceError

_FOREVER_SECONDS = 1e9


class Deliveries:
    """The deliveries of one channel. A delivery is a transaction without an id and a lease."""

    def __init__(self, core: ChannelCore) -> None:
        self._core = core
        self._contents = core.contents
        self._open: set[Transaction] = set()

    async def deliver(self, limits: TakeLimits) -> Transaction:
        delivery = await self.deliver_while(limits, self._admits_new)
        assert delivery is not None, "a caller that is not admitted gets an error"
        return delivery

    def _admits_new(self) -> bool:
        self._core.refuse_new()
        return True

    async def deliver_while(self, limits: TakeLimits, is_wanted: Callable[[], bool]) -> Transaction | None:
        """Takes events as soon as there are any; returns None once `is_wanted` returns False.

        For the server's own sinks, which continue while the server drains. Call `Channel.wake_takers` when the result
        of `is_wanted` changes.
        """
        batches: list[StoredBatch] = []
        core = self._core
        try:
            with self._contents.takers.join() as waiter:
                while True:
                    await self._contents.prefetch(core.largest_answer(limits))
                    self._contents.refuse_if_closed()
                    if not is_wanted():
                        return None
                    core.claims.refuse_if_claimed()
                    core.refuse_one_more()
                    batches = self._take(core.largest_answer(limits))
                    if batches:
                        break
                    await waiter.wait(_FOREVER_SECONDS)
        finally:
            core.count_take(batches)
        delivery = Transaction("", math.inf, _never_expires)
        delivery.add_takes(batches)
        self._open.add(delivery)
        core.count_open(1)
        return delivery

    def _take(self, limits: AnswerLimits) -> list[StoredBatch]:
        batches = self._core.take_removable(limits)
        fault = self._core.committer.fault
        if fault is not None and not (batches and not batches[0].is_in_log):
            # Its settlement would fail, and it would be delivered again and again.
            self._contents.put_back(batches)
            raise fault
        return batches

    def settle(self, delivery: Transaction) -> Commit:
        """Removes the events of a delivery. On failure they return to the queue, to be delivered again.

        Returns:
            The commit that removes them; for a delivery that was settled or returned before, the commit in flight or
            one without effect.
        """
        if delivery.committing is not None:
            return delivery.committing
        if delivery not in self._open:
            return Commit.repeated(Receipt())
        commit = Commit([], delivery.takes)
        commit.txn_count = 1
        commit.on_committed = lambda _: self._end(delivery, TxnState.COMMITTED)
        commit.on_aborted = lambda _: self._return(delivery)
        try:
            self._core.committer.submit(commit)
        except MillraceError:
            self._return(delivery)
            raise
        if commit.is_in_flight:
            delivery.begin_commit(commit)
        return commit

    def join(self, delivery: Transaction, other: Transaction) -> None:
        """Joins two deliveries: from now on the other's events are settled or returned with the first's."""
        if delivery not in self._open or other not in self._open:
            # The channel was deleted meanwhile, and has ended both.
            return
        assert delivery.committing is None, "a delivery that is being settled cannot grow"
        assert other.committing is None, "a delivery that is being settled cannot be joined"
        delivery.add_takes(other.takes)
        self._open.remove(other)
        other.end(TxnState.ROLLED_BACK)
        self._core.count_open(-1)

    def nack(self, delivery: Transaction) -> None:
        if delivery.committing is None:
            self._return(delivery)

    def close(self) -> None:
        for delivery in list(self._open):
            self._end(delivery, TxnState.ROLLED_BACK)

    def _return(self, delivery: Transaction) -> None:
        if delivery in self._open:
            takes = delivery.takes
            self._end(delivery, TxnState.ROLLED_BACK)
            self._contents.put_back(takes)

    def _end(self, delivery: Transaction, state: TxnState) -> None:
        if delivery not in self._open:
            return
        delivery.committing = None
        delivery.end(state)
        self._open.remove(delivery)
        self._core.count_open(-1)
        self._contents.counters.rollbacks += state is TxnState.ROLLED_BACK


def _never_expires(_delivery: Transaction) -> None:
    raise AssertionError("a delivery has no lease")
