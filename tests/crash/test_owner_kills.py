"""Servers that share channels, and nodes of the engine, that are killed and halted, and whose connections are cut."""

import asyncio
import os
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from grpc import aio

from examples.jetstream_cluster import JetStreamCluster
from millrace.v1 import admin_service_pb2 as admin
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from tests.crash.replicated_history import Faults
from tests.crash.shared_servers import (
    CALL_SECONDS,
    CHANNELS,
    ELSEWHERE,
    LOG,
    QUEUE,
    SharedServer,
    SharedServers,
    endure,
)
from tests.rpc import Rpc, columns, rows_of, seconds

_TAKEOVERS = int(os.environ.get("MILLRACE_TAKEOVERS", "300"))
_KILLS = int(os.environ.get("MILLRACE_KILLS", "100"))
_APPEND_EVENTS_MAX = 10
_APPEND_PAUSE_SECONDS = 0.1
_TAKE_EVENTS_MAX = 5
_TAKE_PAUSE_SECONDS = 0.2
_TAKE_WAIT_SECONDS = 0.1
_PAUSE_SECONDS = 0.02
_SHOWN_EVENTS_MAX = 1_000
_DRAIN_SECONDS_MAX = 300.0
_ROLLBACK_PROBABILITY = 0.1
_TXN_ENDED = frozenset({"TXN_NOT_FOUND", "TXN_STATE", "LEASE_EXPIRED"})
"""Reasons of commits that have not been made, and will not be."""


