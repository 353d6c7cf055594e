"""An unreliable network: a proxy that delays, loses data, and cuts connections at random, reproducible by seed."""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class FaultRates:
    """The probability of each fault, for each chunk of bytes."""

    cut_upwards: float = 0.002
    """The connection is cut, and data on its way to the server is lost."""
    cut_downwards: float = 0.01
    """The connection is cut when a response arrives, which is lost."""
    delay: float = 0.02
    delay_seconds_max: float = 0.05


class UnreliableNetwork:
    """Passes bytes between clients and one server, on a thread of its own.

    Attributes:
        address: The address for clients, `host:port`.
        target: The address of the server, which may change.
        cut_count: Connections cut so far.
        is_calm: Whether no faults happen.
    """

    def __init__(self, target: str, seed: int, faults: FaultRates) -> None:
        self.target = target
        self.address = ""
        self.cut_count = 0
        self.is_calm = False
        self._random = random.Random(seed)
        self._faults = faults
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torn-network", daemon=True)

    def start(self) -> None:
        """Starts to listen."""
        self._thread.start()
        assert self._listening.wait(10)

    def stop(self) -> None:
        """Cuts all connections and stops."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join(10)

    def cut_all(self) -> None:
        """Cuts all connections now."""
        self._loop.call_soon_threadsafe(self._cut_all)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        async with await asyncio.start_server(self._accept, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            self.address = f"{host}:{port}"
            self._listening.set()
            await self._stopping.wait()
            self._cut_all()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _cut_all(self) -> None:
        for connection in self._connections:
            connection.cancel()

    def _accept(self, client_reads: asyncio.StreamReader, client_writes: asyncio.StreamWriter) -> None:
        connection = asyncio.ensure_future(self._pass(client_reads, client_writes))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _pass(self, client_reads: asyncio.StreamReader, client_writes: asyncio.StreamWriter) -> None:
        host, _, port = self.target.rpartition(":")
        try:
            with suppress(OSError, asyncio.CancelledError):
                server_reads, server_writes = await asyncio.open_connection(host, int(port))
                try:
                    async with asyncio.TaskGroup() as passing:
                        passing.create_task(self._pass_bytes(client_reads, server_writes, self._faults.cut_upwards))
                        passing.create_task(self._pass_bytes(server_reads, client_writes, self._faults.cut_downwards))
                except* OSError:
                    pass
                finally:
                    server_writes.transport.abort()
        finally:
            client_writes.transport.abort()

    async def _pass_bytes(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, cut: float) -> None:
        while piece := await source.read(_PIECE_BYTES):
            if not self.is_calm:
                if self._random.random() < cut:
                    self.cut_count += 1
                    break
                if self._random.random() < self._faults.delay:
                    await asyncio.sleep(self._random.random() * self._faults.delay_seconds_max)
            target.write(piece)
            await target.drain()
        raise ConnectionResetError


@contextmanager
def unreliable_network(target: str, seed: int, faults: FaultRates | None = None) -> Iterator[UnreliableNetwork]:
    """An unreliable network in front of a server."""
    network = UnreliableNetwork(target, seed, faults or FaultRates())
    network.start()
    try:
        yield network
    finally:
        network.stop()
