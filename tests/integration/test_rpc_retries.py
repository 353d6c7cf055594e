"""Calls whose response was lost: the repeat has the effect of one call."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import grpc
import pytest
from grpc import aio

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from tests.cutting_proxy import CuttingProxy, cutting_proxy
from tests.millraced import Millraced
from tests.rpc import TIMEOUT_SECONDS, Rpc, bodies_of, connected, events, seconds

RUNS_REPLICATED = True

_STREAMS = {"AppendStream", "Consume", "Read"}
_SERVICE = pb.DESCRIPTOR.services_by_name["ChannelService"]
# Unary calls only: gRPC's own retries lose messages of a stream that breaks during a write.
_RETRY_POLICY = {
    "methodConfig": [
        {
            "name": [
                {"service": _SERVICE.full_name, "method": method}
                for method in _SERVICE.methods_by_name
                if method not in _STREAMS
            ],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.01s",
                "maxBackoff": "0.1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


@dataclass
class Lossy:
    """A connection that loses responses, and retries by gRPC's retry policy."""

    rpc: Rpc
    proxy: CuttingProxy

    async def losing_a_reply(self, call: Callable[[Rpc], Awaitable[object]]) -> object:
        """Makes a call whose first response is lost; returns the response to gRPC's own retry."""
        self.proxy.lose_next_response()
        response = await call(self.rpc)
        assert self.proxy.cut_count == 1
        self.proxy.cut_count = 0
        return response


@pytest.fixture
async def lossy(rpc_server: Millraced) -> AsyncGenerator[Lossy]:
    async with (
        cutting_proxy(rpc_server.grpc) as proxy,
        connected(
            proxy.address,
            service_config=json.dumps(_RETRY_POLICY),
            initial_reconnect_backoff_ms=10,
        ) as rpc,
    ):
        yield Lossy(rpc, proxy)


async def test_lost_reply_of_begin_opens_one_transaction(rpc: Rpc, lossy: Lossy) -> None:
    """With the caller's id the repeat finds the transaction."""
    name = await rpc.make_channel()
    assert await lossy.losing_a_reply(lambda it: it.begin(name, txn_id=f"{name} mine")) == f"{name} mine"
    assert (await rpc.look(name)).gauges.open_transactions == 1


async def test_lost_reply_of_put_stores_each_event_once(rpc: Rpc, lossy: Lossy) -> None:
    """With an offset the repeat adds nothing."""
    name = await rpc.make_channel()
    txn_id = await rpc.begin(name)
    assert await lossy.losing_a_reply(lambda it: it.put(txn_id, b"a", b"b", put_offset=0)) == 2
    assert await lossy.losing_a_reply(lambda it: it.put(txn_id, b"c", put_offset=2)) == 3
    await rpc.commit(txn_id)
    assert await rpc.peek(name) == [b"a", b"b", b"c"]
    assert (await rpc.look(name)).counters.event_put_attempt_count == 6


async def test_lost_reply_of_take_comes_again(rpc: Rpc, lossy: Lossy) -> None:
    """With an offset the repeat returns the lost events, and nothing is taken twice."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a", b"b", b"c")
    txn_id = await rpc.begin(name)
    response = await lossy.losing_a_reply(lambda it: it.take(txn_id, max_events=2, take_offset=0))
    assert isinstance(response, pb.TakeResponse)
    assert bodies_of(response.batches) == [b"a", b"b"]
    assert (await rpc.look(name)).gauges.taken_events == 2


async def test_lost_reply_of_commit_commits_once(rpc: Rpc, lossy: Lossy) -> None:
    """The repeat gets the same sequences."""
    name = await rpc.make_channel()
    txn_id = await rpc.begin(name)
    await rpc.put(txn_id, b"a", b"b")
    response = await lossy.losing_a_reply(lambda it: it.commit(txn_id))
    assert response == await rpc.commit(txn_id)
    assert await rpc.peek(name) == [b"a", b"b"]
    assert (await rpc.look(name)).counters.commit_count == 1


async def test_lost_reply_of_rollback_rolls_back_once(rpc: Rpc, lossy: Lossy) -> None:
    """The repeat succeeds too."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a")
    txn_id = await rpc.begin(name)
    await rpc.take(txn_id)
    await lossy.losing_a_reply(lambda it: it.rollback(txn_id))
    channel = await rpc.look(name)
    assert (channel.gauges.queued_events, channel.counters.rollback_count) == (1, 1)