class _Callers:
    """Producers of each channel; takers of the queue and readers of the log, which stay with one server each."""

    def __init__(self, servers: SharedServers, chance: random.Random) -> None:
        self._servers = servers
        self._chance = chance
        self._is_ending = False
        work = [self._produce(channel, f"p{index}{channel}") for channel in CHANNELS for index in range(2)]
        work += [each(server) for server in servers.all for each in (self._take_all, self._read_all)]
        self._tasks = [asyncio.ensure_future(one) for one in (*work, self._view_all())]

    def check(self) -> None:
        """Raises what one of them has found."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def end(self) -> None:
        """Ends all of them, each after its last response."""
        self._is_ending = True
        await asyncio.gather(*self._tasks)

    async def _produce(self, channel: str, name: str) -> None:
        account, number = self._servers.accounts[channel], 0
        while not self._is_ending:
            first, number = number, number + self._chance.randint(1, _APPEND_EVENTS_MAX)
            bodies = [b"%s:%d:" % (name.encode(), each) for each in range(first, number)]
            account.sends(bodies)
            stamp = event_pb2.ProducerStamp(producer_id=name, first_sequence=first, last_sequence=number - 1)
            request = pb.AppendRequest(channel=channel, stamp=stamp, columns=columns(*bodies))
            response = await self._servers.call(_append(request))
            account.stores(bodies, response.first_sequence)
            await asyncio.sleep(self._chance.random() * _APPEND_PAUSE_SECONDS)

    async def _view_all(self) -> None:
        """Compares the whole log after each takeover."""
        seen = 0
        while not self._is_ending:
            if (takeovers := self._servers.takeovers) != seen:
                seen = takeovers
                await self._servers.view()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _read_all(self, server: SharedServer) -> None:
        account = self._servers.accounts[LOG]
        while not self._is_ending:
            newest = account.newest
            try:
                events = await _shown(server, newest[0])
            except aio.AioRpcError as error:
                endure(error)
            else:
                account.shows(events, newest)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _take_all(self, server: SharedServer) -> None:
        while not self._is_ending:
            # Slower than the producers, so that the queue is not empty.
            await asyncio.sleep(self._chance.random() * _TAKE_PAUSE_SECONDS)
            is_rolled_back = self._chance.random() < _ROLLBACK_PROBABILITY
            try:
                await _take_some(self._servers, server, QUEUE, is_rolled_back=is_rolled_back)
            except aio.AioRpcError as error:
                endure(error, ELSEWHERE | _TXN_ENDED)


async def _take_some(
    servers: SharedServers, server: SharedServer, channel: str, *, is_rolled_back: bool = False
) -> None:
    """Takes events at a server, and commits there or wherever the channel is by then, or rolls back."""
    account, channels, txn_id = servers.accounts[channel], server.rpc.channels, uuid.uuid4().hex
    await channels.BeginTxn(pb.BeginTxnRequest(channel=channel, txn_id=txn_id), timeout=CALL_SECONDS)
    removed_count = account.removed_count
    taken = account.serves(await _taken(server, channel, txn_id), removed_count)
    if is_rolled_back:
        await channels.Rollback(pb.RollbackRequest(txn_id=txn_id, channel=channel), timeout=CALL_SECONDS)
        return
    account.doubts(taken)
    if await _has_committed(servers, pb.CommitRequest(txn_ids=[txn_id], channel=channel)):
        account.removes(taken)
    else:
        account.keeps(taken)


async def _taken(server: SharedServer, channel: str, txn_id: str) -> list[tuple[int, bytes]]:
    wait = seconds(_TAKE_WAIT_SECONDS)
    request = pb.TakeRequest(txn_id=txn_id, channel=channel, max_events=_TAKE_EVENTS_MAX, wait=wait)
    response = await server.rpc.channels.Take(request, timeout=CALL_SECONDS * 3)
    return [(sequence, body) for sequence, _, body in rows_of(response.batches)]


async def _has_committed(servers: SharedServers, request: pb.CommitRequest) -> bool:
    """Commits; a later owner also knows how the transaction has ended."""
    try:
        await servers.call(lambda rpc: rpc.channels.Commit(request, timeout=CALL_SECONDS))
    except aio.AioRpcError as error:
        endure(error, _TXN_ENDED)
        return False
    return True


async def _shown(server: SharedServer, from_sequence: int) -> list[tuple[int, bytes]]:
    request = admin.PeekEventsRequest(channel=LOG, from_sequence=from_sequence, max_events=_SHOWN_EVENTS_MAX)
    responses = server.rpc.admin.PeekEvents(request, timeout=CALL_SECONDS * 3)
    return [(sequence, body) for sequence, _, body in rows_of([response.batch async for response in responses])]


def _append(request: pb.AppendRequest) -> Callable[[Rpc], Awaitable[pb.AppendResponse]]:
    return lambda rpc: rpc.channels.Append(request, timeout=CALL_SECONDS)


class _Scene:
    """The servers under load, and what is done to them and to the nodes."""

    def __init__(self, servers: SharedServers, cluster: JetStreamCluster, chance: random.Random) -> None:
        self.servers = servers
        self.callers = _Callers(servers, chance)
        self.chance = chance
        self._nodes = {channel: Faults(cluster, f"MILLRACE_{channel}", chance) for channel in CHANNELS}
        self._late_responses = self._late_refusals = 0
        self._counts = dict.fromkeys(_FAULTS, 0)

    @property
    def kills(self) -> int:
        """The kills of servers and nodes."""
        return self.servers.kill_count + sum(faults.kill_count for faults in self._nodes.values())

    async def suffer(self, fault: str) -> None:
        """Lets one fault happen to a channel's owner, or to the node that leads its stream, while all goes on."""
        channel = self.chance.choice(CHANNELS)
        self._counts[fault] += 1
        nodes, owner = self._nodes[channel], await self.servers.owner(channel)
        match fault:
            case "kill a node":
                await nodes.kill(1)
            case "kill two nodes":
                await nodes.kill(2)
            case "kill all nodes":
                await nodes.kill(3)
            case "halt a node":
                await nodes.halt()
            case "kill the owner":
                await self.servers.kill(owner)
            case "halt the owner":
                await self._halt(channel, owner)
            case "restart the owner":
                await self.servers.restart(owner)
            case "move":
                await self.servers.move(channel, owner)
            case _:
                self.servers.cut()
        self.callers.check()

    async def _halt(self, channel: str, owner: SharedServer) -> None:
        """Halts an owner, which gets a take or a peek meanwhile, and may not serve it from what it still has."""
        account, txn_id = self.servers.accounts[channel], uuid.uuid4().hex
        begin = pb.BeginTxnRequest(channel=channel, txn_id=txn_id)
        try:
            await owner.rpc.channels.BeginTxn(begin, timeout=CALL_SECONDS)
            async with self.servers.halted(owner):
                late = asyncio.ensure_future(
                    _taken(owner, channel, txn_id) if channel == QUEUE else _shown(owner, account.newest[0])
                )
            removed_count, newest = account.removed_count, account.newest
            events = await late
        except aio.AioRpcError as error:
            endure(error, ELSEWHERE | _TXN_ENDED)
            self._late_refusals += 1
            return
        self._late_responses += 1
        if channel == QUEUE:
            account.serves(events, removed_count)
        else:
            account.shows([event for event in events if event[0] >= newest[0]], newest)

    def told(self) -> str:
        """What has happened, for a report."""
        log, queue = (self.servers.accounts[name] for name in CHANNELS)
        return (
            f"{self.servers.takeovers} takeovers, {self.kills} kills, {self._counts}; {len(log.stored)} and "
            f"{len(queue.stored)} events acknowledged, {queue.removed_count} removed; {log.view_count} views of the "
            f"whole log, {log.served + queue.served} responds to readers and takers; calls at owners that stood still: "
            f"{self._late_refusals} refused, {self._late_responses} responded by an owner"
        )


