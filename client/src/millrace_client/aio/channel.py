"""Channels, their transactions and claims, for asyncio."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from types import TracebackType
from typing import Self

from millrace.v1 import event_pb2
from millrace_client import _call_sequences, _calls
from millrace_client._call_sequences import ClaimCalls, TxnCalls, encoded_parts
from millrace_client._calls import ConsumeLimits, TakeLimits
from millrace_client._settings import new_txn_id
from millrace_client.aio._connection import Connection
from millrace_client.aio.consume import Deliveries
from millrace_client.claim import GrantedClaim
from millrace_client.events import Batch, Event, Receipt, Stamp, columns_of


class Transaction:
    """Puts and takes that commit or roll back together, for one task at a time; see `millrace_client.Transaction`."""

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

    async def begin(self) -> Self:
        """Opens the transaction; an `async with` statement does so by itself."""
        try:
            await self._connection.drive(self._sequences.begin())
        except asyncio.CancelledError:
            # It may have been opened all the same; nobody is left to end it, so this does.
            _ = self._connection.finish_apart(self._connection.drive(self._sequences.rollback()))
            raise
        return self

    async def put(self, events: Iterable[Event | bytes | str]) -> int:
        """Puts events; see `millrace_client.Transaction.put`."""
        return await self._put(columns_of(events))

    async def put_columns(self, columns: event_pb2.EventColumns) -> int:
        """Puts events that are in columns already, as `put` does, without touching any."""
        return await self._put([columns])

    async def _put(self, batches: list[event_pb2.EventColumns]) -> int:
        return await self._connection.drive(self._sequences.put(encoded_parts(batches)))

    async def take(self, max_events: int = 0, max_bytes: int = 0, wait_seconds: float | None = None) -> list[Batch]:
        """Takes events, oldest first; see `millrace_client.Transaction.take`."""
        return await self._connection.drive(self._sequences.take(TakeLimits(max_events, max_bytes, wait_seconds)))

    async def renew(self) -> float:
        """Begins the lease anew; returns it in seconds."""
        return await self._connection.drive(self._sequences.renew())

    async def commit(self, stamp: Stamp | None = None) -> Receipt:
        """Commits now; see `millrace_client.Transaction.commit`."""
        return await self._connection.drive(self._sequences.commit(stamp))

    async def rollback(self) -> None:
        """Rolls back now: puts are dropped, taken events return to their places."""
        await self._connection.drive(self._sequences.rollback())

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        # A task that is cancelled while it leaves must not leave the transaction, and what it has taken, to its lease.
        await asyncio.shield(self._connection.finish_apart(self._connection.drive(self._sequences.leave(error))))

    def __repr__(self) -> str:
        return f"<aio.Transaction {self.txn_id} on {self._sequences.channel}>"


class Claim(GrantedClaim):
    """One reader's exclusive right to a channel; see `millrace_client.Claim`. Released when its block is left."""

    def __init__(self, connection: Connection, sequences: ClaimCalls) -> None:
        super().__init__(sequences)
        self._connection = connection

    def read(self, from_sequence: int = 0, to_sequence: int = 0) -> AsyncGenerator[Batch]:
        """Reads a range, as often as one likes; see `millrace_client.Channel.read`."""
        call = _calls.read(self.channel, self.reader_id, from_sequence, to_sequence, self.epoch)
        return self._connection.stream(call)

    async def acknowledge(self, through_sequence: int) -> int:
        """Removes all events up to a sequence, included; see `millrace_client.Channel.acknowledge`."""
        call = _calls.acknowledge(self.channel, self.reader_id, through_sequence, self.epoch)
        return await self._connection.run(call)

    async def renew(self, wait_seconds: float = 0.0) -> float:
        """Begins the lease anew; see `millrace_client.Claim.renew`."""
        return await self._connection.drive(self._sequences.renew(wait_seconds))

    async def release(self) -> None:
        """Ends the claim; what is not acknowledged stays where it is."""
        await self._connection.drive(self._sequences.release())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self._connection.drive(self._sequences.leave(error))


