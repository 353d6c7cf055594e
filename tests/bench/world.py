"""The servers that are measured, each a process of its own, and a connection to each."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc import aio

from millrace.v1 import admin_service_pb2
from tests.bench.bare_disk import append_synced
from tests.bench.bare_server import METHOD, BareServer, bare_server, log_server
from tests.bench.calls import Method, call_many, connect, stream_many
from tests.bench.measuring import LOOP, Contender
from tests.bench.payloads import FILE_CHANNEL, FULL_CHANNEL, FULL_EVENTS, MEMORY_CHANNEL, append_columns
from tests.certificates import Authority
from tests.millraced import Millraced

ADMIN = "/millrace.v1.AdminService/{}"
CHANNELS = "/millrace.v1.ChannelService/{}"

_CONFIG_TOML = f"""
[server]
shutdown_grace_seconds = 0.0
[channels.{MEMORY_CHANNEL}]
type = "memory"
capacity = 10000000
transaction_capacity = 10000
byte_capacity = 8589934592
[channels.{FILE_CHANNEL}]
type = "file"
[channels.{FULL_CHANNEL}]
type = "file"
capacity = {FULL_EVENTS}
"""
_BATCH_IN_FLIGHT = 8


@dataclass(frozen=True)
class World:
    """Millrace, and bare gRPC servers."""

    server: Millraced
    millrace: aio.Channel
    bare_server: BareServer
    bare: aio.Channel
    log_server: BareServer
    logs: aio.Channel
    scratch: Path
    """A directory on the disk that the file channels use."""
    running: ExitStack
    """Ends further servers together with this one."""
    channel: str = MEMORY_CHANNEL
    """The channel that is measured."""
    python: str = sys.executable
    """The interpreter of the servers: that of another checkout measures its code."""

    def on(self, channel: str) -> "World":
        """The same world, for another channel."""
        return replace(self, channel=channel)

    def start_server(self, config_toml: str) -> Millraced:
        """Starts another server, which ends with the world."""
        scratch = Path(tempfile.mkdtemp(dir=self.scratch))
        server = _started(scratch, config_toml, self.python)
        self.running.callback(server.kill)
        return server

    def over_tls(self) -> "World":
        """Millrace and a bare server of their own over TLS, which end with this world."""
        authority = Authority()
        certificate, private_key = authority.issue(Path(tempfile.mkdtemp(dir=self.scratch)), "server")
        tls = f'[server.tls]\ncertificate = "{certificate}"\nprivate_key = "{private_key}"\n'
        server = self.start_server(_CONFIG_TOML + tls)
        bare = self.running.enter_context(bare_server(certificate.read_bytes(), private_key.read_bytes()))
        trust = grpc.ssl_channel_credentials(authority.certificate)
        millrace, echo = connect(server.grpc, trust), connect(bare.address, trust)
        return replace(self, server=server, millrace=millrace, bare_server=bare, bare=echo)

    def bare_calls(self, method: str, request: bytes, callers: int) -> Contender:
        """The bare server with unary calls."""
        called = Method(self.bare, METHOD.format(method), request)
        run = partial(call_many, called, callers=callers)
        return Contender(name=f"bare {method}", server_pid=self.bare_server.pid, run=run)

    def bare_stream(self, method: str, request: bytes, in_flight: int) -> Contender:
        """The bare server with one bidirectional stream."""
        called = Method(self.bare, METHOD.format(f"{method}_stream"), request)
        run = partial(stream_many, called, in_flight=in_flight)
        return Contender(name=f"bare {method}", server_pid=self.bare_server.pid, run=run)

    def log_calls(self, request: bytes, callers: int) -> list[Contender]:
        """A bare log, and Millrace's log without a channel, with unary calls."""

        def log(name: str, method: str) -> Contender:
            run = partial(call_many, Method(self.logs, METHOD.format(method), request), callers=callers)
            return Contender(name=name, server_pid=self.log_server.pid, run=run)

        return [log("bare log", "log"), log("log alone", "log_alone")]

    def bare_loops(self, batch: bytes) -> list[Contender]:
        """Bare loops on the disk, into preallocated space and into a growing file."""
        path = self.scratch / "bare-loop"

        def loop(name: str, *, sets_aside: bool) -> Contender:
            async def run(operations: int) -> None:
                await asyncio.to_thread(append_synced, path, batch, operations, sets_aside=sets_aside)

            return Contender(name=name, server_pid=os.getpid(), run=run)

        return [loop(LOOP, sets_aside=True), loop(f"{LOOP}, growing", sets_aside=False)]

    def method(self, name: str, request: bytes) -> Method:
        """A method of Millrace's data path."""
        return Method(self.millrace, CHANNELS.format(name), request)

    def unary(self, method: str) -> Callable[[bytes], Awaitable[bytes]]:
        """A unary call of Millrace, in raw bytes."""
        call: Any = self.millrace.unary_unary(method)
        return call  # type: ignore[no-any-return] # grpc.aio types it so

    async def ask(self, method: str, request: Message, response_type: Any) -> Any:
        """One call of Millrace, outside of the measurement."""
        call: Any = self.millrace.unary_unary(method, response_deserializer=response_type.FromString)
        return await call(request.SerializeToString())

    async def fill(self, batches: int, batch_events: int) -> None:
        """Appends this many batches."""
        request = append_columns(batch_events, self.channel)
        await stream_many(self.method("AppendStream", request), batches, _BATCH_IN_FLIGHT)

    async def queued_events(self) -> int:
        """The number of events in the channel, including taken ones."""
        request = admin_service_pb2.GetChannelRequest(name=self.channel)
        response = await self.ask(ADMIN.format("GetChannel"), request, admin_service_pb2.GetChannelResponse)
        return int(response.channel.gauges.queued_events + response.channel.gauges.taken_events)

    async def empty(self, event_count: int) -> None:
        """Removes what is in the channel, which must be so many events."""
        request = admin_service_pb2.PurgeChannelRequest(name=self.channel)
        response = await self.ask(ADMIN.format("PurgeChannel"), request, admin_service_pb2.PurgeChannelResponse)
        assert response.purged_count == event_count, f"{response.purged_count} events instead of {event_count}"


@asynccontextmanager
async def running_world(scratch: Path) -> AsyncGenerator[World]:
    """Starts all servers, and ends them.

    Args:
        scratch: An empty directory on the disk that is measured.
    """
    with bare_server() as bare, log_server(scratch) as logs, ExitStack() as running:
        server = _started(scratch, _CONFIG_TOML, sys.executable)
        running.callback(server.kill)
        async with (
            connect(server.grpc) as millrace_connection,
            connect(bare.address) as bare_connection,
            connect(logs.address) as log_connection,
        ):
            yield World(server, millrace_connection, bare, bare_connection, logs, log_connection, scratch, running)


@asynccontextmanager
async def server_of(world: World, python: str) -> AsyncGenerator[World]:
    """The same world with a server that another interpreter runs, which is up at the same time."""
    scratch = Path(tempfile.mkdtemp(dir=world.scratch))
    server = _started(scratch, _CONFIG_TOML, python)
    world.running.callback(server.kill)
    async with connect(server.grpc) as connection:
        yield replace(world, server=server, millrace=connection, scratch=scratch, python=python)


def _started(scratch: Path, config_toml: str, python: str) -> Millraced:
    config, data_dir = scratch / "millrace.toml", scratch / "data"
    config.write_text(config_toml)
    free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    arguments = ("--config", str(config), "--data-dir", str(data_dir), *free_ports)
    return Millraced(arguments, data_dir, python=python)
