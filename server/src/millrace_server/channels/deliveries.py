"""The deliveries of a channel: takes that one stream or sink owns, settled by acks and returned by nacks."""

import math
import secrets
import time
from collections import defaultdict
from collections.abc import Callable

from millrace_server.channels.activity import ConsumerInfo, OpenTransaction, Origin
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.channel_core import ChannelCore
from millrace_server.channels.commit import Commit, Receipt
from millrace_server.channels.queue import ResponseLimits, TakeLimits
from millrace_server.channels.transaction import Outcome, Transaction, TxnState
from millrace_server.channels.transactions import Transactions
from millrace_server.errors import MillraceError

_FOREVER_SECONDS = 1e9


class Consumer:
    """A stream or a sink that gets deliveries of a channel."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.start_time = time.time()


_UNLISTED = Consumer(Origin())


class Deliveries:
    """The deliveries of one channel. A delivery is a transaction without a lease, and without an id until it is listed.

    A listed delivery belongs to the transactions of the channel by its id, so that it can be found and ended.
    """

    def __init__(self, core: ChannelCore, transactions: Transactions) -> None:
        self._core = core
        self._contents = core.contents
        self._transactions = transactions
        self._open: dict[Transaction, Consumer] = {}
        self._consumers: dict[Consumer, None] = {}

    def attach(self, origin: Origin) -> Consumer:
        """Adds a consumer to those that are listed, until `detach`."""
        consumer = Consumer(origin)
        self._consumers[consumer] = None
        return consumer

    def detach(self, consumer: Consumer) -> None:
        self._consumers.pop(consumer, None)

    async def deliver(self, limits: TakeLimits, consumer: Consumer = _UNLISTED) -> Transaction:
        delivery = await self.deliver_while(limits, self._admits_new, consumer)
        assert delivery is not None, "a caller that is not admitted gets an error"
        return delivery

    def _admits_new(self) -> bool:
        self._core.refuse_new()
        return True

    async def deliver_while(
        self, limits: TakeLimits, is_wanted: Callable[[], bool], consumer: Consumer = _UNLISTED
    ) -> Transaction | None:
        """Takes events as soon as there are any; returns None once `is_wanted` returns False.

        For the server's own sinks, which continue while the server drains. Call `Channel.wake_takers` when the result
        of `is_wanted` changes.
        """
        batches: list[StoredBatch] = []
        core = self._core
        try:
            with self._contents.takers.join() as waiter:
                while True:
                    await self._contents.prefetch(core.largest_response(limits))
                    self._contents.refuse_if_closed()
                    if not is_wanted():
                        return None
                    core.claims.refuse_if_claimed()
                    core.refuse_one_more()
                    batches = self._take(core.largest_response(limits))
                    if batches:
                        break
                    await waiter.wait(_FOREVER_SECONDS)
        finally:
            core.count_take(batches)
        delivery = Transaction("", math.inf, _never_expires, consumer.origin)
        delivery.add_takes(batches)
        self._open[delivery] = consumer
        core.count_open(1)
        return delivery

    def _take(self, limits: ResponseLimits) -> list[StoredBatch]:
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
            # The channel was deleted in the meantime, and has ended both.
            return
        assert delivery.committing is None, "a delivery that is being settled cannot grow"
        assert other.committing is None, "a delivery that is being settled cannot be joined"
        delivery.add_takes(other.takes)
        del self._open[other]
        other.end(TxnState.ROLLED_BACK)
        self._transactions.forget_delivery(other.txn_id)
        self._core.count_open(-1)

    def nack(self, delivery: Transaction) -> None:
        if delivery.committing is None:
            self._return(delivery)

    def describe(self) -> list[OpenTransaction]:
        """Returns the open deliveries, each with an id from now on."""
        for delivery in self._open:
            if not delivery.txn_id:
                delivery.txn_id = secrets.token_hex(16)
                self._transactions.add_delivery(delivery.txn_id)
        return [delivery.describe(self._core.name, is_delivery=True) for delivery in self._open]

    def describe_consumers(self) -> list[ConsumerInfo]:
        counts: defaultdict[Consumer, list[int]] = defaultdict(list)
        for delivery, consumer in self._open.items():
            counts[consumer].append(delivery.take_count)
        return [
            ConsumerInfo(
                peer=consumer.origin.peer,
                identity=consumer.origin.identity,
                open_deliveries=len(counts[consumer]),
                open_events=sum(counts[consumer]),
                start_time=consumer.start_time,
            )
            for consumer in self._consumers
        ]

    def end(self, txn_id: str) -> bool:
        """Returns the events of a listed delivery to the queue; returns False if no open one has this id."""
        delivery = next((delivery for delivery in self._open if delivery.txn_id == txn_id), None)
        if delivery is None:
            return False
        delivery.refuse_while_committing()
        self._return(delivery)
        return True

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
        del self._open[delivery]
        self._core.count_open(-1)
        if delivery.txn_id:
            receipt = Receipt() if state is TxnState.COMMITTED else None
            self._transactions.remember(delivery.txn_id, Outcome(state, receipt, delivery.origin.identity))
        self._contents.counters.rollbacks += state is TxnState.ROLLED_BACK


def _never_expires(_delivery: Transaction) -> None:
    raise AssertionError("a delivery has no lease")
