"""A channel, synchronously."""

from collections.abc import Iterable, Iterator, Sequence

from millrace.v1 import event_pb2
from millrace_client import _call_sequences, _calls
from millrace_client._calls import ConsumeLimits
from millrace_client._connection import Connection
from millrace_client._settings import new_txn_id
from millrace_client.claim import Claim
from millrace_client.consume import Deliveries
from millrace_client.events import Batch, Event, Receipt, Stamp, columns_of
from millrace_client.transaction import Transaction


class Channel:
    """A handle on one channel; makes no call by itself. Threads may share it."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._name

    def append(self, events: Iterable[Event | bytes | str], stamp: Stamp | None = None) -> Receipt:
        """Stores events: all of them or none. Waits for room up to the channel's keep-alive.

        Args:
            events: At least one; a string is stored as its UTF-8. As many as the channel's transaction capacity allows.
                What does not fit into one message, or has more than 256 different headers, is stored all the same, by
                way of a transaction.
            stamp: Makes the append repeatable by hand. None: the client takes its own next numbers, which make the
                repeats that gRPC does safe.

        Raises:
            ChannelFullError, BytesFullError: There was no room in time.
            TxnCapacityError: They are more than the channel takes at once.
            MillraceError: Anything else, such as ChannelNotFoundError. Where `is_outcome_known` is false the events may
                be stored all the same.
        """
        return self._append(columns_of(events), stamp)

    def append_columns(self, columns: event_pb2.EventColumns, stamp: Stamp | None = None) -> Receipt:
        """Stores events that are in columns already, as `append` does, without touching any."""
        return self._append([columns], stamp)

    def _append(self, batches: list[event_pb2.EventColumns], stamp: Stamp | None) -> Receipt:
        numbering = self._connection.opened().numbering
        return self._connection.drive(_call_sequences.append(self._name, batches, stamp, numbering, new_txn_id()))

    def next_stamp(self, event_count: int) -> Stamp:
        """The next numbers of this client's own numbering, as `append` would take them; makes no call.

        With it an append can be repeated by hand, such as after a DeadlineError, and is stored once.
        """
        return self._connection.opened().numbering.next_stamp(self._name, event_count)

    def transaction(self, lease_seconds: float | None = None, txn_id: str | None = None) -> Transaction:
        """A transaction, for a `with` statement: begins with the block, commits at its end, rolls back on an error.

        Args:
            lease_seconds: How long the transaction lives without a call. None: as the channel says.
            txn_id: An id of the caller's own, 1 to 128 printable ASCII characters. None: the client makes one.
        """
        return Transaction(self._connection, self._name, lease_seconds, txn_id or new_txn_id())

    def commit(self, txn_ids: Sequence[str], stamp: Stamp | None = None) -> Receipt:
        """Commits transactions of this channel that were filled elsewhere, perhaps by several processes: all or none.

        What they put is stored in the order of their ids. A repeat gives the same receipt.

        Args:
            txn_ids: 1 to 1,000 transactions, none twice.
            stamp: Makes what is stored repeatable beyond these transactions. None: only this commit is.

        Raises:
            ChannelFullError, BytesFullError: There was no room in time; they stay open.
            TxnCapacityError: They would not fit the channel if it were empty; they stay open.
            LeaseExpiredError, TxnNotFoundError: One of them has ended; the others stay open.
        """
        return self._connection.run(_calls.commit(self._name, txn_ids, stamp))

    def rollback(self, txn_id: str) -> None:
        """Rolls back a transaction of this channel that was begun elsewhere; a repeat does nothing."""
        self._connection.run(_calls.rollback(self._name, txn_id))

    def consume(
        self, max_events: int = 0, max_bytes: int = 0, prefetch: int = 0, idle_seconds: float | None = None
    ) -> Deliveries:
        """Deliveries as events come, each to be acknowledged: `for delivery in channel.consume(): ...; delivery.ack()`.

        Leaving the loop by `break` or by an error ends the stream: acks are done, and what was not acknowledged returns
        to the channel. That happens in the background as soon as Python drops the iterator. To have it done when the
        next line runs, and to be told if it failed, use the deliveries as a context manager:
        `with channel.consume() as deliveries: for delivery in deliveries: ...`. Where the iterator has a name of its
        own, only that, or `close`, ends it while the name lives.

        Args:
            max_events: Most events of a delivery. 0: the channel's transaction capacity.
            max_bytes: Most bytes of bodies of a delivery; a first event that is larger comes alone. 0: no limit.
            prefetch: How many deliveries may be out and not acknowledged, at most 1,000. 0: 8.
            idle_seconds: End the loop when nothing has come for so long. None: wait for ever. A connection that dies
                meanwhile is noticed and raised.
        """
        limits = ConsumeLimits(max_events, max_bytes, prefetch, idle_seconds)
        return Deliveries(self._connection, self._name, limits)

    def claim(self, reader_id: str, lease_seconds: float | None = None, *, takeover: bool = False) -> Claim:
        """Claims the channel for a reader, now. In a `with` statement the claim is released when the block is left.

        Args:
            reader_id: Who reads: 1 to 128 printable ASCII characters. The same reader's living claim is renewed.
            lease_seconds: How long the claim lives without a call. None: as the channel says.
            takeover: End a living claim, another reader's or this reader's own, and begin a new epoch.

        Raises:
            ChannelClaimedError: Another reader has claimed it.
            TxnsOpenError: Open transactions have taken events.
        """
        grant = self._connection.run(_calls.claim(self._name, reader_id, lease_seconds, takeover=takeover))
        return Claim(self._connection, _call_sequences.ClaimCalls(self._name, reader_id, lease_seconds, grant))

    def read(
        self, reader_id: str, from_sequence: int = 0, to_sequence: int = 0, epoch: int | None = None
    ) -> Iterator[Batch]:
        """Reads a range of a channel that this reader has claimed, perhaps elsewhere. Calls when iterated.

        Args:
            reader_id: Who holds the claim.
            from_sequence: First, included. 0: the oldest that is not acknowledged.
            to_sequence: End, excluded. 0: all that is committed now.
            epoch: The claim's; refused where a newer one has begun. None: not checked.

        Raises:
            SequenceGoneError: A part of the range is acknowledged, or not there yet.
            NotClaimedError: The claim does not live.
        """
        return self._connection.stream(_calls.read(self._name, reader_id, from_sequence, to_sequence, epoch))

    def acknowledge(self, reader_id: str, through_sequence: int, epoch: int | None = None) -> int:
        """Removes all events up to a sequence, included, from a channel that this reader has claimed.

        Returns:
            The oldest sequence that is left; the next one to come where none is.
        """
        return self._connection.run(_calls.acknowledge(self._name, reader_id, through_sequence, epoch))

    def release(self, reader_id: str, epoch: int | None = None) -> None:
        """Ends this reader's claim; what is not acknowledged stays where it is."""
        self._connection.run(_calls.release(self._name, reader_id, epoch))

    def peek(self, from_sequence: int = 0, max_events: int = 0, *, follow: bool = False) -> Iterator[Batch]:
        """Shows events without taking them. Calls when iterated.

        Args:
            from_sequence: First to show. 0: the oldest in the queue, or with `follow` the next to be committed.
            max_events: Most events. 0: 10, or no limit with `follow`.
            follow: Go on with each event as it is committed, until the iterator is closed or dropped. Where it is
                slower than the channel, a batch's `skipped_events` says how many were left out before it.
        """
        return self._connection.stream(_calls.peek(self._name, from_sequence, max_events, follow=follow))

    def __repr__(self) -> str:
        return f"<Channel {self._name} of {self._connection.settings.endpoint}>"
