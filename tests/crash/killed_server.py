"""A server that is killed and restarted, and calls that are repeated until they get responses."""

import asyncio
import random
from collections.abc import Container, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from millrace.v1 import admin_service_pb2
from tests.crash.kill_account import KillAccount
from tests.fork_server import ForkedProgram
from tests.millraced import Millraced
from tests.rpc import TIMEOUT_SECONDS, Refusal, Rpc, connected, rows_of

_FILE_CHANNEL = """\
type = "file"
capacity = 20000
transaction_capacity = 1000
keep_alive_seconds = 0.1
segment_bytes_max = 65536
checkpoint_interval_seconds = 0.1
min_free_bytes = 0"""
_CONFIG_TOML = f"""
[channels.work]
{_FILE_CHANNEL}
lease_seconds = 5.0

[channels.read]
{_FILE_CHANNEL}
compression = "zstd"

[channels.aging]
{_FILE_CHANNEL}
lease_seconds = 5.0
retention_seconds = 2.0
"""
CHANNELS = ("work", "read")
AGING = "aging"
_RETENTION_SECONDS = 2.0
_START_SECONDS = 0.3


class CallRefusedError(Exception):
    """Raised when a call is refused, so that a repeat would not help; contains the refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal)
        self.reason = refusal.reason

    def must_be(self, reasons: Container[str]) -> None:
        """Raises this error if the reason is another one."""
        if self.reason not in reasons:
            raise self


class KilledServer:
    """One data directory, and the servers that use it one after the other.

    Attributes:
        accounts: What is known of each channel.
        ending: Set when the workers must end.
    """

    def __init__(self, scratch: Path, chance: random.Random) -> None:
        config = scratch / "millrace.toml"
        config.write_text(_CONFIG_TOML)
        self._data_dir = scratch / "data"
        free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
        self._arguments: Sequence[str] = ("--config", str(config), "--data-dir", str(self._data_dir), *free_ports)
        self._chance = chance
        self._connections = AsyncExitStack()
        self._server: Millraced | None = None
        self._rpc: Rpc
        self._is_up = asyncio.Event()
        self._has_responded = asyncio.Event()
        self._responses_left = 0
        self.accounts = {name: KillAccount() for name in CHANNELS} | {AGING: KillAccount(_RETENTION_SECONDS)}
        self.ending = asyncio.Event()
        self.starts = 0

    async def start(self) -> None:
        """Starts a server, compares its content with the accounts, and admits callers."""
        self._server = await asyncio.to_thread(Millraced, self._arguments, self._data_dir)
        self._rpc = await self._connections.enter_async_context(connected(self._server.grpc))
        for name, account in self.accounts.items():
            while (channel := await self._rpc.look(name)).state == admin_service_pb2.CHANNEL_STATE_REPLAYING:
                pass
            assert channel.state == admin_service_pb2.CHANNEL_STATE_OPEN, self._server.log
            account.reconcile(await self._peek(name), channel.gauges.next_sequence)
        self.starts += 1
        self._is_up.set()

    async def _peek(self, name: str) -> list[tuple[int, bytes]]:
        request = admin_service_pb2.PeekEventsRequest(channel=name, max_events=1_000_000)
        batches = [response.batch async for response in self._rpc.admin.PeekEvents(request, timeout=TIMEOUT_SECONDS)]
        return [(sequence, body) for sequence, _, body in rows_of(batches)]

    async def next_sequence(self, name: str) -> int:
        """The next sequence of a channel."""
        return (await self._rpc.look(name)).gauges.next_sequence

    async def respond(self, count: int) -> None:
        """Waits until this many calls got responses."""
        self._responses_left = count
        self._has_responded.clear()
        await self._has_responded.wait()

    async def kill(self) -> None:
        """Kills the server at any point."""
        if self._server is not None:
            self._is_up.clear()
            await asyncio.to_thread(self._server.kill)
            assert self._server.other_output == []

    async def start_in_vain(self) -> None:
        """Starts a server, and kills it before, during, or shortly after the replay of its channels."""
        process = await asyncio.to_thread(ForkedProgram, "millraced", ("serve", *self._arguments))
        # There is no event to wait for: the kill may come at any moment.
        await asyncio.sleep(self._chance.uniform(0.0, _START_SECONDS))
        process.kill()
        await asyncio.to_thread(process.wait)

    async def stop(self) -> None:
        """Stops the last server gracefully."""
        assert self._server is not None
        assert await asyncio.to_thread(self._server.stop) == 0
        assert self._server.faults == []

    async def close(self) -> None:
        """Ends everything that is left."""
        await self.kill()
        # Not earlier, since that would cancel calls that are about to get an error from the killed server.
        await self._connections.aclose()

    async def rpc(self) -> Rpc:
        """The connection to the server, once one runs."""
        await self._is_up.wait()
        return self._rpc

    async def call(self, method: str, request: Any) -> Any:
        """Makes a call until it gets a response.

        Raises:
            CallRefusedError: It was refused.
        """
        while True:
            rpc = await self.rpc()
            try:
                response = await getattr(rpc.channels, method)(request, timeout=TIMEOUT_SECONDS)
            except aio.AioRpcError as error:
                await self.endure(error)
            else:
                self.count_response()
                return response

    async def endure(self, error: aio.AioRpcError) -> None:
        """Waits for the next server if the last one was killed.

        Raises:
            CallRefusedError: The server is running.
        """
        # Refusals of the server have details; an error without them comes from gRPC, for a broken connection.
        if any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ()):
            raise CallRefusedError(Refusal.of_error(error))
        assert error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL}, error
        # The broken connection may be noticed before the task that kills the server has recorded it.
        await asyncio.sleep(0)

    async def endure_broken(self, error: Exception) -> None:
        """The same for a stream, for which gRPC has several errors when a connection breaks.

        Raises:
            CallRefusedError: The server closed the stream.
        """
        if isinstance(error, aio.AioRpcError):
            await self.endure(error)
        elif not isinstance(error, asyncio.InvalidStateError) and type(error).__name__ != "ExecuteBatchError":
            raise error

    def count_response(self) -> None:
        """Counts a call that got its response."""
        self._responses_left -= 1
        if self._responses_left <= 0:
            self._has_responded.set()
