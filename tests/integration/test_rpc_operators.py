"""What operators see of transactions, consumers and producers over the wire, and how they end and forget them."""

from typing import Any

import grpc
import pytest

from millrace.v1 import admin_service_pb2 as pb
from millrace.v1 import channel_service_pb2 as channel_pb
from millrace.v1.event_pb2 import ProducerStamp
from tests.rpc import TIMEOUT_SECONDS, Rpc, Stream, refused, seconds

FILE = pb.CHANNEL_TYPE_FILE


async def listed(rpc: Rpc, channel: str = "") -> list[pb.OpenTransaction]:
    response: pb.ListTransactionsResponse = await rpc.admin.ListTransactions(
        pb.ListTransactionsRequest(channel=channel)
    )
    return list(response.transactions)


async def end(rpc: Rpc, txn_id: str) -> None:
    await rpc.admin.EndTransaction(pb.EndTransactionRequest(txn_id=txn_id))


async def consumers(rpc: Rpc, channel: str) -> list[pb.Consumer]:
    response: pb.ListConsumersResponse = await rpc.admin.ListConsumers(pb.ListConsumersRequest(channel=channel))
    return list(response.consumers)


async def producers(rpc: Rpc, channel: str) -> list[pb.Producer]:
    response: pb.ListProducersResponse = await rpc.admin.ListProducers(pb.ListProducersRequest(channel=channel))
    return list(response.producers)


async def consume(rpc: Rpc, channel: str) -> Stream:
    stream = Stream(rpc.channels.Consume(timeout=TIMEOUT_SECONDS))
    await stream.send(channel_pb.ConsumeRequest(start=channel_pb.ConsumeRequest.Start(channel=channel, max_events=2)))
    return stream


async def forget(rpc: Rpc, channel: str, producer_id: str) -> None:
    await rpc.admin.ForgetProducer(pb.ForgetProducerRequest(channel=channel, producer_id=producer_id))


def stamp(producer_id: str, first: int, last: int) -> ProducerStamp:
    return ProducerStamp(producer_id=producer_id, first_sequence=first, last_sequence=last)


async def test_list_of_transactions_has_what_each_holds(rpc: Rpc) -> None:
    """Transactions of all channels, or of one, with the lease that remains."""
    name, other = await rpc.make_channel(), await rpc.make_channel()
    await rpc.append(name, b"first", b"second")
    txn_id = await rpc.begin(name, lease=seconds(3_000))
    await rpc.put(txn_id, b"123456")
    await rpc.take(txn_id, max_events=1)
    elsewhere = await rpc.begin(other)
    [txn] = await listed(rpc, name)
    assert (txn.txn_id, txn.channel, txn.put_count, txn.take_count) == (txn_id, name, 1, 1)
    assert txn.body_bytes == len(b"123456") + len(b"first")
    assert 2_900 < txn.lease_remaining.seconds <= 3_000
    assert txn.peer.startswith("ipv4:127.0.0.1:")
    assert (txn.identity, txn.is_delivery) == ("", False)
    assert {txn_id, elsewhere} <= {one.txn_id for one in await listed(rpc)}
    async with refused(grpc.StatusCode.NOT_FOUND, "CHANNEL_NOT_FOUND", "no-such-channel"):
        await listed(rpc, "no-such-channel")


@pytest.mark.parametrize("made_type", [pb.CHANNEL_TYPE_MEMORY, FILE, pb.CHANNEL_TYPE_SPILLABLE])
async def test_end_of_a_transaction_returns_its_events(rpc: Rpc, made_type: int) -> None:
    """Its owner learns that it is over; a repeat succeeds; committed and unknown ones are refused."""
    name = await rpc.make_channel(type=made_type)
    await rpc.append(name, b"a")
    txn_id = await rpc.begin(name)
    await rpc.take(txn_id)
    for _ in range(2):
        await end(rpc, txn_id)
    assert await rpc.peek(name) == [b"a"]
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "TXN_STATE", "rolled back"):
        await rpc.commit(txn_id)
    committed = await rpc.begin(name)
    await rpc.commit(committed)
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "TXN_STATE", "committed"):
        await end(rpc, committed)
    async with refused(grpc.StatusCode.NOT_FOUND, "TXN_NOT_FOUND", "known"):
        await end(rpc, "never-begun")
    assert await listed(rpc, name) == []
    await rpc.purge(name)


async def test_end_of_an_expired_transaction_succeeds(rpc: Rpc) -> None:
    """It was rolled back already."""
    name = await rpc.make_channel()
    txn_id = await rpc.begin(name, lease=seconds(0.001))
    await rpc.until(name, open_transactions=0)
    await end(rpc, txn_id)


async def test_end_of_a_transaction_whose_commit_waits_for_space_ends_the_wait(rpc: Rpc) -> None:
    """Until the commit is submitted, the transaction is open."""
    name = await rpc.make_channel(capacity=1, keep_alive=seconds(3_000))
    await rpc.append(name, b"a")
    txn_id = await rpc.begin(name)
    await rpc.put(txn_id, b"b")
    committing = rpc.channels.Commit(channel_pb.CommitRequest(txn_ids=[txn_id]), timeout=TIMEOUT_SECONDS)
    await rpc.until(name, waiting_commits=1)
    await end(rpc, txn_id)
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "TXN_STATE", "rolled back"):
        await committing
    assert await rpc.peek(name) == [b"a"]


