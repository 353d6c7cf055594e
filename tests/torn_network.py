"""An unreliable network: a proxy that delays, loses data, and cuts connections at random, reproducible by seed."""

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Tears:
    """The probability of each fault, for each chunk of bytes."""

    cut_upwards: float = 0.002
    """The connection is cut, and data on its way to the server is lost."""
    cut_downwards: float = 0.01
    """The connection is cut when a response arrives, which is lost."""
    delay: float = 0.02
    delay_seconds_max: float = 0.05


class TornNetwork:
    """Passes bytes on between clients and one server, on a thread of its own.

    Attributes:
        address: Where to connect, `host:port`.
        target: Where the server is; may change while it runs.
        cut_count: Connections cut so far.
        is_calm: Whether all passes as it should.
    """

    def __init__(self, target: str, seed: int, tears: Tears) -> None:
        self.target = target
        self.address = ""
        self.cut_count = 0
        self.is_calm = False
        self._random = random.Random(seed)
        self._tears = tears
        self._loop = asyncio.new_event_loop()
        self._listening = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torn-network", daemon=True)

    def start(self) -> None:
        """Begins to listen."""
        self._thread.start()
        assert self._listening.wait(10)

    def stop(self) -> None:
        """Cuts all connections and ends."""
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
                        passing.create_task(self._pass_bytes(client_reads, server_writes, self._tears.cut_upwards))
                        passing.create_task(self._pass_bytes(server_reads, client_writes, self._tears.cut_downwards))
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
                if self._random.random() < self._tears.delay:
                    await asyncio.sleep(self._random.random() * self._tears.delay_seconds_max)
            target.write(piece)
            await target.drain()
        raise ConnectionResetError


@contextmanager
def torn_network(target: str, seed: int, tears: Tears | None = None) -> Iterator[TornNetwork]:
    """A torn network before a server's address."""
    network = TornNetwork(target, seed, tears or Tears())
    network.start()
    try:
        yield network
    finally:
        network.stop()
