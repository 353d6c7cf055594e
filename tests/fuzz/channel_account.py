"""The expected behaviour of a channel, in plain lists and dicts.

An account responses each call according to the contract, one call after the other, and keeps whole events where the
channel keeps windows on columns. Calls that may wait are first examined without effect, any number of times.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any

from millrace_server.channels.commit import Receipt
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.contents import ChannelCounters
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import (
    BadArgumentError,
    BytesFullError,
    ChannelClaimedError,
    ChannelFullError,
    EventTooLargeError,
    LeaseExpiredError,
    MillraceError,
    NotClaimedError,
    OffsetGapError,
    ProducerNotFoundError,
    SequenceGoneError,
    StaleEpochError,
    TooManyTxnsError,
    TxnCapacityError,
    TxnNotFoundError,
    TxnsOpenError,
    TxnStateError,
)

Event = tuple[int, bytes]

FOREVER = float("inf")


class RefusedError(Exception):
    """Raised when the contract refuses a call; contains the error."""

    def __init__(self, kind: type[MillraceError]) -> None:
        super().__init__(kind)
        self.kind = kind


@dataclass(eq=False)
class ExpectedTxn:
    """A transaction, or a delivery."""

    lease: float = FOREVER
    deadline: float = FOREVER
    state: str = "open"
    puts: list[bytes] = field(default_factory=list)
    takes: list[Event] = field(default_factory=list)
    waiting_calls: int = 0
    receipt: Receipt | None = None


@dataclass
class ExpectedClaim:
    """The active claim."""

    reader_id: str
    epoch: int
    lease: float
    deadline: float
    lasting_lease: float
    """The lease with which it began, and which restarts after a restart of the server."""


@dataclass
class Look:
    """The effect that a call that may wait would have now.

    Attributes:
        outcome: Its response: a value, or the type of an error.
        effect: The change that it makes.
        is_wait: It would continue to wait; `outcome` is its response at the timeout.
        in_turn: It may proceed only in its turn, since it takes what others wait for.
    """

    outcome: Any
    effect: Callable[[], object] = lambda: None
    is_wait: bool = False
    in_turn: bool = False


class Account:
    """The expected state of a channel."""

    def __init__(self, limits: ChannelConfig, foreign_ids: Iterable[str], ended_max: int, epoch: int) -> None:
        self.limits = limits
        self.foreign_ids = set(foreign_ids)
        self.ended_max = ended_max
        self.now = 0.0
        self.queue: list[Event] = []
        self.consumed: list[Event] = []
        self.next_sequence = 1
        self.times: dict[int, int] = {}
        """The commit time of each sequence."""
        self.clock: Callable[[], int] = lambda: micros_at(self.now)
        self.open: dict[str, ExpectedTxn] = {}
        self.ended: dict[str, ExpectedTxn] = {}
        self.deliveries: list[ExpectedTxn] = []
        self.stamps: dict[str, set[int]] = {}
        self.claim: ExpectedClaim | None = None
        self.last_claim: ExpectedClaim | None = None
        self.epoch = epoch
        self.revoked_epoch, self.last_forgotten = -1, ""
        self.counters = ChannelCounters()

    @property
    def held(self) -> list[Event]:
        """The events that occupy space: queued, or taken by open transactions."""
        return self.queue + self.taken

    @property
    def held_bytes(self) -> int:
        return byte_count(body for _, body in self.held)

    @property
    def taken(self) -> list[Event]:
        return [event for txn in (*self.open.values(), *self.deliveries) for event in txn.takes]

    @property
    def open_put_bytes(self) -> int:
        return sum(byte_count(txn.puts) for txn in self.open.values())

    @property
    def open_count(self) -> int:
        return len(self.open) + len(self.deliveries)

    @property
    def first_sequence(self) -> int:
        return self.queue[0][0] if self.queue else self.next_sequence

    # Time.

    def pass_time(self, now: float) -> None:
        """Ends everything whose lease expires without a call."""
        expired = [item for item in self.open.items() if not item[1].waiting_calls and item[1].deadline <= now]
        for txn_id, txn in sorted(expired, key=lambda item: item[1].deadline):
            self.counters.leases_expired += 1
            self._roll_back(txn_id, txn, "expired")
        if self.claim and self.claim.deadline <= now:
            self.claim = None
        self.now = now

    def touch(self, txn_ids: Sequence[str], *, has_waited: bool) -> None:
        """Renews leases: up to the first transaction that is not open, but all after a wait."""
        for txn_id in txn_ids:
            if txn := self.open.get(txn_id):
                txn.deadline = self.now + txn.lease
            elif not has_waited:
                return

    # Transactions.

    def begin(self, txn_id: str, lease: float) -> tuple[str, float]:
        if txn := self.open.get(txn_id):
            return txn_id, txn.lease
        if txn_id in self.ended:
            raise RefusedError(TxnStateError)
        self._refuse_one_more()
        if txn_id in self.foreign_ids:
            raise RefusedError(TxnStateError)
        self.open[txn_id] = ExpectedTxn(lease, self.now + lease)
        return txn_id, lease

    def find_open(self, txn_id: str) -> ExpectedTxn:
        if txn := self.open.get(txn_id):
            return txn
        if ended := self.ended.get(txn_id):
            raise RefusedError(LeaseExpiredError if ended.state == "expired" else TxnStateError)
        raise RefusedError(TxnNotFoundError)

    def put(self, txn_id: str, bodies: Sequence[bytes], offset: int | None) -> int:
        self.counters.put_attempts += len(bodies)
        txn = self.find_open(txn_id)
        offset = len(txn.puts) if offset is None else offset
        if offset > len(txn.puts):
            raise RefusedError(OffsetGapError)
        known = len(txn.puts) - offset
        if known >= len(bodies):
            return len(txn.puts)
        puts = txn.puts + list(bodies[known:])
        self._refuse_too_many(puts)
        self._refuse_too_large(bodies)
        self._refuse_too_many_bytes(puts)
        held = sum(byte_count(open_txn.puts) for open_txn in self.open.values())
        if held + byte_count(bodies[known:]) > self.limits.body_bytes_max:
            raise RefusedError(BytesFullError)
        txn.puts = puts
        return len(puts)

    def look_take(self, txn_id: str, events_max: int, bytes_max: int, offset: int | None) -> Look:
        txn = self.find_open(txn_id)
        has = len(txn.takes)
        if offset is not None and offset > has:
            raise RefusedError(OffsetGapError)
        if offset is not None and offset < has:
            again = first_within(txn.takes[offset:], events_max, bytes_max)
            return Look((again, offset + len(again)))
        left = self.limits.transaction_capacity - has
        if left <= 0:
            raise RefusedError(TxnCapacityError)
        self._refuse_if_claimed()
        events = first_within(self.queue, min(events_max or left, left), bytes_max)
        return Look((events, has + len(events)), lambda: self._take(txn, events), is_wait=not events, in_turn=True)

    def look_commit(self, txn_ids: Sequence[str], stamp: Stamp | None) -> Look:
        if len(set(txn_ids)) < len(txn_ids):
            raise RefusedError(BadArgumentError)
        receipts = [self.ended[txn_id].receipt for txn_id in txn_ids if txn_id in self.ended]
        if len(receipts) == len(txn_ids) and receipts[0] and all(one is receipts[0] for one in receipts):
            return Look(receipts[0])
        txns = {txn_id: self.find_open(txn_id) for txn_id in txn_ids}
        takes = [event for txn in txns.values() for event in txn.takes]
        look = self._look_store([body for txn in txns.values() for body in txn.puts], takes, stamp)
        if look.is_wait:
            return look

        def commit() -> None:
            for txn_id, txn in txns.items():
                self._end(txn_id, txn, "committed", look.outcome)
            look.effect()

        return replace(look, effect=commit)

    def look_append(self, bodies: Sequence[bytes], stamp: Stamp | None) -> Look:
        look = self._look_store(bodies, [], stamp)

        def append() -> None:
            self.counters.commits += 1
            look.effect()

        return look if look.is_wait else replace(look, effect=append)

    def refuse_append(self, bodies: Sequence[bytes]) -> None:
        """Refuses an append on arrival; these limits are not checked again while it waits."""
        self.counters.put_attempts += len(bodies)
        self._refuse_too_many(bodies)
        self._refuse_too_large(bodies)
        self._refuse_too_many_bytes(bodies)

    def rollback(self, txn_id: str) -> None:
        if txn_id in self.ended and self.ended[txn_id].state in {"rolled back", "expired"}:
            return
        self._roll_back(txn_id, self.find_open(txn_id), "rolled back")

    # Deliveries.

    def look_lend(self, events_max: int) -> Look:
        self._refuse_if_claimed()
        self._refuse_one_more()
        most = self.limits.transaction_capacity
        events = first_within(self.queue, min(events_max or most, most), 0)

        def deliver() -> None:
            delivery = ExpectedTxn()
            self.deliveries.append(delivery)
            self._take(delivery, events)

        return Look(events, deliver, is_wait=not events, in_turn=True)

    def settle(self, delivery: ExpectedTxn) -> None:
        if delivery in self.deliveries:
            self.deliveries.remove(delivery)
            self.counters.commits += 1
            self._consume(delivery.takes)

    def nack(self, delivery: ExpectedTxn) -> None:
        if delivery in self.deliveries:
            self.deliveries.remove(delivery)
            self.counters.rollbacks += 1
            self.queue = sorted(self.queue + delivery.takes)

    # Operations.

    def look_update(self, limits: ChannelConfig) -> Look:
        fits = len(self.held) <= limits.capacity and self.held_bytes <= limits.body_bytes_max
        return Look(fits, lambda: setattr(self, "limits", limits), is_wait=not fits, in_turn=True)

    def purge(self) -> int:
        purged, self.queue = self.queue, []
        self.consumed += purged
        return len(purged)

    def forget(self, producer_id: str) -> None:
        if self.stamps.pop(producer_id, None) is None and producer_id != self.last_forgotten:
            raise RefusedError(ProducerNotFoundError)
        self.last_forgotten = producer_id

    def expired(self, limit: int) -> list[Event]:
        """The queued events before the first that was committed at the limit or later."""
        old = list(takewhile(lambda event: self.times[event[0]] < limit, self.queue))
        # Events without a time are as old as the next that has one.
        return old if any(self.times[sequence] for sequence, _ in old) else []

    # Claims.

    def grant(self, reader_id: str, lease: float, *, takeover: bool) -> int:
        lasting_lease = lease
        if self.claim and not takeover:
            if self.claim.reader_id != reader_id:
                raise RefusedError(ChannelClaimedError)
            lasting_lease = self.claim.lasting_lease
        elif self.taken:
            raise RefusedError(TxnsOpenError)
        else:
            self.epoch += 1
        self.claim = self.last_claim = ExpectedClaim(reader_id, self.epoch, lease, self.now + lease, lasting_lease)
        return self.epoch

    def read(self, reader_id: str, epoch: int | None, from_sequence: int, to_sequence: int) -> list[Event]:
        self._require(reader_id, epoch)
        if 0 < to_sequence < from_sequence:
            raise RefusedError(BadArgumentError)
        first, end = from_sequence or self.first_sequence, to_sequence or self.next_sequence
        if max(first, end) > self.next_sequence or (first != end and min(first, end) < self.first_sequence):
            raise RefusedError(SequenceGoneError)
        return [event for event in self.queue if first <= event[0] < end]

    def acknowledge(self, reader_id: str, epoch: int | None, through_sequence: int) -> int:
        self._require(reader_id, epoch)
        if through_sequence >= self.next_sequence:
            raise RefusedError(SequenceGoneError)
        self._consume([event for event in self.queue if event[0] <= through_sequence])
        self.queue = [event for event in self.queue if event[0] > through_sequence]
        return self.first_sequence

    def release(self, reader_id: str, epoch: int | None) -> None:
        self._require(reader_id, epoch)
        self.claim = None

    def revoke(self, epoch: int | None) -> None:
        if epoch == self.revoked_epoch:
            return
        if epoch not in {None, self.epoch}:
            raise RefusedError(StaleEpochError)
        if self.claim is None:
            raise RefusedError(NotClaimedError)
        self.claim = None
        self.revoked_epoch = self.epoch
        self.epoch += 1

    def _require(self, reader_id: str, epoch: int | None) -> None:
        if epoch not in {None, self.epoch}:
            raise RefusedError(StaleEpochError)
        if self.claim is None:
            raise RefusedError(NotClaimedError)
        if self.claim.reader_id != reader_id:
            raise RefusedError(ChannelClaimedError)
        self.claim.deadline = self.now + self.claim.lease

    # Restarts.

    def restart(self) -> None:
        """Open transactions are dropped; the lease of an active claim starts again; repeats are not known any more."""
        self.revoked_epoch, self.last_forgotten = -1, ""
        self.queue = sorted(self.held)
        self.open.clear()
        self.deliveries.clear()
        if self.claim:
            self.claim.lease = self.claim.lasting_lease
            self.claim.deadline = self.now + self.claim.lease
        self.counters = ChannelCounters()

    def restore(
        self,
        events: Iterable[Event],
        next_sequence: int,
        stamps: Mapping[str, Iterable[int]],
        ended: Mapping[str, tuple[str, Receipt | None]],
        claim: tuple[str, int] | None,
    ) -> None:
        """Starts with the state of a channel that was just opened."""
        self.queue = list(events)
        self.next_sequence = next_sequence
        self.stamps = {producer_id: set(numbers) for producer_id, numbers in stamps.items()}
        receipts: dict[Receipt, Receipt] = {}
        for txn_id, (state, receipt) in ended.items():
            # Only transactions that were committed together have the same receipt, unless it stored nothing.
            shared = receipts.setdefault(receipt, receipt) if receipt and receipt.first_sequence else receipt
            self.ended[txn_id] = ExpectedTxn(state=state, receipt=shared)
        if claim:
            self.claim = self.last_claim = ExpectedClaim(*claim, FOREVER, FOREVER, FOREVER)

    # Common parts of calls.

    def _look_store(self, bodies: Sequence[bytes], takes: Sequence[Event], stamp: Stamp | None) -> Look:
        stored = self._new(bodies, stamp)
        if len(stored) > self.limits.capacity or byte_count(stored) > self.limits.body_bytes_max:
            raise RefusedError(TxnCapacityError)
        more_events = len(stored) - len(takes)
        more_bytes = byte_count(stored) - byte_count(body for _, body in takes)
        if more_events > 0 and len(self.held) + more_events > self.limits.capacity:
            return Look(ChannelFullError, is_wait=True)
        if more_bytes > 0 and self.held_bytes + more_bytes > self.limits.body_bytes_max:
            return Look(BytesFullError, is_wait=True)
        is_deduplicated = len(stored) < len(bodies)
        first = self.next_sequence
        time = self.clock()
        receipt = (
            Receipt(first, first + len(stored) - 1, is_deduplicated, time)
            if stored
            else Receipt(0, 0, is_deduplicated, 0 if is_deduplicated else time)
        )

        def store() -> None:
            self.queue += enumerate(stored, start=first)
            self.next_sequence += len(stored)
            self.times |= dict.fromkeys(range(first, self.next_sequence), time)
            self.counters.put_successes += len(stored)
            self.counters.deduplicated += len(bodies) - len(stored)
            self._consume(takes)
            if stamp:
                self.stamps.setdefault(stamp.producer_id, set()).update(range(stamp.first, stamp.last + 1))

        return Look(receipt, store, in_turn=more_events > 0 or more_bytes > 0)

    def _new(self, bodies: Sequence[bytes], stamp: Stamp | None) -> list[bytes]:
        """The events that the stamp does not show to be stored already."""
        if stamp is None:
            return list(bodies)
        numbers = range(stamp.first, stamp.last + 1)
        known = self.stamps.get(stamp.producer_id, set())
        if len(numbers) == len(bodies):
            return [body for number, body in zip(numbers, bodies, strict=True) if number not in known]
        if known.issuperset(numbers):
            return []
        if known.intersection(numbers):
            raise RefusedError(BadArgumentError)
        return list(bodies)

    def _take(self, txn: ExpectedTxn, events: Sequence[Event]) -> None:
        txn.takes = txn.takes + list(events)
        self.queue = self.queue[len(events) :]

    def _consume(self, events: Sequence[Event]) -> None:
        self.consumed += events
        self.counters.take_successes += len(events)

    def _roll_back(self, txn_id: str, txn: ExpectedTxn, state: str) -> None:
        self.queue = sorted(self.queue + txn.takes)
        self._end(txn_id, txn, state, None)

    def _end(self, txn_id: str, txn: ExpectedTxn, state: str, receipt: Receipt | None) -> None:
        if state == "committed":
            self.counters.commits += 1
        else:
            self.counters.rollbacks += 1
        txn.state, txn.receipt = state, receipt
        del self.open[txn_id]
        self.ended[txn_id] = txn
        if len(self.ended) > self.ended_max:
            del self.ended[next(iter(self.ended))]

    def _refuse_if_claimed(self) -> None:
        if self.claim:
            raise RefusedError(ChannelClaimedError)

    def _refuse_one_more(self) -> None:
        if self.open_count >= self.limits.open_transactions_max:
            raise RefusedError(TooManyTxnsError)

    def _refuse_too_large(self, bodies: Sequence[bytes]) -> None:
        if any(len(body) > self.limits.body_bytes_max for body in bodies):
            raise RefusedError(EventTooLargeError)

    def _refuse_too_many(self, puts: Sequence[bytes]) -> None:
        if len(puts) > self.limits.transaction_capacity:
            raise RefusedError(TxnCapacityError)

    def _refuse_too_many_bytes(self, puts: Sequence[bytes]) -> None:
        if byte_count(puts) > self.limits.body_bytes_max:
            raise RefusedError(TxnCapacityError)


def micros_at(seconds: float) -> int:
    """The wall clock at a moment of a virtual clock, in microseconds."""
    return 1_790_000_000_000_000 + int(seconds * 1_000_000)


def byte_count(bodies: Iterable[bytes]) -> int:
    """The bytes of bodies."""
    return sum(map(len, bodies))


def first_within(events: Sequence[Event], events_max: int, bytes_max: int) -> list[Event]:
    """The first events within limits, 0 meaning no limit; a first event that is too large is returned alone."""
    chosen: list[Event] = []
    for event in events[: events_max or None]:
        if chosen and bytes_max and byte_count(body for _, body in (*chosen, event)) > bytes_max:
            break
        chosen.append(event)
    return chosen