async def test_end_of_a_delivery_returns_its_events_to_other_consumers(rpc: Rpc) -> None:
    """An ack that comes later removes nothing; the stream continues."""
    name = await rpc.make_channel()
    stuck = await consume(rpc, name)
    await rpc.append(name, b"a", b"b")
    assert (await stuck.receive()).delivery_id == 1
    [delivery] = await listed(rpc, name)
    assert (delivery.is_delivery, delivery.take_count, delivery.HasField("lease_remaining")) == (True, 2, False)
    claimed = await rpc.begin(name)
    for _ in range(2):
        await end(rpc, delivery.txn_id)
    # Whoever waits first gets them.
    assert (await stuck.receive()).delivery_id == 2
    await stuck.send(channel_pb.ConsumeRequest(ack=channel_pb.ConsumeRequest.Ack(delivery_ids=[1])))
    await stuck.send(channel_pb.ConsumeRequest(nack=channel_pb.ConsumeRequest.Nack(delivery_ids=[2])))
    assert (await stuck.receive()).delivery_id == 3
    [again] = [txn for txn in await listed(rpc, name) if txn.is_delivery]
    await stuck.send(channel_pb.ConsumeRequest(ack=channel_pb.ConsumeRequest.Ack(delivery_ids=[3])))
    await rpc.until(name, taken_events=0)
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "TXN_STATE", "committed"):
        await end(rpc, again.txn_id)
    await rpc.rollback(claimed)
    stuck.cancel()


async def test_list_of_consumers_has_streams_with_and_without_deliveries(rpc: Rpc) -> None:
    """A consumer is listed from its start to its end, the oldest first."""
    name = await rpc.make_channel()
    first, second = await consume(rpc, name), await consume(rpc, name)
    while len(await consumers(rpc, name)) < 2:
        pass
    await rpc.append(name, b"a", b"b", b"c")
    await first.receive()
    while sum(one.open_events for one in await consumers(rpc, name)) < 3:
        pass
    oldest, newest = await consumers(rpc, name)
    assert oldest.start_time.ToNanoseconds() <= newest.start_time.ToNanoseconds()
    assert oldest.peer.startswith("ipv4:")
    assert oldest.open_deliveries + newest.open_deliveries == 2
    first.cancel()
    second.cancel()
    while await consumers(rpc, name):
        pass


async def test_release_of_a_claim_fences_its_reader_off(rpc: Rpc) -> None:
    """As `takeover` would: the reader's epoch is an earlier one, and takes are served again; a repeat succeeds."""
    name = await rpc.make_channel(type=FILE)
    await rpc.append(name, b"a")
    claim = await rpc.claim(name, "dead-job")

    async def release(**fields: Any) -> None:
        await rpc.admin.ReleaseClaim(pb.ReleaseClaimRequest(channel=name, **fields))

    async with refused(grpc.StatusCode.ABORTED, "STALE_EPOCH", "epoch"):
        await release(epoch=claim.epoch - 1)
    await release(epoch=claim.epoch)
    async with refused(grpc.StatusCode.ABORTED, "STALE_EPOCH", "epoch"):
        await rpc.read(name, "dead-job", epoch=claim.epoch)
    assert len((await rpc.take(await rpc.begin(name))).batches) == 1
    await release(epoch=claim.epoch)
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "NOT_CLAIMED", "claimed"):
        await release()


async def test_producers_are_listed_and_forgotten(rpc: Rpc) -> None:
    """Gaps are counted, not missing numbers; a repeat counts as seen, and after the producer is forgotten is stored."""
    name = await rpc.make_channel(type=FILE)
    await rpc.append(name, b"a", stamp=stamp("p", 1, 1))
    await rpc.append(name, b"b", stamp=stamp("p", 9, 9))
    await rpc.append(name, b"c", stamp=stamp("q", 5, 5))
    p, q = await producers(rpc, name)
    assert (p.producer_id, p.last_sequence, p.gap_count) == ("p", 9, 1)
    assert (q.producer_id, q.last_sequence, q.gap_count) == ("q", 5, 0)
    assert (await rpc.append(name, b"a", stamp=stamp("p", 1, 1))).deduplicated
    *_, again = await producers(rpc, name)
    assert again.producer_id == "p"
    assert again.last_seen.ToMicroseconds() >= q.last_seen.ToMicroseconds() >= p.last_seen.ToMicroseconds() > 0
    await forget(rpc, name, "p")
    assert [one.producer_id for one in await producers(rpc, name)] == ["q"]
    assert not (await rpc.append(name, b"a", stamp=stamp("p", 1, 1))).deduplicated
    async with refused(grpc.StatusCode.NOT_FOUND, "PRODUCER_NOT_FOUND", "'nobody'"):
        await forget(rpc, name, "nobody")


async def test_retry_of_a_component_that_does_not_exist_is_refused(rpc: Rpc) -> None:
    """The shared server has no components."""
    async with refused(grpc.StatusCode.NOT_FOUND, "COMPONENT_NOT_FOUND", "'nobody'"):
        await rpc.admin.RetryComponent(pb.RetryComponentRequest(name="nobody"))
