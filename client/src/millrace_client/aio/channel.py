"""A channel, for asyncio."""

from collections.abc import AsyncGenerator, Iterable, Sequence

from millrace.v1 import event_pb2
from millrace_client import _calls, _flows
from millrace_client._calls import ConsumeLimits
from millrace_client._settings import new_txn_id
from millrace_client.aio._connection import Connection
from millrace_client.aio.claim import Claim
from millrace_client.aio.consume import Deliveries
from millrace_client.aio.transaction import Transaction
from millrace_client.events import Batch, Event, Receipt, Stamp, columns_of


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
        return await self._connection.drive(_flows.append(self._name, batches, stamp, numbering, new_txn_id()))

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
        return Claim(self._connection, _flows.ClaimFlows(self._name, reader_id, lease_seconds, grant))

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
