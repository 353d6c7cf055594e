"""The channel: transactions, deliveries and claims on its contents."""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from millrace_server.channels.batches import Form, StoredBatch, StoredColumns, Window
from millrace_server.channels.claims import Claim, ClaimDesk
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.contents import Change, Contents, Receipt
from millrace_server.channels.directory import TxnDirectory
from millrace_server.channels.names import check_identifier
from millrace_server.channels.queue import Portion, PortionMeter
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transactions import ENDED_MAX, Transaction, TxnLimit, TxnState
from millrace_server.errors import (
    BadArgumentError,
    BytesFullError,
    DrainingError,
    EventTooLargeError,
    TxnCapacityError,
    TxnNotFoundError,
    TxnStateError,
)

_UNLIMITED_BYTES = 1 << 62
_MICROSECONDS = 1_000_000
_CROWDED_RETRY_DELAY_SECONDS = 1.0
_ROWS_MAX = 10_000
_ROWS_BYTES_MAX = 8 << 20
_FOREVER_SECONDS = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a take or a delivery asks for, before the channel's limits are laid on it."""

    events_max: int = 0
    """At most so many events; 0: as many as may be."""

    body_bytes_max: int = 0
    """At most so many bytes of bodies; 0: no limit."""

    form: Form = Form.COLUMNS
    """How the answer will be encoded."""


