"""A channel, for threads."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from millrace.v1 import event_pb2
from millrace_client import _call_sequences, _calls
from millrace_client._calls import ConsumeLimits
from millrace_client._connection import Connection
from millrace_client._settings import new_txn_id
from millrace_client.claim import Claim
from millrace_client.consume import Deliveries
from millrace_client.events import Batch, Event, FoundSequence, Receipt, Stamp, columns_of
from millrace_client.transaction import Transaction


class Channel:
    """A handle on one channel. Creating it makes no call. Threads may share it."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    def append(self, events: Iterable[Event | bytes | str], stamp: Stamp | None = None) -> Receipt:
        """Stores events: all of them or none. Waits for space up to the channel's keep-alive.

        Args:
            events: At least one, at most the channel's transaction capacity; a string is stored as UTF-8. Events that
                do not fit into one message, or have more than 256 different headers, are stored in a transaction.
            stamp: Makes the append repeatable by the caller. None: the client uses its own next numbers, so that
                gRPC's repeats are safe.

        Raises:
            ChannelFullError, BytesFullError: The channel had no space in time.
            TxnCapacityError: There are more events than the channel accepts at once.
            MillraceError: Anything else, such as ChannelNotFoundError. If `is_outcome_known` is false, the events may
                be stored all the same.
        """
        return self._append(columns_of(events), stamp)

    def append_columns(self, columns: event_pb2.EventColumns, stamp: Stamp | None = None) -> Receipt:
        """Stores events in columns, as `append` does, without touching single events."""
        return self._append([columns], stamp)

    def _append(self, batches: list[event_pb2.EventColumns], stamp: Stamp | None) -> Receipt:
        numbering = self._connection.opened().numbering
        return self._connection.drive(_call_sequences.append(self._name, batches, stamp, numbering, new_txn_id()))

    def next_stamp(self, event_count: int) -> Stamp:
        """Returns the next numbers of this client, as `append` would use them; makes no call.

        With this stamp the caller can repeat an append, for example after a DeadlineError, and store it once.
        """
        return self._connection.opened().numbering.next_stamp(self._name, event_count)

    def transaction(self, lease_seconds: float | None = None, txn_id: str | None = None) -> Transaction:
        """Returns a transaction for a `with` statement: commits at the end of the block, rolls back on an error.

        Args:
            lease_seconds: How long the transaction lives without a call. None: the channel's default.
            txn_id: An id of the caller, 1 to 128 printable ASCII characters. None: the client creates one.
        """
        return Transaction(self._connection, self._name, lease_seconds, txn_id or new_txn_id())

    def commit(self, txn_ids: Sequence[str], stamp: Stamp | None = None) -> Receipt:
        """Commits transactions of this channel that other clients may have filled: all or none.

        Their events are stored in the order of `txn_ids`. A repeat returns the same receipt.

        Args:
            txn_ids: 1 to 1,000 different transactions.
            stamp: Identifies the stored events beyond these transactions. None: only the commit is repeatable.

        Raises:
            ChannelFullError, BytesFullError: The channel had no space in time; the transactions stay open.
            TxnCapacityError: The events would not fit even into an empty channel; the transactions stay open.
            LeaseExpiredError, TxnNotFoundError: One of the transactions has ended; the others stay open.
        """
        return self._connection.run(_calls.commit(self._name, txn_ids, stamp))

    def rollback(self, txn_id: str) -> None:
        """Rolls back a transaction of this channel that another client may have begun; a repeat does nothing."""
        self._connection.run(_calls.rollback(self._name, txn_id))

    def consume(
        self, max_events: int = 0, max_bytes: int = 0, prefetch: int = 0, idle_seconds: float | None = None
    ) -> Deliveries:
        """Returns deliveries as they arrive, each to be acknowledged.

            for delivery in channel.consume():
                ...
                delivery.ack()

        Leaving the loop by `break` or by an error ends the stream: acks take effect, and events that were not
        acknowledged return to the channel. That happens in the background when Python drops the iterator. To wait for
        it, and to see an error, use the deliveries as a context manager:
        `with channel.consume() as deliveries: for delivery in deliveries: ...`. An iterator that a variable refers to
        ends only by that or by `close`.

        Args:
            max_events: The maximum number of events of a delivery. 0: the channel's transaction capacity.
            max_bytes: The maximum number of bytes of bodies of a delivery; a larger first event is delivered alone. 0:
                no limit.
            prefetch: The maximum number of deliveries that are not acknowledged, at most 1,000. 0: 8.
            idle_seconds: End the loop when nothing was delivered for this long. None: wait forever. A broken connection
                is detected and raised in the meantime.
        """
        limits = ConsumeLimits(max_events, max_bytes, prefetch, idle_seconds)
        return Deliveries(self._connection, self._name, limits)

    def claim(self, reader_id: str, lease_seconds: float | None = None, *, takeover: bool = False) -> Claim:
        """Claims the channel for a reader, at once. A `with` statement releases the claim at the end of its block.

        Args:
            reader_id: The reader: 1 to 128 printable ASCII characters. Renews the same reader's claim, if it lives.
            lease_seconds: How long the claim lives without a call. None: the channel's default.
            takeover: End an active claim, of any reader, and begin a new epoch.

        Raises:
            ChannelClaimedError: Another reader has claimed it.
            TxnsOpenError: Open transactions have taken events.
        """
        grant = self._connection.run(_calls.claim(self._name, reader_id, lease_seconds, takeover=takeover))
        return Claim(self._connection, _call_sequences.ClaimCalls(self._name, reader_id, lease_seconds, grant))

    def read(
        self, reader_id: str, from_sequence: int = 0, to_sequence: int = 0, epoch: int | None = None
    ) -> Iterator[Batch]:
        """Reads a range of a channel that this reader has claimed, possibly in another process. Calls when iterated.

        Args:
            reader_id: The reader that holds the claim.
            from_sequence: The first sequence, inclusive. 0: the oldest that is not acknowledged.
            to_sequence: The end, exclusive. 0: everything committed now.
            epoch: The claim's epoch; refused if a newer claim exists. None: not checked.

        Raises:
            SequenceGoneError: A part of the range is acknowledged already, or not stored yet.
            NotClaimedError: The claim has ended.
        """
        return self._connection.stream(_calls.read(self._name, reader_id, from_sequence, to_sequence, epoch))

    def acknowledge(self, reader_id: str, through_sequence: int, epoch: int | None = None) -> int:
        """Removes all events up to a sequence, inclusive, from a channel that this reader has claimed.

        Returns:
            The oldest sequence that is left; the next sequence if none is left.
        """
        return self._connection.run(_calls.acknowledge(self._name, reader_id, through_sequence, epoch))

    def release(self, reader_id: str, epoch: int | None = None) -> None:
        """Ends this reader's claim; events that are not acknowledged keep their positions."""
        self._connection.run(_calls.release(self._name, reader_id, epoch))

    def find_sequence(self, time: datetime) -> FoundSequence:
        """Finds the first event that was committed at or after a time and is still in the channel, taken or not.

        Args:
            time: The time, with a time zone, by the server's clock.
        """
        return self._connection.run(_calls.find_sequence(self._name, time))

    def peek(
        self, from_sequence: int = 0, max_events: int = 0, *, follow: bool = False, since: datetime | None = None
    ) -> Iterator[Batch]:
        """Reads events without taking them. Calls when iterated.

        Args:
            from_sequence: The first sequence. 0: the oldest in the queue, or with `follow` the next to be committed.
            max_events: The maximum number of events. 0: 10, or no limit with `follow`.
            follow: Continue with each event as it is committed, until the iterator is closed or dropped. If the caller
                is slower than the channel, a batch's `skipped_events` counts the events left out before it.
            since: Only events that were committed at or after this time, which needs a time zone; not together with
                `from_sequence`. None: any time.
        """
        return self._connection.stream(_calls.peek(self._name, from_sequence, max_events, follow=follow, since=since))

    def __repr__(self) -> str:
        return f"<Channel {self._name} of {self._connection.settings.endpoint}>"
