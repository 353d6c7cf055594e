"""Events that are held aside while others behind them are taken."""

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Self

from millrace_client.channel import Channel
from millrace_client.errors import MillraceError, TxnCapacityError
from millrace_client.events import Batch
from millrace_client.transaction import Transaction

HELD_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of bodies that one take brings."""

_RENEWALS_A_LEASE = 3


class DisturbedError(Exception):
    """Returned when somebody else takes from the channel or returns events to it, so that it is not as it was seen."""


class LeaseKeeper:
    """Renews a transaction's lease long before it ends."""

    def __init__(self, txn: Transaction, clock: Callable[[], float] = time.monotonic) -> None:
        self._txn = txn
        self._clock = clock
        self._renewed_at = clock()

    def renew_if_due(self) -> None:
        """Renews the lease where a third of it has passed."""
        lease_seconds = self._txn.lease_seconds
        if lease_seconds is not None and self._clock() - self._renewed_at >= lease_seconds / _RENEWALS_A_LEASE:
            self._txn.renew()
            self._renewed_at = self._clock()


class Holding:
    """Takes the oldest events of a channel out of the way; when its block is left they return to their places.

    A take always gives the oldest events, and a transaction commits all that it took. So whoever wants to take some
    and leave others must have somebody hold the others meanwhile. They are never committed: whatever happens, they are
    back when the block or their leases end.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._passed_count = 0
        self._passed_last = 0
        self._open: list[tuple[Transaction, LeaseKeeper]] = []
        self._ends = ExitStack()

    def pass_by(self, count: int, last_sequence: int) -> None:
        """Remembers events that are to be held before any behind them is taken.

        Args:
            count: How many: the oldest ones behind those that were passed by before.
            last_sequence: The last of them.
        """
        self._passed_count += count
        self._passed_last = last_sequence

    def forget(self) -> None:
        """Forgets those that were passed by and are not held: the queue is looked at again."""
        self._passed_count = 0

    def hold(self) -> None:
        """Takes those that were passed by.

        Raises:
            DisturbedError: Others are there now.
        """
        while self._passed_count > 0:
            self.renew_if_due()
            batches = self._take(self._passed_count)
            if not batches:
                # Somebody else has taken them, and so they are out of the way too.
                self._passed_count = 0
                return
            if batches[-1].last_sequence > self._passed_last:
                raise DisturbedError
            self._passed_count -= sum(map(len, batches))

    def renew_if_due(self) -> None:
        """Keeps what is held from returning early."""
        for _, lease in self._open:
            lease.renew_if_due()

    def _take(self, count: int) -> list[Batch]:
        if self._open:
            try:
                return self._open[-1][0].take(max_events=count, max_bytes=HELD_BYTES_MAX, wait_seconds=0)
            except TxnCapacityError:
                # It holds all that it may; the next one goes on.
                pass
        txn = self._channel.transaction().begin()
        self._ends.callback(_give_back, txn)
        self._open.append((txn, LeaseKeeper(txn)))
        return txn.take(max_events=count, max_bytes=HELD_BYTES_MAX, wait_seconds=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._ends.close()


def _give_back(txn: Transaction) -> None:
    # Where the server cannot be reached, or has ended it before, the events return by themselves.
    with suppress(MillraceError):
        txn.rollback()
