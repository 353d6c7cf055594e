"""Servers that share replicated channels over unreliable connections to a cluster, and the calls of their clients."""

import asyncio
import random
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from grpc import aio

from examples.jetstream_cluster import JetStreamCluster
from millrace.v1 import admin_service_pb2 as admin
from tests.crash.owners_account import OwnersAccount
from tests.free_ports import free_port
from tests.millraced import Millraced
from tests.rpc import Refusal, Rpc, connected, rows_of
from tests.unreliable_network import FaultRates, UnreliableNetwork, unreliable_network

LOG = "log"
"""A channel from which nothing is removed, so that each owner shows all of it."""
QUEUE = "queue"
CHANNELS = (LOG, QUEUE)
LEASE_SECONDS = 2.0
CALL_SECONDS = 3.0
"""How long a call may take before its caller asks another server; one that stands still does not respond."""

_VIEW_SECONDS = 20.0
_GIVE_UP_SECONDS = 120.0
_PAUSE_SECONDS = 0.05
_CONNECTION_OPTIONS = {
    "initial_reconnect_backoff_ms": 50,
    "min_reconnect_backoff_ms": 2_000,
    "max_reconnect_backoff_ms": 200,
}
_RATES = FaultRates(cut_upwards=0.0005, cut_downwards=0.001, delay=0.02, delay_seconds_max=0.02)


@dataclass
class SharedServer:
    """A server that is killed, halted, and started again at the same address.

    Attributes:
        rpc: The connection of its callers.
        is_halted: Whether it stands still.
    """

    arguments: Sequence[str]
    data_dir: Path
    address: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    takeovers_of_dead: int = 0
    is_halted: bool = False
    process: Millraced = field(init=False)
    rpc: Rpc = field(init=False)

    async def start(self) -> None:
        """Starts it, and waits until it listens."""
        listen = ("--listen", self.address, "--http-listen", "127.0.0.1:0")
        self.process = await asyncio.to_thread(Millraced, (*self.arguments, *listen), self.data_dir)

    async def kill(self) -> None:
        """Kills it at any point."""
        await asyncio.to_thread(self.process.kill)
        self._bury()

    async def stop(self) -> None:
        """Stops it gracefully."""
        assert await asyncio.to_thread(self.process.stop) == 0
        self._bury()

    def _bury(self) -> None:
        assert self.process.other_output == []
        self.takeovers_of_dead += self._logged_takeovers()
        self.process.log.clear()

    def halt(self) -> None:
        """Lets it stand still."""
        self.process.send(signal.SIGSTOP)
        self.is_halted = True

    def resume(self) -> None:
        """Lets it go on."""
        self.is_halted = False
        self.process.send(signal.SIGCONT)

    @property
    def takeovers(self) -> int:
        """How often it has taken a channel over."""
        return self.takeovers_of_dead + self._logged_takeovers()

    def _logged_takeovers(self) -> int:
        return sum(entry["event"] == "channel taken over" for entry in self.process.log)


