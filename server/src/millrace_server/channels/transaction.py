"""One transaction: its puts and takes, and its outcome."""

import enum
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Never

from millrace_server.channels.activity import OpenTransaction, Origin
from millrace_server.channels.batches import StoredBatch, Window
from millrace_server.channels.commit import Commit, Receipt
from millrace_server.channels.leases import Lease
from millrace_server.errors import LeaseExpiredError, OffsetGapError, TooManyTxnsError, TxnStateError

ENDED_MAX = 10_000
"""Ended transactions that a channel remembers."""


class TxnState(enum.Enum):
    """Moves; any other is illegal.

    OPEN -> COMMITTED      commit(), once there is space for the puts, and they are durable
    OPEN -> ROLLED_BACK    rollback()
    OPEN -> EXPIRED        rolled back because the lease ran out
    """

    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    EXPIRED = "expired"


_MOVES = {
    (TxnState.OPEN, TxnState.COMMITTED),
    (TxnState.OPEN, TxnState.ROLLED_BACK),
    (TxnState.OPEN, TxnState.EXPIRED),
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a transaction ended; `receipt` is None where it was not committed."""

    state: TxnState
    receipt: Receipt | None = None
    owner: str = ""
    """The identity that began it; empty without authentication, and after a restart."""

    def refuse(self, txn_id: str) -> Never:
        """Raises the error for a call on an ended transaction."""
        if self.state is TxnState.EXPIRED:
            raise LeaseExpiredError(
                "the transaction's lease expired, and it was rolled back; begin a new one", txn_id=txn_id
            )
        raise TxnStateError(f"the transaction is {self.state.value} already", txn_id=txn_id)


class EndedTxns:
    """The outcomes of the last transactions of a channel; the oldest are forgotten."""

    def __init__(self) -> None:
        self._outcomes: OrderedDict[str, Outcome] = OrderedDict()

    def __iter__(self) -> Iterator[str]:
        return iter(self._outcomes)

    def add(self, txn_id: str, outcome: Outcome) -> str | None:
        """Remembers an outcome; returns the id of a transaction that is forgotten for it, if any."""
        self._outcomes[txn_id] = outcome
        if len(self._outcomes) <= ENDED_MAX:
            return None
        forgotten, _ = self._outcomes.popitem(last=False)
        return forgotten

    def get(self, txn_id: str) -> Outcome | None:
        return self._outcomes.get(txn_id)

    def items(self) -> Iterator[tuple[str, Outcome]]:
        """Yields all outcomes, the oldest first."""
        return iter(self._outcomes.items())


class Transaction:
    """Puts and takes that happen together or not at all; while `committing`, only a repeat of the commit is allowed."""

    __slots__ = (
        "committing",
        "lease",
        "origin",
        "put_body_bytes",
        "put_count",
        "puts",
        "start_time",
        "state",
        "take_count",
        "takes",
        "txn_id",
    )

    def __init__(
        self,
        txn_id: str,
        lease_seconds: float,
        on_expired: "Callable[[Transaction], None]",
        origin: Origin = Origin(),  # noqa: B008 - immutable
    ) -> None:
        self.txn_id = txn_id
        self.origin = origin
        self.start_time = time.time()
        self.state = TxnState.OPEN
        self.committing: Commit | None = None
        self.lease = Lease(lease_seconds, partial(on_expired, self))
        self.puts: list[Window] = []
        self.put_count = 0
        self.put_body_bytes = 0
        self.takes: list[StoredBatch] = []
        self.take_count = 0

    def describe(self, channel: str, *, is_delivery: bool) -> OpenTransaction:
        return OpenTransaction(
            txn_id=self.txn_id,
            channel=channel,
            put_count=self.put_count,
            take_count=self.take_count,
            body_bytes=self.put_body_bytes + sum(batch.window.body_bytes for batch in self.takes),
            start_time=self.start_time,
            lease_remaining_seconds=None if is_delivery else self.lease.remaining_seconds,
            identity=self.origin.identity,
            peer=self.origin.peer,
            is_delivery=is_delivery,
        )

    def end(self, target: TxnState) -> None:
        assert (self.state, target) in _MOVES, (self.state, target)
        self.state = target
        self.puts = []
        self.takes = []
        self.lease.cancel()

    def begin_commit(self, commit: Commit) -> None:
        """Allows no changes until the commit has ended; the lease is paused in the meantime."""
        self.committing = commit
        self.lease.pause()

    def reopen(self) -> None:
        """Continues as before a commit that was aborted."""
        self.committing = None
        self.lease.resume()

    def add_puts(self, windows: Sequence[Window]) -> None:
        self.puts += windows
        self.put_count += sum(window.count for window in windows)
        self.put_body_bytes += sum(window.body_bytes for window in windows)

    def add_takes(self, batches: Sequence[StoredBatch]) -> None:
        self.takes += batches
        self.take_count += sum(batch.count for batch in batches)

    def put_count_from(self, put_offset: int | None) -> int:
        """Returns how many events were put from an offset on: a repeat, not to be put again."""
        return self._count_from("put_offset", put_offset, self.put_count)

    def take_count_from(self, take_offset: int | None) -> int:
        """Returns how many events were taken from an offset on: their response was lost, they are sent again."""
        return self._count_from("take_offset", take_offset, self.take_count)

    def _count_from(self, field: str, offset: int | None, count: int) -> int:
        if offset is None:
            return 0
        if offset > count:
            raise OffsetGapError(
                f"{field}: is {offset}; the transaction has {count}, and it must not be above that", txn_id=self.txn_id
            )
        return count - offset

    def last_taken(self, count: int) -> Iterator[StoredBatch]:
        skipped = self.take_count - count
        for batch in self.takes:
            if skipped < batch.count:
                yield batch.part(skipped, batch.count)
            skipped = max(skipped - batch.count, 0)

    def refuse_while_committing(self) -> None:
        if self.committing is not None:
            raise TxnStateError("the transaction is being committed", txn_id=self.txn_id)


class TxnLimit:
    """Counts open transactions against a maximum, a channel's or the server's."""

    def __init__(self, whose: str, maximum: Callable[[], int]) -> None:
        self._whose = whose
        self.maximum = maximum
        self.open_count = 0

    def count(self, change: int) -> None:
        self.open_count += change

    def refuse_if_reached(self) -> None:
        if self.open_count >= self.maximum():
            raise TooManyTxnsError(
                f"{self._whose} has {self.open_count} open transactions; at most {self.maximum()} are allowed",
                retry_delay_seconds=1.0,
            )
