"""A transaction, for threads."""

from collections.abc import Iterable
from typing import Self

from millrace.v1 import event_pb2
from millrace_client._call_sequences import TxnCalls, encoded_parts
from millrace_client._calls import TakeLimits
from millrace_client._connection import Connection
from millrace_client.events import Batch, Event, Receipt, Stamp, columns_of


class TransactionState:
    """The state of a transaction; base of both APIs' transactions."""

    def __init__(self, sequences: TxnCalls) -> None:
        self._sequences = sequences

    @property
    def txn_id(self) -> str:
        return self._sequences.txn_id

    @property
    def lease_seconds(self) -> float | None:
        """How long the transaction lives without a call; before it begins, the requested time."""
        return self._sequences.lease_seconds

    @property
    def receipt(self) -> Receipt | None:
        """The commit's receipt; None before the commit."""
        return self._sequences.receipt

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.txn_id} on {self._sequences.channel}>"


class Transaction(TransactionState):
    """Puts and takes that commit or roll back together. For one thread at a time.

    As a context manager it begins with the block, commits at its end, and rolls back if the block raises; an error of
    the rollback becomes a note of the block's error. A commit that fails is rolled back, too. If the block ended the
    transaction itself, nothing more happens.
    """

    def __init__(self, connection: Connection, channel: str, lease_seconds: float | None, txn_id: str) -> None:
        super().__init__(TxnCalls(channel, txn_id, lease_seconds))
        self._connection = connection

    def begin(self) -> Self:
        """Begins the transaction; a `with` statement does so automatically."""
        self._connection.drive(self._sequences.begin())
        return self

    def put(self, events: Iterable[Event | bytes | str]) -> int:
        """Puts events, which are invisible until the commit.

        Returns:
            The number of events put so far.

        Raises:
            TxnCapacityError: The transaction would hold too many events. It stays usable, without these events.
            LeaseExpiredError: The transaction was rolled back because its lease expired.
            TxnStateError: The transaction has ended, or it is unknown whether an earlier put was executed.
        """
        return self._put(columns_of(events))

    def put_columns(self, columns: event_pb2.EventColumns) -> int:
        """Puts events in columns, as `put` does, without touching single events."""
        return self._put([columns])

    def _put(self, batches: list[event_pb2.EventColumns]) -> int:
        return self._connection.drive(self._sequences.put(encoded_parts(batches)))

    def take(self, max_events: int = 0, max_bytes: int = 0, wait_seconds: float | None = None) -> list[Batch]:
        """Takes events, oldest first; the commit removes them, a rollback returns them.

        Returns as soon as there is an event. A take after a failed one returns the events of the lost response.

        Args:
            max_events: The maximum number of events. 0: as many as the transaction may still take.
            max_bytes: The maximum number of bytes of bodies; a larger first event is taken alone. 0: no limit.
            wait_seconds: How long to wait for an event, at most 3,600. None: the channel's keep-alive; 0: not at all.

        Returns:
            Batches of contiguous sequences; empty if there was no event in time.

        Raises:
            TxnCapacityError: The transaction already holds the most events that it may take.
            ChannelClaimedError: A reader has claimed the channel.
            LeaseExpiredError: The transaction was rolled back because its lease expired.
        """
        return self._connection.drive(self._sequences.take(TakeLimits(max_events, max_bytes, wait_seconds)))

    def renew(self) -> float:
        """Renews the lease, as every other call does; returns it in seconds."""
        return self._connection.drive(self._sequences.renew())

    def commit(self, stamp: Stamp | None = None) -> Receipt:
        """Commits now. Waits for space up to the channel's keep-alive.

        Args:
            stamp: Identifies the stored events beyond this transaction. None: only the commit is repeatable.

        Raises:
            ChannelFullError, BytesFullError: The channel had no space in time; the transaction stays open.
            LeaseExpiredError: The transaction was rolled back because its lease expired.
            TxnStateError: The transaction was rolled back, or it is unknown whether a put or take was executed.
        """
        return self._connection.drive(self._sequences.commit(stamp))

    def rollback(self) -> None:
        """Rolls back now: puts are dropped, and taken events return to their positions."""
        self._connection.drive(self._sequences.rollback())

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        self._connection.drive(self._sequences.leave(error))
