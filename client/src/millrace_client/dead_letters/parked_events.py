"""Events that stay in a channel are parked in open transactions while events after them are taken."""

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Self

from millrace_client.channel import Channel
from millrace_client.errors import MillraceError, TxnCapacityError
from millrace_client.events import Batch
from millrace_client.transaction import Transaction

PARKED_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of bodies of one take."""

_RENEWALS_A_LEASE = 3


class QueueChangedError(Exception):
    """Raised when another client took events from the channel or returned events to it since it was read."""


class LeaseKeeper:
    """Renews a transaction's lease well before it expires."""

    def __init__(self, txn: Transaction, clock: Callable[[], float] = time.monotonic) -> None:
        self._txn = txn
        self._clock = clock
        self._renewed_at = clock()

    def renew_if_due(self) -> None:
        """Renews the lease once a third of it has passed."""
        lease_seconds = self._txn.lease_seconds
        if lease_seconds is not None and self._clock() - self._renewed_at >= lease_seconds / _RENEWALS_A_LEASE:
            self._txn.renew()
            self._renewed_at = self._clock()


class ParkedEvents:
    """Parks the oldest events of a channel; when its `with` block ends they return to their positions.

    A take always returns the oldest events, and a transaction commits everything that it took. So to take some events
    and leave others, the others must be parked in transactions of their own in the meantime. These are never committed:
    whatever happens, their events return when the block or their leases end.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._skipped_count = 0
        self._skipped_last = 0
        self._open: list[tuple[Transaction, LeaseKeeper]] = []
        self._ends = ExitStack()

    def skip(self, count: int, last_sequence: int) -> None:
        """Notes the next events, up to a sequence, to be parked before any event after them is taken."""
        self._skipped_count += count
        self._skipped_last = last_sequence

    def forget(self) -> None:
        """Forgets skipped events that are not parked: the queue is read again."""
        self._skipped_count = 0

    def park(self) -> None:
        """Parks the skipped events; raises QueueChangedError if the queue holds other events now."""
        while self._skipped_count > 0:
            self.renew_if_due()
            batches = self._take(self._skipped_count)
            if not batches:
                # Another client has taken them, so they are out of the way too.
                self._skipped_count = 0
                return
            if batches[-1].last_sequence > self._skipped_last:
                raise QueueChangedError
            self._skipped_count -= sum(map(len, batches))

    def renew_if_due(self) -> None:
        for _, lease in self._open:
            lease.renew_if_due()

    def _take(self, count: int) -> list[Batch]:
        if self._open:
            try:
                return self._open[-1][0].take(max_events=count, max_bytes=PARKED_BYTES_MAX, wait_seconds=0)
            except TxnCapacityError:
                # The transaction is full; another one continues.
                pass
        txn = self._channel.transaction().begin()
        self._ends.callback(_roll_back, txn)
        self._open.append((txn, LeaseKeeper(txn)))
        return txn.take(max_events=count, max_bytes=PARKED_BYTES_MAX, wait_seconds=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._ends.close()


def _roll_back(txn: Transaction) -> None:
    # If the server cannot be reached or has ended the transaction, the events return by themselves.
    with suppress(MillraceError):
        txn.rollback()