class Channel:
    """A channel in memory.

    All methods run on the event loop that made the channel. Those that are not coroutines are atomic; a coroutine that
    is cancelled while it waits has changed nothing.
    """

    def __init__(self, name: str, config: ChannelConfig, directory: TxnDirectory, answer_bytes_max: int) -> None:
        self.name = name
        self.channel_id = secrets.token_hex(16)
        self.config = config
        self.start_time = time.time()
        self.updating = asyncio.Lock()
        """Held by whoever changes the limits: a change may wait for room, and the next one builds on it."""
        self.contents = Contents(name, config.capacity, config.body_bytes_max)
        # A channel that is made anew must not grant an epoch that a reader of the former one may still hold.
        self.claims = ClaimDesk(self.contents, epochs_from=int(self.start_time * _MICROSECONDS))
        self._clock = asyncio.get_running_loop().time
        self._directory = directory
        self._answer_bytes_max = answer_bytes_max
        self._limit = TxnLimit(f"channel {name!r}", lambda: self.config.open_transactions_max)
        self._open: dict[str, Transaction] = {}
        self._ended: OrderedDict[str, Transaction] = OrderedDict()
        self._loans: set[Transaction] = set()
        self._open_body_bytes = 0
        self._is_draining = False

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
        if ended := self._ended.get(txn_id):
            raise TxnStateError(f"txn_id: its transaction is {ended.state.value}; use another id", txn_id=txn_id)
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
        self._refuse_too_many(txn.put_count + count - known_count)
        self._refuse_too_large(batches)
        self._refuse_too_many_bytes(txn.put_body_bytes + new_body_bytes)
        self._refuse_crowding(new_body_bytes)
        txn.add_puts(new)
        self._open_body_bytes += new_body_bytes
        return txn.put_count

    async def take(
        self, txn_id: str, wish: Wish, wait_seconds: float | None, take_offset: int | None
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
                    batches, take_count = self._take_at_once(txn_id, wish, take_offset)
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

    def _take_at_once(self, txn_id: str, wish: Wish, take_offset: int | None) -> tuple[list[StoredBatch], int]:
        txn = self._find_open(txn_id)
        if again_count := txn.take_count_from(take_offset):
            meter = PortionMeter(self._portion(wish, again_count))
            again = list(meter.first_of(txn.last_taken(again_count)))
            return again, txn.take_count - again_count + sum(batch.count for batch in again)
        room_count = self.config.transaction_capacity - txn.take_count
        if room_count <= 0:
            raise TxnCapacityError(
                f"the transaction has taken {txn.take_count} events, all that transaction_capacity allows; "
                "commit it or roll it back",
                txn_id=txn_id,
            )
        self.claims.refuse_if_claimed()
        batches = self.contents.take(self._portion(wish, room_count))
        txn.add_takes(batches)
        return batches, txn.take_count

    async def commit(self, txn_ids: Sequence[str], stamp: Stamp | None) -> Receipt:
        """Commits transactions, all or none, as soon as there is room for their puts.

        Raises:
            ChannelFullError, BytesFullError: There was no room in the channel's keep-alive; the transactions stay open.
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
        if isinstance(planned, Receipt):
            return planned
        receipt = self.contents.apply(planned)
        for txn_id in txn_ids:
            self._end(self._open[txn_id], TxnState.COMMITTED, receipt)
        return receipt

    def _plan_commit(self, txn_ids: Sequence[str], stamp: Stamp | None) -> Change | Receipt:
        receipts = [txn.receipt for txn_id in txn_ids if (txn := self._ended.get(txn_id)) and txn.receipt]
        if len(receipts) == len(txn_ids) and all(receipt is receipts[0] for receipt in receipts):
            return receipts[0]
        txns = [self._find_open(txn_id) for txn_id in txn_ids]
        puts = [window for txn in txns for window in txn.puts]
        takes = [batch for txn in txns for batch in txn.takes]
        return self.contents.plan(puts, takes, stamp)

    async def append(self, batches: Sequence[StoredColumns], stamp: Stamp | None) -> Receipt:
        """Puts and commits at once, all or none, as soon as there is room.

        Raises:
            ChannelFullError, BytesFullError: There was no room in the channel's keep-alive.
        """
        puts = [Window.whole(stored) for stored in batches]
        put_count = sum(put.count for put in puts)
        self.contents.counters.put_attempts += put_count
        self._refuse_new()
        self._refuse_too_many(put_count)
        self._refuse_too_large(batches)
        self._refuse_too_many_bytes(sum(put.body_bytes for put in puts))
        change = self.contents.plan(puts, [], stamp)
        if not self.contents.goes_at_once(change):
            change = await self.contents.wait_for_room(
                lambda: self.contents.plan(puts, [], stamp), self.config.keep_alive_seconds
            )
        self.contents.counters.commits += 1
        return self.contents.apply(change)

    def rollback(self, txn_id: str) -> None:
        """Ends a transaction without effect. Does nothing where it was rolled back before."""
        if self._find(txn_id).state not in {TxnState.ROLLED_BACK, TxnState.EXPIRED}:
            self._roll_back(self._find_open(txn_id), TxnState.ROLLED_BACK)

    def renew(self, txn_id: str) -> float:
        """Starts a transaction's lease anew; returns its seconds."""
        return self._find_open(txn_id).lease.seconds

    # Deliveries: takes that one stream owns, and that end with it.

    async def lend(self, wish: Wish) -> Transaction:
        """Takes events as soon as there are any, however long that lasts."""
        batches: list[StoredBatch] = []
        try:
            with self.contents.takers.place() as place:
                while True:
                    self._refuse_new()
                    self.claims.refuse_if_claimed()
                    self._refuse_one_more()
                    batches = self.contents.take(self._portion(wish, self.config.transaction_capacity))
                    if batches:
                        break
                    await place.wait(_FOREVER_SECONDS)
        finally:
            self._count_take_attempts(batches)
        loan = Transaction("", _FOREVER_SECONDS, self._expire)
        loan.add_takes(batches)
        self._loans.add(loan)
        self._count_open(1)
        return loan

    def settle(self, loan: Transaction) -> None:
        """Removes what was lent."""
        if loan in self._loans:
            receipt = self.contents.apply(Change([], loan.takes, None, 0))
            self._end(loan, TxnState.COMMITTED, receipt)

    def give_back(self, loan: Transaction) -> None:
        """Returns what was lent to its place."""
        if loan in self._loans:
            self._roll_back(loan, TxnState.ROLLED_BACK)

    # Operations.

    def parts(self, batch: StoredBatch, form: Form) -> Iterator[StoredBatch]:
        """A batch in parts that each fit an answer; most often in one."""
        start = 0
        while start < batch.count:
            rest = batch.part(start, batch.count)
            count = PortionMeter(self._portion(Wish(form=form), rest.count)).admit(rest)
            yield rest.part(0, count)
            start += count

    def claim(self, reader_id: str, lease_seconds: float | None, *, takeover: bool) -> Claim:
        """Gives the channel to a reader, or renews its claim; see `ClaimDesk.grant`."""
        self._refuse_new()
        return self.claims.grant(reader_id, lease_seconds or self.config.lease_seconds, takeover=takeover)

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
        self.config = config
        return ""

    def enforce(self, config: ChannelConfig) -> None:
        """Puts a configuration in force at once; what the channel holds may be above its limits."""
        self.config = config
        self.contents.room.resize(config.capacity, config.body_bytes_max)

    def drain(self) -> None:
        """Begins nothing new from now on; what is open may end."""
        self._is_draining = True
        self.contents.takers.wake_all()

    def delete(self) -> None:
        """Ends everything; whoever waits or comes later is told that the channel is not there."""
        self.contents.close()
        self.claims.end()
        for txn in [*self._open.values(), *self._loans]:
            self._end(txn, TxnState.ROLLED_BACK, None)
        for txn_id in self._ended:
            self._directory.remove(txn_id)
        self._ended.clear()

    # The ways of a transaction.

    def _find(self, txn_id: str) -> Transaction:
        self.contents.refuse_if_closed()
        txn = self._open.get(txn_id) or self._ended.get(txn_id)
        if txn is None:
            raise TxnNotFoundError("no transaction of this id is known in the channel", txn_id=txn_id)
        return txn

    def _find_open(self, txn_id: str) -> Transaction:
        """The open transaction, whose lease starts anew."""
        txn = self._find(txn_id)
        txn.refuse_unless_open()
        txn.lease.renew()
        return txn

    def _expire(self, txn: Transaction) -> None:
        self.contents.counters.leases_expired += 1
        self._roll_back(txn, TxnState.EXPIRED)

    def _roll_back(self, txn: Transaction, state: TxnState) -> None:
        takes = txn.takes
        self._end(txn, state, None)
        self.contents.put_back(takes)

    def _end(self, txn: Transaction, state: TxnState, receipt: Receipt | None) -> None:
        self._open_body_bytes -= txn.put_body_bytes
        txn.end(state, receipt)
        if txn.lease.waiting_calls:
            # Calls of it that wait are to be told at once, and not to keep others waiting behind them.
            self.contents.takers.wake_all()
            self.contents.room.line.wake_all()
        self._count_open(-1)
        if state is TxnState.COMMITTED:
            self.contents.counters.commits += 1
        else:
            self.contents.counters.rollbacks += 1
        if txn in self._loans:
            self._loans.remove(txn)
            return
        del self._open[txn.txn_id]
        self._ended[txn.txn_id] = txn
        if len(self._ended) > ENDED_MAX:
            forgotten, _ = self._ended.popitem(last=False)
            self._directory.remove(forgotten)

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

    def _refuse_too_large(self, batches: Sequence[StoredColumns]) -> None:
        body_bytes_max = self.config.body_bytes_max
        for stored in batches:
            # No body is larger than all of them together, which is known without a look at any.
            if stored.body_bytes > body_bytes_max and stored.largest_body_bytes > body_bytes_max:
                raise EventTooLargeError(
                    f"events: a body has {stored.largest_body_bytes} bytes; the channel holds {body_bytes_max} in all"
                )
            if (index := stored.first_index_above(self._answer_bytes_max)) is not None:
                raise EventTooLargeError(
                    f"events[{index}]: with its headers it would not fit an answer, which holds "
                    f"{self._answer_bytes_max} bytes"
                )

    def _refuse_too_many(self, put_count: int) -> None:
        if put_count > self.config.transaction_capacity:
            raise TxnCapacityError(
                f"the transaction would put {put_count} events; transaction_capacity is "
                f"{self.config.transaction_capacity}"
            )

    def _refuse_too_many_bytes(self, body_bytes: int) -> None:
        if body_bytes > self.config.body_bytes_max:
            raise TxnCapacityError(
                f"the transaction would put {body_bytes} body bytes; the channel holds {self.config.body_bytes_max}"
            )

    def _refuse_crowding(self, body_bytes: int) -> None:
        """Bounds what transactions hold that nobody may ever commit; it is counted apart from what is committed."""
        if self._open_body_bytes + body_bytes > self.config.body_bytes_max:
            raise BytesFullError(
                f"open transactions hold {self._open_body_bytes} body bytes, and {body_bytes} more are above what the "
                f"channel holds, {self.config.body_bytes_max}; put again when some have ended",
                retry_delay_seconds=_CROWDED_RETRY_DELAY_SECONDS,
            )

    def _portion(self, wish: Wish, events_max: int) -> Portion:
        answer_bytes_max = self._answer_bytes_max
        if wish.form is Form.ROWS:
            # Rows are made one by one, and meanwhile nobody else is served: so an answer in rows is a small one.
            events_max = min(events_max, _ROWS_MAX)
            answer_bytes_max = min(answer_bytes_max, _ROWS_BYTES_MAX)
        return Portion(
            events_max=min(wish.events_max or events_max, events_max),
            body_bytes_max=wish.body_bytes_max or _UNLIMITED_BYTES,
            answer_bytes_max=answer_bytes_max,
            form=wish.form,
        )


def _draining() -> DrainingError:
    return DrainingError("the server is stopping and begins nothing new; go to another or come back later")


def _without_first(count: int, batches: Sequence[StoredColumns]) -> Iterator[Window]:
    """Windows on all events but the first `count`."""
    for stored in batches:
        skipped = min(count, stored.count)
        count -= skipped
        if skipped < stored.count:
            yield Window.whole(stored).part(skipped, stored.count)
