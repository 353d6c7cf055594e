"""A transaction, for asyncio."""

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from millrace.v1 import event_pb2
from millrace_client._calls import TakeLimits
from millrace_client._flows import TxnFlows, encoded_parts
from millrace_client.aio._connection import Connection
from millrace_client.events import Batch, Event, Receipt, Stamp, columns_of


class Transaction:
    """Puts and takes that commit or roll back together, for one task at a time; see `millrace_client.Transaction`."""

    def __init__(self, connection: Connection, channel: str, lease_seconds: float | None, txn_id: str) -> None:
        self._connection = connection
        self._flows = TxnFlows(channel, txn_id, lease_seconds)

    @property
    def txn_id(self) -> str:
        """The transaction's id."""
        return self._flows.txn_id

    @property
    def lease_seconds(self) -> float | None:
        """How long the transaction lives without a call; before it begins, what is asked for."""
        return self._flows.lease_seconds

    @property
    def receipt(self) -> Receipt | None:
        """What the commit stored; None before it."""
        return self._flows.receipt

    async def begin(self) -> Self:
        """Opens the transaction; an `async with` statement does so by itself."""
        try:
            await self._connection.drive(self._flows.begin())
        except asyncio.CancelledError:
            # It may have been opened all the same; nobody is left to end it, so this does.
            _ = self._connection.finish_apart(self._connection.drive(self._flows.rollback()))
            raise
        return self

    async def put(self, events: Iterable[Event | bytes | str]) -> int:
        """Puts events; see `millrace_client.Transaction.put`."""
        return await self._put(columns_of(events))

    async def put_columns(self, columns: event_pb2.EventColumns) -> int:
        """Puts events that are in columns already, as `put` does, without touching any."""
        return await self._put([columns])

    async def _put(self, batches: list[event_pb2.EventColumns]) -> int:
        return await self._connection.drive(self._flows.put(encoded_parts(batches)))

    async def take(self, max_events: int = 0, max_bytes: int = 0, wait_seconds: float | None = None) -> list[Batch]:
        """Takes events, oldest first; see `millrace_client.Transaction.take`."""
        return await self._connection.drive(self._flows.take(TakeLimits(max_events, max_bytes, wait_seconds)))

    async def renew(self) -> float:
        """Begins the lease anew; returns it in seconds."""
        return await self._connection.drive(self._flows.renew())

    async def commit(self, stamp: Stamp | None = None) -> Receipt:
        """Commits now; see `millrace_client.Transaction.commit`."""
        return await self._connection.drive(self._flows.commit(stamp))

    async def rollback(self) -> None:
        """Rolls back now: puts are dropped, taken events return to their places."""
        await self._connection.drive(self._flows.rollback())

    async def __aenter__(self) -> Self:
        return await self.begin()

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        # A task that is cancelled while it leaves must not leave the transaction, and what it has taken, to its lease.
        await asyncio.shield(self._connection.finish_apart(self._connection.drive(self._flows.leave(error))))

    def __repr__(self) -> str:
        return f"<aio.Transaction {self.txn_id} on {self._flows.channel}>"
