"""A server that is stopping: what still works over the wire, and what does not."""

import asyncio
import signal

import grpc

from millrace.v1 import channel_service_pb2 as pb
from tests.conftest import StartMillraced
from tests.rpc import TIMEOUT_SECONDS, Refusal, Rpc, Stream, bodies_of, connected, events, refused, seconds

GRACE_TOML = "server.shutdown_grace_seconds = 600.0"
UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


async def consume(rpc: Rpc, name: str) -> Stream:
    stream = Stream(rpc.channels.Consume(timeout=TIMEOUT_SECONDS))
    start = pb.ConsumeRequest.Start(channel=name, max_events=1, prefetch=2)
    await stream.send(pb.ConsumeRequest(start=start))
    return stream


async def test_calls_while_the_server_drains_begin_nothing_new(start_millraced: StartMillraced) -> None:
    """BeginTxn, Append, Claim and Consume get DRAINING; takes and renewals do not wait; open transactions may end."""
    server = start_millraced(GRACE_TOML)
    async with connected(server.grpc) as rpc:
        name = await rpc.make_channel()
        txn_id = await rpc.begin(name, txn_id="mine")
        waiting = asyncio.ensure_future(rpc.take(txn_id, wait=seconds(3600)))
        await rpc.until(name, waiting_takes=1)
        stream = Stream(rpc.channels.AppendStream(timeout=TIMEOUT_SECONDS))
        await stream.send(pb.AppendStreamRequest(channel=name, events=events(b"a")))
        assert (await stream.receive()).first_sequence == 1
        assert bodies_of((await waiting).batches) == [b"a"]
        waiting = asyncio.ensure_future(rpc.take(txn_id, wait=seconds(3600)))
        claimed = await rpc.make_channel()
        epoch = (await rpc.claim(claimed, "r")).epoch
        renewing = asyncio.ensure_future(rpc.claim(claimed, "r", epoch=epoch, wait=seconds(3600)))
        await rpc.until(name, waiting_takes=1)
        server.send(signal.SIGTERM)
        for ended in (waiting, renewing):
            async with refused(UNAVAILABLE, "DRAINING", "the server is stopping"):
                await ended
        assert not (await rpc.take(txn_id)).batches
        assert (await rpc.claim(claimed, "r", epoch=epoch)).epoch == epoch
        for call in (
            rpc.begin(name),
            rpc.append(name, b"x"),
            rpc.claim(name, "r"),
            (await consume(rpc, name)).receive(),
        ):
            async with refused(UNAVAILABLE, "DRAINING", "the server is stopping"):
                await call
        await stream.send(pb.AppendStreamRequest(channel=name, events=events(b"x")))
        assert Refusal.of_status((await stream.receive()).error).reason == "DRAINING"
        stream.cancel()
        assert await rpc.begin(name, txn_id=txn_id) == txn_id
        assert await rpc.put(txn_id, b"b") == 1
        assert (await rpc.commit(txn_id)).first_sequence == 2
    assert await asyncio.to_thread(server.wait) == 0


async def test_consume_while_the_server_drains_may_settle_what_is_out(start_millraced: StartMillraced) -> None:
    """Nothing more is delivered, acks take effect, and with the last one the stream ends with DRAINING."""
    server = start_millraced(GRACE_TOML)
    async with connected(server.grpc) as rpc:
        name = await rpc.make_channel()
        await rpc.append(name, b"a", b"b", b"c")
        stream = await consume(rpc, name)
        deliveries = [await stream.receive() for _ in range(2)]
        server.send(signal.SIGTERM)
        await asyncio.to_thread(server.wait_for, "stopping")
        await stream.send(pb.ConsumeRequest(ack=pb.ConsumeRequest.Ack(delivery_ids=[deliveries[0].delivery_id])))
        await rpc.until(name, taken_events=1)
        assert await rpc.peek(name) == [b"c"]
        await stream.send(pb.ConsumeRequest(ack=pb.ConsumeRequest.Ack(delivery_ids=[deliveries[1].delivery_id])))
        async with refused(UNAVAILABLE, "DRAINING"):
            await stream.receive()
    assert await asyncio.to_thread(server.wait) == 0