_FAULTS = {
    "kill a node": 3,
    "kill two nodes": 1,
    "kill all nodes": 1,
    "halt a node": 0.3,
    "kill the owner": 4,
    "halt the owner": 3,
    "restart the owner": 1,
    "move": 4,
    "cut": 1,
}
"""What happens, and how often in proportion."""


@asynccontextmanager
async def _scene(cluster: JetStreamCluster, scratch: Path, chance: random.Random) -> AsyncIterator[_Scene]:
    """Servers under load; at the end each event was there exactly once."""
    async with SharedServers(cluster, scratch, chance) as servers:
        scene = _Scene(servers, cluster, chance)
        await asyncio.gather(*[servers.owner(channel) for channel in CHANNELS])
        try:
            yield scene
        finally:
            await scene.callers.end()
            print(scene.told())  # noqa: T201 - what a long run has shown
        await servers.view()
        for channel in CHANNELS:
            await _drain(servers, channel)


async def _drain(servers: SharedServers, channel: str) -> None:
    """Takes everything that is left, and closes the account."""
    account = servers.accounts[channel]
    # What takers that were cut off have taken comes back when their transactions' leases end.
    async with asyncio.timeout(_DRAIN_SECONDS_MAX):
        while account.removed != account.stored:
            with suppress(aio.AioRpcError):
                await _take_some(servers, await servers.owner(channel), channel)
    owner = await servers.owner(channel)
    account.close((await owner.rpc.look(channel)).gauges.next_sequence)


@pytest.mark.timeout(600)
async def test_owners_and_nodes_that_are_killed_and_halted_lose_and_repeat_nothing(
    jetstream_cluster: JetStreamCluster, tmp_path: Path, chance: random.Random
) -> None:
    """Each later owner shows each acknowledged commit once and in order, and no overtaken one serves anything."""
    faults = ("kill the owner", "halt the owner", "move", "kill a node", "restart the owner")
    async with _scene(jetstream_cluster, tmp_path, chance) as scene:
        for fault in faults:
            await scene.suffer(fault)
        assert scene.servers.takeovers >= len(faults)


@pytest.mark.torture
@pytest.mark.timeout(7_200)
async def test_hundreds_of_owners_and_nodes_that_are_killed_and_halted_lose_and_repeat_nothing(
    jetstream_cluster: JetStreamCluster, tmp_path: Path, chance: random.Random
) -> None:
    """The same for an hour, also with several nodes at once, and halted ones."""
    names, weights = list(_FAULTS), list(_FAULTS.values())
    async with _scene(jetstream_cluster, tmp_path, chance) as scene:
        while scene.kills < _KILLS or scene.servers.takeovers < _TAKEOVERS:
            await scene.suffer(chance.choices(names, weights)[0])
