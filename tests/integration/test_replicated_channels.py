"""Replicated channels that clients create, change, move and delete at real servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import grpc
import pytest

from millrace.v1 import admin_service_pb2 as pb
from millrace.v1 import channel_service_pb2 as channel_pb
from tests.conftest import StartMillraced
from tests.millraced import Millraced
from tests.rpc import Refusal, Rpc, connected, events, refused
from tests.stream_logs import new_name

_ENGINE = (
    'server.engine = {{ type = "jetstream", servers = ["{}"], replicas = 1, stream_bytes_max = "64MB", '
    "lease_seconds = 60.0 }}\n"
)
_REPLICATED = pb.ChannelConfig(type=pb.CHANNEL_TYPE_REPLICATED, capacity=1000)
STANDING_BY, OPEN = pb.CHANNEL_STATE_STANDING_BY, pb.CHANNEL_STATE_OPEN


class _Site:
    """A server and a connection to it."""

    def __init__(self, server: Millraced, rpc: Rpc) -> None:
        self.address = server.grpc
        self.server = server
        self.rpc = rpc

    async def create(self, name: str) -> pb.Channel:
        """Creates a replicated channel."""
        request = pb.CreateChannelRequest(name=name, config=_REPLICATED)
        response: pb.CreateChannelResponse = await self.rpc.admin.CreateChannel(request)
        return response.channel

    async def join(self, name: str, owner: "_Site") -> pb.Channel:
        """Shares a channel; the owner knows of it then."""
        joined = await self.create(name)
        message = ""
        while self.address not in message:
            async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT") as caught:
                await owner.move(name, "nowhere:1")
            message = caught.refusal.message
        return joined

    async def names(self) -> set[str]:
        """The channels that the server has."""
        listed: pb.ListChannelsResponse = await self.rpc.admin.ListChannels(pb.ListChannelsRequest())
        return {channel.name for channel in listed.channels}

    async def move(self, name: str, target: str) -> None:
        """Moves a channel."""
        await self.rpc.admin.MoveChannel(pb.MoveChannelRequest(name=name, server=target))

    async def until(self, name: str, state: int) -> pb.Channel:
        """Waits for a state of a channel."""
        while (channel := await self.rpc.look(name)).state != state:
            pass
        return channel


@pytest.fixture
async def sites(start_millraced: StartMillraced, nats_url: str) -> AsyncIterator[tuple[_Site, _Site]]:
    """Two servers that share an engine."""
    toml = _ENGINE.format(nats_url)
    servers = [start_millraced(toml), start_millraced(toml)]
    async with AsyncExitStack() as connections:
        one, other = [
            _Site(server, await connections.enter_async_context(connected(server.grpc))) for server in servers
        ]
        yield one, other


Two = tuple[_Site, _Site]


async def test_create_at_two_servers_makes_one_channel_that_moves_to_and_fro(sites: Two) -> None:
    """The second one stands by; each move keeps what was stored, and a repeat changes nothing."""
    one, other = sites
    name = new_name()
    assert (await one.create(name)).state == OPEN
    await one.rpc.append(name, b"a")
    joined = await other.join(name, one)
    assert (joined.state, joined.owner, joined.config.type) == (STANDING_BY, one.address, pb.CHANNEL_TYPE_REPLICATED)
    await one.move(name, other.address)
    assert (await other.until(name, OPEN)).gauges.next_sequence == 2
    await other.move(name, other.address)
    left = await one.rpc.look(name)
    assert (left.state, left.owner) == (STANDING_BY, other.address)
    async with refused(grpc.StatusCode.UNAVAILABLE, "NOT_OWNER") as caught:
        await one.rpc.append(name, b"b")
    assert caught.refusal.metadata["address"] == other.address
    await other.rpc.append(name, b"b")
    await other.move(name, one.address)
    await one.until(name, OPEN)
    assert await one.rpc.peek(name) == [b"a", b"b"]


async def test_move_of_what_cannot_move_says_why(sites: Two) -> None:
    """The message names the servers that share the channel."""
    one, other = sites
    name = new_name()
    await one.create(name)
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "there is none"):
        await one.move(name, other.address)
    await other.join(name, one)
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", f"'nowhere:1'.*: {other.address}"):
        await one.move(name, "nowhere:1")
    async with refused(grpc.StatusCode.UNAVAILABLE, "NOT_OWNER"):
        await other.move(name, one.address)
    in_memory = await one.rpc.make_channel()
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "it must be replicated"):
        await one.move(in_memory, other.address)


async def test_delete_at_the_owner_deletes_the_channel_for_all(sites: Two) -> None:
    """The others forget it, also at a restart, and a new channel of its name begins empty."""
    one, other = sites
    name = new_name()
    first = await one.create(name)
    await other.create(name)
    await one.rpc.append(name, b"a")
    async with refused(grpc.StatusCode.UNAVAILABLE, "NOT_OWNER"):
        await other.rpc.admin.DeleteChannel(pb.DeleteChannelRequest(name=name, force=True))
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "CHANNEL_NOT_EMPTY"):
        await one.rpc.admin.DeleteChannel(pb.DeleteChannelRequest(name=name))
    await one.rpc.admin.DeleteChannel(pb.DeleteChannelRequest(name=name, force=True))
    for site in sites:
        while name in await site.names():
            pass
    again = await other.create(name)
    assert (again.state, again.gauges.next_sequence) == (OPEN, 1)
    assert again.channel_id != first.channel_id


async def test_delete_of_a_channel_in_use_is_no_error(sites: Two) -> None:
    """Callers are refused until it is gone; the server's log, which operators watch, has nothing to act on."""
    one, other = sites
    name = new_name()
    await one.create(name)
    await other.create(name)
    has_begun = asyncio.Event()

    async def append_all(site: _Site) -> None:
        reason = ""
        while reason != "CHANNEL_NOT_FOUND":
            try:
                await site.rpc.append(name, b"a")
                has_begun.set()
            except grpc.aio.AioRpcError as error:
                reason = Refusal.of_error(error).reason
                assert reason in {"NOT_OWNER", "CHANNEL_NOT_FOUND"}

    async with asyncio.TaskGroup() as callers:
        for site in (one, one, one, other):
            callers.create_task(append_all(site))
        await has_begun.wait()
        await one.rpc.admin.DeleteChannel(pb.DeleteChannelRequest(name=name, force=True))
    assert [site.server.faults for site in sites] == [[], []]


async def test_update_of_a_replicated_channel_is_in_force_at_its_owner(sites: Two) -> None:
    """Limits are each server's own; those of another server count once that owns the channel."""
    one, other = sites
    name = new_name()
    await one.create(name)
    await other.join(name, one)
    change = pb.UpdateChannelRequest(name=name, config=pb.ChannelConfig(capacity=2, transaction_capacity=2))
    assert (await one.rpc.admin.UpdateChannel(change)).applied
    with pytest.raises(grpc.aio.AioRpcError) as full:
        await one.rpc.channels.Append(channel_pb.AppendRequest(channel=name, events=events(b"a", b"b", b"c")))
    assert full.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    await one.move(name, other.address)
    assert (await other.until(name, OPEN)).config.capacity == 1000


async def test_create_without_an_engine_in_the_file_says_what_is_missing(rpc: Rpc) -> None:
    """Addresses and credentials belong into the file."""
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", r"must have server\.engine"):
        await rpc.make_channel(type=pb.CHANNEL_TYPE_REPLICATED)