async def test_lost_reply_of_append_stores_each_event_once(rpc: Rpc, lossy: Lossy) -> None:
    """The response to a repeat with the same stamp says that everything was already stored."""
    name = await rpc.make_channel()
    stamp = event_pb2.ProducerStamp(producer_id="p", first_sequence=1, last_sequence=2)
    response = await lossy.losing_a_reply(lambda it: it.append(name, b"a", b"b", stamp=stamp))
    assert response == pb.AppendResponse(deduplicated=True)
    assert await rpc.peek(name) == [b"a", b"b"]


async def test_lost_reply_of_claim_keeps_the_epoch(rpc: Rpc, lossy: Lossy) -> None:
    """The repeat renews the claim of the first call."""
    name = await rpc.make_channel()
    response = await lossy.losing_a_reply(lambda it: it.claim(name, "reader-1"))
    assert isinstance(response, pb.ClaimResponse)
    again = await rpc.claim(name, "reader-1", takeover=True)
    assert again.epoch == response.epoch + 1


async def test_lost_reply_of_acknowledge_removes_once(rpc: Rpc, lossy: Lossy) -> None:
    """The repeat returns the reader's position."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a", b"b")
    await rpc.claim(name, "reader-1")
    request = pb.AcknowledgeRequest(channel=name, reader_id="reader-1", through_sequence=1)
    response = await lossy.losing_a_reply(lambda it: it.channels.Acknowledge(request))
    assert response == pb.AcknowledgeResponse(first_sequence=2)
    assert (await rpc.look(name)).counters.event_take_success_count == 1


async def test_lost_reply_of_renew_renews(rpc: Rpc, lossy: Lossy) -> None:
    """A renewal may take effect twice."""
    txn_id = await rpc.begin(await rpc.make_channel(), lease=seconds(9))
    request = pb.RenewTxnRequest(txn_id=txn_id)
    response = await lossy.losing_a_reply(lambda it: it.channels.RenewTxn(request))
    assert response == pb.RenewTxnResponse(lease=seconds(9))


async def test_broken_append_stream_sent_again_stores_each_event_once(rpc: Rpc, lossy: Lossy) -> None:
    """A producer that repeats pending requests with their stamps neither loses nor duplicates events."""
    name = await rpc.make_channel(capacity=1000)
    requests = [
        pb.AppendStreamRequest(
            channel=name,
            events=events(b"%d" % number),
            stamp=event_pb2.ProducerStamp(producer_id="p", first_sequence=number, last_sequence=number),
        )
        for number in range(50)
    ]
    responded = 0
    lossy.proxy.lose_next_response()
    while responded < len(requests):
        stream = lossy.rpc.channels.AppendStream(iter_requests(requests[responded:]), timeout=TIMEOUT_SECONDS)
        with suppress(aio.AioRpcError):
            async for response in stream:
                assert not response.HasField("error")
                responded += 1
    assert lossy.proxy.cut_count == 1
    assert await rpc.peek(name) == [b"%d" % number for number in range(50)]


async def iter_requests(requests: list[pb.AppendStreamRequest]) -> AsyncGenerator[pb.AppendStreamRequest]:
    for request in requests:
        yield request


async def test_cancelled_commit_that_waits_leaves_the_transaction_open(rpc: Rpc) -> None:
    """A commit whose deadline ends while it waits has no effect, and the repeat commits."""
    name = await rpc.make_channel(capacity=1, keep_alive=seconds(3600))
    await rpc.append(name, b"a")
    txn_id = await rpc.begin(name)
    await rpc.put(txn_id, b"b")
    with pytest.raises(aio.AioRpcError) as passed:
        await rpc.channels.Commit(pb.CommitRequest(txn_ids=[txn_id]), timeout=0.1)
    assert passed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await rpc.until(name, waiting_commits=0)
    await rpc.purge(name)
    assert (await rpc.commit(txn_id)).first_sequence == 2
    assert await rpc.peek(name) == [b"b"]
