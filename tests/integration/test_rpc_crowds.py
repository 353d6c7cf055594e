"""Many callers at once: calls, waiting takes, abandoned transactions, and their cost."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from millrace.v1 import admin_service_pb2
from millrace.v1 import channel_service_pb2 as pb
from millrace_server.grpc_services.server import STREAMS_MAX
from tests.conftest import StartMillraced
from tests.millraced import Millraced
from tests.process_figures import cpu_seconds, resident_bytes, thread_count
from tests.rpc import Rpc, columns, connected, events, seconds, sequences_of

CALLS = 2_000
TAKERS = 1_000
THREADS_MAX = 20


@pytest.fixture
def server(start_millraced: StartMillraced) -> Millraced:
    """A server used by no other test, for exact figures."""
    return start_millraced("server.shutdown_grace_seconds = 0.0")


@asynccontextmanager
async def connections(server: Millraced, count: int) -> AsyncGenerator[list[Rpc]]:
    async with AsyncExitStack() as opened:
        yield [await opened.enter_async_context(connected(server.grpc)) for _ in range(count)]


@pytest.mark.parametrize(
    ("calls", "connection_count"), [(STREAMS_MAX + 500, 1), pytest.param(CALLS, 20, marks=pytest.mark.torture)]
)
async def test_calls_all_at_once_all_succeed(server: Millraced, calls: int, connection_count: int) -> None:
    """All calls succeed, even above a connection's limit of concurrent calls; each stores its event."""
    async with connections(server, connection_count) as rpcs:
        name = await rpcs[0].make_channel(capacity=calls)
        request = pb.AppendRequest(channel=name, events=events(b"a"))
        responses = await asyncio.gather(*(rpcs[index % len(rpcs)].channels.Append(request) for index in range(calls)))
        assert sorted(response.first_sequence for response in responses) == list(range(1, calls + 1))
        assert (await rpcs[0].look(name)).gauges.queued_events == calls
        assert thread_count(server.process.pid) < THREADS_MAX


@asynccontextmanager
async def waiting_takers(rpcs: list[Rpc]) -> AsyncGenerator[tuple[str, set[asyncio.Future[pb.TakeResponse]]]]:
    """A channel, and a thousand calls over the connections that wait for its events."""
    name = await rpcs[0].make_channel(capacity=TAKERS, lease=seconds(3600))
    txn_ids = await asyncio.gather(*(rpcs[0].begin(name) for _ in range(TAKERS)))
    takes = {
        asyncio.ensure_future(rpcs[index % len(rpcs)].channels.Take(pb.TakeRequest(txn_id=txn_id, wait=seconds(3600))))
        for index, txn_id in enumerate(txn_ids)
    }
    await rpcs[0].until(name, waiting_takes=TAKERS)
    yield name, takes


@pytest.mark.parametrize("connection_count", [1, pytest.param(10, marks=pytest.mark.torture)])
async def test_put_wakes_one_of_a_thousand_takers(server: Millraced, connection_count: int) -> None:
    """Waiting takes need no threads; a put over the same connection succeeds, and wakes one of them."""
    async with connections(server, connection_count) as rpcs, waiting_takers(rpcs) as (name, takes):
        rpc = rpcs[0]
        assert thread_count(server.process.pid) < THREADS_MAX
        await rpc.append(name, b"a")
        done, waiting = await asyncio.wait(takes, return_when=asyncio.FIRST_COMPLETED)
        assert [sequences_of(take.result().batches) for take in done] == [[1]]
        assert (await rpc.look(name)).gauges.waiting_takes == TAKERS - 1

        for _ in range(TAKERS - 1):
            await rpc.append(name, b"a")
        responses = await asyncio.gather(*waiting)
        assert sorted(sequence for response in responses for sequence in sequences_of(response.batches)) == [
            *range(2, TAKERS + 1)
        ]


@pytest.mark.torture
async def test_takers_that_wait_need_no_processor(server: Millraced) -> None:
    """A second without events takes next to no processor time."""
    pid = server.process.pid
    async with connections(server, 10) as rpcs, waiting_takers(rpcs) as (name, takes):
        before = cpu_seconds(pid)
        await asyncio.sleep(1)
        assert cpu_seconds(pid) - before <= 0.05
        await rpcs[0].append(name, *[b"a"] * TAKERS)
        await asyncio.gather(*takes)


async def until_returned(rpc: Rpc, pid: int, resident: float) -> None:
    """Waits until the server's memory is at most this, which takes some seconds."""
    ticks = rpc.admin.WatchChannels(admin_service_pb2.WatchChannelsRequest(names=["none"], interval=seconds(0.1)))
    while resident_bytes(pid) > resident:
        await ticks.read()
    ticks.cancel()


async def test_events_in_memory_cost_little_more_than_their_bytes(server: Millraced) -> None:
    """1,000,000 events of 100 bytes, queued in batches of 1,000, take at most 1.3 times their bytes."""
    pid = server.process.pid
    body = bytes(range(100))
    async with connected(server.grpc) as rpc:
        name = await rpc.make_channel(capacity=1_000_000, transaction_capacity=1_000)
        request = pb.AppendRequest(channel=name, columns=columns(*[body] * 1_000, host="web-1"))

        async def fill(batches: int) -> None:
            for _ in range(batches):
                await rpc.channels.Append(request)

        # The cost of the first calls is not part of the events' cost.
        await fill(20)
        await rpc.purge(name)
        before = resident_bytes(pid)
        await fill(1_000)
        assert (await rpc.look(name)).gauges.body_bytes == 100_000_000
        assert resident_bytes(pid) - before <= 1.3 * 100_000_000
        await rpc.purge(name)
        await until_returned(rpc, pid, before + 10_000_000)


async def test_abandoned_transactions_give_their_memory_back(server: Millraced) -> None:
    """When the leases of 2,000 abandoned transactions expire, the server frees their memory."""
    pid = server.process.pid
    count, callers, body_bytes = 2_000, 50, 50_000
    async with connected(server.grpc) as rpc:
        name = await rpc.make_channel(open_transactions_max=count, lease=seconds(5))
        before = resident_bytes(pid)

        async def abandon() -> None:
            for _ in range(count // callers):
                await rpc.put(await rpc.begin(name), bytes(body_bytes))

        await asyncio.gather(*(abandon() for _ in range(callers)))
        most = resident_bytes(pid)
        # All of them, unless the machine is so slow that the first have expired by then.
        open_count = (await rpc.look(name)).gauges.open_transactions
        assert most - before > open_count * body_bytes * 0.9
        watched = rpc.admin.WatchChannels(admin_service_pb2.WatchChannelsRequest(names=[name], interval=seconds(0.1)))
        while (await watched.read()).channels[0].counters.lease_expired_count < count:
            pass
        watched.cancel()
        # The remaining memory is that of the outcomes, which are remembered.
        await until_returned(rpc, pid, before + count * body_bytes * 0.3)
