"""Channels, their transactions and claims, for asyncio."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Generator, Iterable, Sequence
from datetime import datetime
from typing import Any, Self

from millrace.v1 import event_pb2
from millrace_client import _call_sequences, _calls
from millrace_client._call_sequences import ClaimCalls, TxnCalls, encoded_parts
from millrace_client._calls import ConsumeLimits, TakeLimits
from millrace_client._settings import new_txn_id
from millrace_client.aio._connection import Connection
from millrace_client.aio.consume import Deliveries
from millrace_client.claim import GrantedClaim
from millrace_client.events import Batch, Event, FoundSequence, Receipt, Stamp, columns_of
from millrace_client.transaction import TransactionState


class Taking(Coroutine[Any, Any, list[Batch]]):
    """A take in progress: `await` returns its batches, and `async for` iterates over them."""

    def __init__(self, take: Coroutine[Any, Any, list[Batch]]) -> None:
        self._take = take

    async def __aiter__(self) -> AsyncIterator[Batch]:
        for batch in await self._take:
            yield batch

    def __await__(self) -> Generator[Any, Any, list[Batch]]:
        return self._take.__await__()

    # A whole coroutine, so that `asyncio.create_task` takes it.

    def send(self, value: Any) -> Any:
        return self._take.send(value)

    def throw(self, *error: Any) -> Any:
        return self._take.throw(*error)

    def close(self) -> None:
        self._take.close()


class Transaction(TransactionState):
    """Puts and takes that commit or roll back together, for one task at a time.

    The methods are those of `millrace_client.Transaction`, to be awaited. `async for batch in txn.take()` works, too.
    """

    def __init__(self, connection: Connection, channel: str, lease_seconds: float | None, txn_id: str) -> None:
        super().__init__(TxnCalls(channel, txn_id, lease_seconds))
        self._connection = connection

    async def begin(self) -> Self:
        try:
            await self._connection.drive(self._sequences.begin())
        except asyncio.CancelledError:
            # The server may have opened it all the same, and no caller is left to end it.
            _ = self._connection.run_in_background(self._connection.drive(self._sequences.rollback()))
            raise
        return self

    async def put(self, events: Iterable[Event | bytes | str]) -> int:
        return await self._put(columns_of(events))

    async def put_columns(self, columns: event_pb2.EventColumns) -> int:
        return await self._put([columns])

    async def _put(self, batches: list[event_pb2.EventColumns]) -> int:
        return await self._connection.drive(self._sequences.put(encoded_parts(batches)))

    def take(self, max_events: int = 0, max_bytes: int = 0, wait_seconds: float | None = None) -> Taking:
        limits = TakeLimits(max_events, max_bytes, wait_seconds)
        return Taking(self._connection.drive(self._sequences.take(limits)))

    async def renew(self) -> float:
        return await self._connection.drive(self._sequences.renew())

    async def commit(self, stamp: Stamp | None = None) -> Receipt:
        return await self._connection.drive(self._sequences.commit(stamp))

    async def rollback(self) -> None:
        await self._connection.drive(self._sequences.rollback())

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        # A task that is cancelled here must not leave the transaction, and its events, to the lease.
        await asyncio.shield(self._connection.run_in_background(self._connection.drive(self._sequences.leave(error))))


class Claim(GrantedClaim):
    """One reader's exclusive right to a channel. Released at the end of its `async with` block.

    The methods are those of `millrace_client.Claim`, to be awaited.
    """

    def __init__(self, connection: Connection, sequences: ClaimCalls) -> None:
        super().__init__(sequences)
        self._connection = connection

    def read(self, from_sequence: int = 0, to_sequence: int = 0) -> AsyncGenerator[Batch]:
        call = _calls.read(self.channel, self.reader_id, from_sequence, to_sequence, self.epoch)
        return self._connection.stream(call)

    async def acknowledge(self, through_sequence: int) -> int:
        call = _calls.acknowledge(self.channel, self.reader_id, through_sequence, self.epoch)
        return await self._connection.run(call)

    async def renew(self, wait_seconds: float = 0.0) -> float:
        return await self._connection.drive(self._sequences.renew(wait_seconds))

    async def release(self) -> None:
        await self._connection.drive(self._sequences.release())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        # As with a transaction: until the lease ends, no other reader could claim the channel.
        await asyncio.shield(self._connection.run_in_background(self._connection.drive(self._sequences.leave(error))))


class Channel:
    """A handle on one channel. Creating it makes no call.

    The methods are those of `millrace_client.Channel`, to be awaited.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection = connection
        self._name = name

    @property
    def name(self) -> str:
        return self._name

    async def append(self, events: Iterable[Event | bytes | str], stamp: Stamp | None = None) -> Receipt:
        return await self._append(columns_of(events), stamp)

    async def append_columns(self, columns: event_pb2.EventColumns, stamp: Stamp | None = None) -> Receipt:
        return await self._append([columns], stamp)

    async def _append(self, batches: list[event_pb2.EventColumns], stamp: Stamp | None) -> Receipt:
        numbering = self._connection.opened().numbering
        return await self._connection.drive(_call_sequences.append(self._name, batches, stamp, numbering, new_txn_id()))

    def next_stamp(self, event_count: int) -> Stamp:
        return self._connection.opened().numbering.next_stamp(self._name, event_count)

    def transaction(self, lease_seconds: float | None = None, txn_id: str | None = None) -> Transaction:
        return Transaction(self._connection, self._name, lease_seconds, txn_id or new_txn_id())

    async def commit(self, txn_ids: Sequence[str], stamp: Stamp | None = None) -> Receipt:
        return await self._connection.run(_calls.commit(self._name, txn_ids, stamp))

    async def rollback(self, txn_id: str) -> None:
        await self._connection.run(_calls.rollback(self._name, txn_id))

    def consume(
        self, max_events: int = 0, max_bytes: int = 0, prefetch: int = 0, idle_seconds: float | None = None
    ) -> Deliveries:
        """Returns deliveries as they arrive, each to be acknowledged; see `millrace_client.Channel.consume`.

        Python closes an asynchronous iterator late if its loop is left by `break`; so use
        `async with channel.consume() as deliveries: async for delivery in deliveries: ...`.
        """
        limits = ConsumeLimits(max_events, max_bytes, prefetch, idle_seconds)
        return Deliveries(self._connection, self._name, limits)

    async def claim(self, reader_id: str, lease_seconds: float | None = None, *, takeover: bool = False) -> Claim:
        grant = await self._connection.run(_calls.claim(self._name, reader_id, lease_seconds, takeover=takeover))
        return Claim(self._connection, ClaimCalls(self._name, reader_id, lease_seconds, grant))

    def read(
        self, reader_id: str, from_sequence: int = 0, to_sequence: int = 0, epoch: int | None = None
    ) -> AsyncGenerator[Batch]:
        return self._connection.stream(_calls.read(self._name, reader_id, from_sequence, to_sequence, epoch))

    async def acknowledge(self, reader_id: str, through_sequence: int, epoch: int | None = None) -> int:
        return await self._connection.run(_calls.acknowledge(self._name, reader_id, through_sequence, epoch))

    async def release(self, reader_id: str, epoch: int | None = None) -> None:
        await self._connection.run(_calls.release(self._name, reader_id, epoch))

    async def find_sequence(self, time: datetime) -> FoundSequence:
        return await self._connection.run(_calls.find_sequence(self._name, time))

    def peek(
        self, from_sequence: int = 0, max_events: int = 0, *, follow: bool = False, since: datetime | None = None
    ) -> AsyncGenerator[Batch]:
        return self._connection.stream(_calls.peek(self._name, from_sequence, max_events, follow=follow, since=since))

    def __repr__(self) -> str:
        return f"<aio.Channel {self._name} of {self._connection.settings.endpoint}>"