class Channel:
    """A handle on one channel; makes no call by itself. See `millrace_client.Channel`."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    @property
    def name(self) -> str:
        """The channel's name."""
        return self._name

    async def append(self, events: Iterable[Event | bytes | str], stamp: Stamp | None = None) -> Receipt:
        """Stores events: all of them or none; see `millrace_client.Channel.append`."""
        return await self._append(columns_of(events), stamp)

    async def append_columns(self, columns: event_pb2.EventColumns, stamp: Stamp | None = None) -> Receipt:
        """Stores events that are in columns already, as `append` does, without touching any."""
        return await self._append([columns], stamp)

    async def _append(self, batches: list[event_pb2.EventColumns], stamp: Stamp | None) -> Receipt:
        numbering = self._connection.opened().numbering
        return await self._connection.drive(_call_sequences.append(self._name, batches, stamp, numbering, new_txn_id()))

    def next_stamp(self, event_count: int) -> Stamp:
        """The next numbers of this client's own numbering; see `millrace_client.Channel.next_stamp`."""
        return self._connection.opened().numbering.next_stamp(self._name, event_count)

    def transaction(self, lease_seconds: float | None = None, txn_id: str | None = None) -> Transaction:
        """A transaction, for an `async with` statement; see `millrace_client.Channel.transaction`."""
        return Transaction(self._connection, self._name, lease_seconds, txn_id or new_txn_id())

    async def commit(self, txn_ids: Sequence[str], stamp: Stamp | None = None) -> Receipt:
        """Commits transactions that were filled elsewhere, all or none; see `millrace_client.Channel.commit`."""
        return await self._connection.run(_calls.commit(self._name, txn_ids, stamp))

    async def rollback(self, txn_id: str) -> None:
        """Rolls back a transaction that was begun elsewhere; see `millrace_client.Channel.rollback`."""
        await self._connection.run(_calls.rollback(self._name, txn_id))

    def consume(
        self, max_events: int = 0, max_bytes: int = 0, prefetch: int = 0, idle_seconds: float | None = None
    ) -> Deliveries:
        """Deliveries as events come, each to be acknowledged; see `millrace_client.Channel.consume`.

        Python ends asynchronous loops late where they are left by `break`; so use
        `async with channel.consume() as deliveries: async for delivery in deliveries: ...`.
        """
        limits = ConsumeLimits(max_events, max_bytes, prefetch, idle_seconds)
        return Deliveries(self._connection, self._name, limits)

    async def claim(self, reader_id: str, lease_seconds: float | None = None, *, takeover: bool = False) -> Claim:
        """Claims the channel for a reader, now; see `millrace_client.Channel.claim`.

        To have it released: `async with await channel.claim("reader-1") as claim: ...`.
        """
        grant = await self._connection.run(_calls.claim(self._name, reader_id, lease_seconds, takeover=takeover))
        return Claim(self._connection, ClaimCalls(self._name, reader_id, lease_seconds, grant))

    def read(
        self, reader_id: str, from_sequence: int = 0, to_sequence: int = 0, epoch: int | None = None
    ) -> AsyncGenerator[Batch]:
        """Reads a range of a channel that this reader has claimed; see `millrace_client.Channel.read`."""
        return self._connection.stream(_calls.read(self._name, reader_id, from_sequence, to_sequence, epoch))

    async def acknowledge(self, reader_id: str, through_sequence: int, epoch: int | None = None) -> int:
        """Removes events up to a sequence, included; see `millrace_client.Channel.acknowledge`."""
        return await self._connection.run(_calls.acknowledge(self._name, reader_id, through_sequence, epoch))

    async def release(self, reader_id: str, epoch: int | None = None) -> None:
        """Ends this reader's claim; what is not acknowledged stays where it is."""
        await self._connection.run(_calls.release(self._name, reader_id, epoch))

    def peek(self, from_sequence: int = 0, max_events: int = 0, *, follow: bool = False) -> AsyncGenerator[Batch]:
        """Shows events without taking them; see `millrace_client.Channel.peek`."""
        return self._connection.stream(_calls.peek(self._name, from_sequence, max_events, follow=follow))

    def __repr__(self) -> str:
        return f"<aio.Channel {self._name} of {self._connection.settings.endpoint}>"
