"""A transaction, synchronously."""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from millrace.v1 import event_pb2
from millrace_client._call_sequences import TxnCalls, encoded_parts
from millrace_client._calls import TakeLimits
from millrace_client._connection import Connection
from millrace_client.events import Batch, Event, Receipt, Stamp, columns_of


class Transaction:
    """Puts and takes that commit or roll back together. For one thread at a time.

    As a context manager it begins with the block, commits when the block is left, and rolls back where it is left by an
    error, which goes on; what goes wrong in rolling back is a note of that error, never in its place. A commit that
    fails is rolled back too. A block that ended the transaction itself is left as it is.
    """

    def __init__(self, connection: Connection, channel: str, lease_seconds: float | None, txn_id: str) -> None:
        self._connection = connection
        self._sequences = TxnCalls(channel, txn_id, lease_seconds)

    @property
    def txn_id(self) -> str:
        """The transaction's id."""
        return self._sequences.txn_id

    @property
    def lease_seconds(self) -> float | None:
        """How long the transaction lives without a call; before it begins, what is asked for."""
        return self._sequences.lease_seconds

    @property
    def receipt(self) -> Receipt | None:
        """What the commit stored; None before it."""
        return self._sequences.receipt

    def begin(self) -> Self:
        """Opens the transaction; a `with` statement does so by itself."""
        self._connection.drive(self._sequences.begin())
        return self

    def put(self, events: Iterable[Event | bytes | str]) -> int:
        """Puts events, invisible to everybody until the commit.

        Returns:
            Events put into the transaction so far.

        Raises:
            TxnCapacityError: The transaction would hold too many. It stays usable, without these events.
            LeaseExpiredError: It was rolled back, because no call came for too long.
            TxnStateError: It has ended, or an earlier put failed in a way that leaves open what it holds.
        """
        return self._put(columns_of(events))

    def put_columns(self, columns: event_pb2.EventColumns) -> int:
        """Puts events that are in columns already, as `put` does, without touching any."""
        return self._put([columns])

    def _put(self, batches: list[event_pb2.EventColumns]) -> int:
        return self._connection.drive(self._sequences.put(encoded_parts(batches)))

    def take(self, max_events: int = 0, max_bytes: int = 0, wait_seconds: float | None = None) -> list[Batch]:
        """Takes events, oldest first; the commit removes them, a rollback returns them.

        Answers as soon as there is any event. Taking again after a failure brings what the lost answer held.

        Args:
            max_events: Most events. 0: as many as the transaction may still take.
            max_bytes: Most bytes of bodies; a first event that is larger comes alone. 0: no limit.
            wait_seconds: How long to wait for an event, at most 3,600. None: the channel's keep-alive; 0: not at all.

        Returns:
            Batches of contiguous sequences; none where no event came in time.

        Raises:
            TxnCapacityError: The transaction holds as many takes as it may.
            ChannelClaimedError: A reader has claimed the channel.
            LeaseExpiredError: The transaction was rolled back, because no call came for too long.
        """
        return self._connection.drive(self._sequences.take(TakeLimits(max_events, max_bytes, wait_seconds)))

    def renew(self) -> float:
        """Begins the lease anew, as every other call does too.

        Returns:
            The lease in seconds.
        """
        return self._connection.drive(self._sequences.renew())

    def commit(self, stamp: Stamp | None = None) -> Receipt:
        """Commits now. Waits for room up to the channel's keep-alive.

        Args:
            stamp: Makes what is stored repeatable beyond this transaction. None: only this commit is.

        Raises:
            ChannelFullError, BytesFullError: There was no room in time; the transaction stays open.
            LeaseExpiredError: It was rolled back, because no call came for too long.
            TxnStateError: It was rolled back, or a put or take failed in a way that leaves open what it holds.
        """
        return self._connection.drive(self._sequences.commit(stamp))

    def rollback(self) -> None:
        """Rolls back now: puts are dropped, taken events return to their places."""
        self._connection.drive(self._sequences.rollback())

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._connection.drive(self._sequences.leave(error))

    def __repr__(self) -> str:
        return f"<Transaction {self.txn_id} on {self._sequences.channel}>"