class SharedServers:
    """Some servers, and the accounts of the channels that they share.

    Attributes:
        all: The servers.
        accounts: What is known of each channel.
        networks: Those between each server and the node that it prefers.
        kill_count: The kills of servers.
    """

    def __init__(self, cluster: JetStreamCluster, scratch: Path, chance: random.Random, count: int = 3) -> None:
        self.accounts = {name: OwnersAccount() for name in CHANNELS}
        self.kill_count = 0
        self.networks: list[UnreliableNetwork] = []
        self._chance = chance
        self._cluster = cluster
        self._stack = AsyncExitStack()
        self.all = [self._configured(scratch / str(number), number) for number in range(count)]

    def _configured(self, scratch: Path, number: int) -> SharedServer:
        """Prefers a node of its own behind an unreliable network, and goes to the others while that is down."""
        nodes = self._cluster.nodes
        node = nodes[number % len(nodes)]
        target = node.url.removeprefix("nats://")
        network = self._stack.enter_context(unreliable_network(target, self._chance.randrange(1 << 32), _RATES))
        self.networks.append(network)
        urls = [f"nats://{network.address}", *(other.url for other in nodes if other is not node)]
        scratch.mkdir()
        config = scratch / "millrace.toml"
        config.write_text(_config(urls))
        arguments = ("--config", str(config), "--data-dir", str(scratch / "data"))
        return SharedServer(arguments, scratch / "data")

    async def __aenter__(self) -> Self:
        await asyncio.gather(*[self._start(server) for server in self.all])
        return self

    async def _start(self, server: SharedServer) -> None:
        await server.start()
        server.rpc = await self._stack.enter_async_context(connected(server.address, **_CONNECTION_OPTIONS))

    async def __aexit__(self, *_: object) -> None:
        for server in self.all:
            await asyncio.to_thread(server.process.kill)
        await self._stack.aclose()

    @property
    def takeovers(self) -> int:
        """How often a channel has had another owner."""
        return sum(server.takeovers for server in self.all)

    # Calls.

    async def call(self, call: Callable[[Rpc], Awaitable[Any]]) -> Any:
        """Makes a call at one server after the other, until one of them, the owner, serves it.

        Raises the refusal where a server that owns the channel refuses it.
        """
        async with asyncio.timeout(_GIVE_UP_SECONDS):
            while True:
                server = self._chance.choice(self.all)
                try:
                    return await call(server.rpc)
                except aio.AioRpcError as error:
                    endure(error)
                await asyncio.sleep(_PAUSE_SECONDS)

    async def owner(self, channel: str) -> SharedServer:
        """Waits until a server owns the channel, and returns it."""
        async with asyncio.timeout(_GIVE_UP_SECONDS):
            while True:
                for server in self.all:
                    if not server.is_halted and await _owns(server, channel):
                        return server
                await asyncio.sleep(_PAUSE_SECONDS)

    async def view(self) -> None:
        """Compares the log, as its present owner has it, with its account."""
        account = self.accounts[LOG]
        stored = frozenset(account.stored)
        account.views(await self.call(_peek), stored)

    # Faults, each of which leaves all servers running.

    async def kill(self, server: SharedServer) -> None:
        """Kills a server, and starts it again a little later."""
        await server.kill()
        self.kill_count += 1
        await asyncio.sleep(self._chance.random() * LEASE_SECONDS)
        await server.start()

    async def restart(self, server: SharedServer) -> None:
        """Stops a server gracefully, and starts it again."""
        await server.stop()
        await server.start()

    @asynccontextmanager
    async def halted(self, server: SharedServer) -> AsyncIterator[None]:
        """Lets a server stand still during the block, and until others have taken its channels over."""
        server.halt()
        try:
            yield
            for channel in CHANNELS:
                await self.owner(channel)
            await asyncio.sleep(self._chance.random() * LEASE_SECONDS)
        finally:
            server.resume()

    async def move(self, channel: str, server: SharedServer) -> None:
        """Moves a channel from its owner to another server."""
        target = self._chance.choice([other for other in self.all if other is not server])
        request = admin.MoveChannelRequest(name=channel, server=target.address)
        try:
            await server.rpc.admin.MoveChannel(request, timeout=CALL_SECONDS)
        except aio.AioRpcError as error:
            # Its owner has changed meanwhile, or one of the two has lost its session.
            endure(error, ELSEWHERE | {"BAD_ARGUMENT"})

    def cut(self) -> None:
        """Cuts the connections of all servers to the nodes that they prefer."""
        for network in self.networks:
            network.cut_all()


ELSEWHERE = frozenset({"", "NOT_OWNER", "REPLAYING", "DRAINING"})
"""Reasons after which another server, or the same one later, responses; without a reason a connection broke."""


def endure(error: aio.AioRpcError, reasons: Collection[str] = ELSEWHERE) -> None:
    """Raises the error of a call unless it has one of these reasons."""
    if _reason_of(error) not in reasons:
        raise error


def _reason_of(error: aio.AioRpcError) -> str:
    if any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ()):
        return Refusal.of_error(error).reason
    return ""


async def _owns(server: SharedServer, channel: str) -> bool:
    request = admin.GetChannelRequest(name=channel)
    try:
        response = await server.rpc.admin.GetChannel(request, timeout=CALL_SECONDS)
    except aio.AioRpcError:
        return False
    return bool(response.channel.state == admin.CHANNEL_STATE_OPEN)


async def _peek(rpc: Rpc) -> list[tuple[int, bytes]]:
    request = admin.PeekEventsRequest(channel=LOG, max_events=1_000_000)
    responses = rpc.admin.PeekEvents(request, timeout=_VIEW_SECONDS)
    return [(sequence, body) for sequence, _, body in rows_of([response.batch async for response in responses])]


def _config(urls: Sequence[str]) -> str:
    servers = ", ".join(f'"{url}"' for url in urls)
    engine = f'type = "jetstream", servers = [{servers}], stream_bytes_max = "1GB", lease_seconds = {LEASE_SECONDS}'
    limits = """\
type = "replicated"
capacity = 1000000
transaction_capacity = 1000
keep_alive_seconds = 0.1
lease_seconds = 5.0
checkpoint_interval_seconds = 1.0
"""
    channels = "".join(f"[channels.{name}]\n{limits}" for name in CHANNELS)
    return f"[server]\nengine = {{ {engine} }}\n{channels}"
