"""A claim, for asyncio."""

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Self

from millrace_client import _calls
from millrace_client._flows import ClaimFlows
from millrace_client._granted import GrantedClaim
from millrace_client.aio._connection import Connection
from millrace_client.events import Batch


class Claim(GrantedClaim):
    """One reader's exclusive right to a channel; see `millrace_client.Claim`. Released when its block is left."""

    def __init__(self, connection: Connection, flows: ClaimFlows) -> None:
        super().__init__(flows)
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
        return await self._connection.drive(self._flows.renew(wait_seconds))

    async def release(self) -> None:
        """Ends the claim; what is not acknowledged stays where it is."""
        await self._connection.drive(self._flows.release())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self._connection.drive(self._flows.leave(error))
