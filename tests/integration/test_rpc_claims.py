"""Claim, Read, Acknowledge and Release over the wire."""

import asyncio

import grpc
import pytest

from millrace.v1 import channel_service_pb2 as pb
from tests.rpc import TIMEOUT_SECONDS, Rpc, bodies_of, refused, seconds, sequences_of

RUNS_REPLICATED = True

READER = "reader-1"


async def acknowledge(rpc: Rpc, channel: str, reader_id: str, through: int, epoch: int | None = None) -> int:
    request = pb.AcknowledgeRequest(channel=channel, reader_id=reader_id, through_sequence=through, epoch=epoch)
    response: pb.AcknowledgeResponse = await rpc.channels.Acknowledge(request)
    return response.first_sequence


async def release(rpc: Rpc, channel: str, reader_id: str, epoch: int | None = None) -> None:
    await rpc.channels.Release(pb.ReleaseRequest(channel=channel, reader_id=reader_id, epoch=epoch))


async def test_claim_returns_the_range(rpc: Rpc) -> None:
    """The response contains the range, the epoch, the id of the channel and the lease."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a", b"b")
    claim = await rpc.claim(name, READER, lease=seconds(700))
    assert (claim.first_sequence, claim.next_sequence) == (1, 3)
    assert claim.lease == seconds(700)
    channel = await rpc.look(name)
    assert claim.channel_id == channel.channel_id
    assert (channel.claim.reader_id, channel.claim.epoch) == (READER, claim.epoch)
    assert 0 < channel.claim.remaining.ToTimedelta().total_seconds() <= 700


@pytest.mark.parametrize("in_columns", [False, True])
async def test_read_gives_a_range_as_often_as_asked(rpc: Rpc, *, in_columns: bool) -> None:
    """Reading removes nothing; the start of the range is included and its end excluded."""
    name = await rpc.make_channel()
    for bodies in ([b"a", b"b"], [b"c"], [b"d", b"e"]):
        await rpc.append(name, *bodies)
    claim = await rpc.claim(name, READER)
    for _ in range(2):
        batches = await rpc.read(name, READER, from_sequence=2, to_sequence=5, epoch=claim.epoch, columns=in_columns)
        assert (sequences_of(batches), bodies_of(batches)) == ([2, 3, 4], [b"b", b"c", b"d"])
        assert {batch.HasField("columns") for batch in batches} == {in_columns}
    assert bodies_of(await rpc.read(name, READER)) == [b"a", b"b", b"c", b"d", b"e"]
    assert await rpc.read(name, READER, from_sequence=3, to_sequence=3) == []
    assert await rpc.read(name, READER, from_sequence=6) == []


async def test_acknowledge_removes_what_lies_before(rpc: Rpc) -> None:
    """Acknowledgement is cumulative, cuts batches if needed, and may be repeated."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a", b"b", b"c")
    await rpc.claim(name, READER)
    assert [await acknowledge(rpc, name, READER, through) for through in (2, 2, 1, 0)] == [3, 3, 3, 3]
    assert await rpc.peek(name) == [b"c"]
    assert await acknowledge(rpc, name, READER, 3) == 4
    assert (await rpc.look(name)).counters.event_take_success_count == 3


async def test_claim_when_its_lease_has_run_out_is_free(rpc: Rpc) -> None:
    """A reader whose lease expires loses the claim, but not its position."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a", b"b")
    await rpc.claim(name, READER)
    await acknowledge(rpc, name, READER, 1)
    lost = await rpc.claim(name, READER, lease=seconds(0.05))
    await rpc.until_not_claimed(name)
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "NOT_CLAIMED"):
        await rpc.read(name, READER)
    other = await rpc.claim(name, "reader-2")
    assert (other.first_sequence, other.epoch) == (2, lost.epoch + 1)


async def test_take_while_a_claim_lives_is_refused(rpc: Rpc) -> None:
    """Takes, also waiting ones, are refused with the reader's id and the remaining time of its claim."""
    name = await rpc.make_channel()
    txn_id = await rpc.begin(name)
    waiting = asyncio.ensure_future(rpc.take(txn_id, wait=seconds(3600)))
    await rpc.until(name, waiting_takes=1)
    await rpc.claim(name, READER, lease=seconds(900))
    for take in (waiting, rpc.take(txn_id), rpc.claim(name, "reader-2")):
        async with refused(grpc.StatusCode.FAILED_PRECONDITION, "CHANNEL_CLAIMED", "'reader-1' has claimed") as caught:
            await take
        assert 0 < (caught.refusal.retry_delay_seconds or 0) <= 900
        assert caught.refusal.metadata["reader_id"] == READER


async def test_claim_while_events_are_taken_is_refused(rpc: Rpc) -> None:
    """Taken events may return into the range: TXNS_OPEN, with a retry delay."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a")
    txn_id = await rpc.begin(name)
    await rpc.take(txn_id)
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "TXNS_OPEN", "have taken 1 events") as caught:
        await rpc.claim(name, READER)
    assert caught.refusal.retry_delay_seconds
    await rpc.rollback(txn_id)
    await rpc.claim(name, READER)


async def test_acknowledge_beyond_the_end_is_refused(rpc: Rpc) -> None:
    """Future events cannot be acknowledged."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a")
    await rpc.claim(name, READER)
    async with rpc.unchanged(name), refused(grpc.StatusCode.OUT_OF_RANGE, "SEQUENCE_GONE", "2 does not exist yet"):
        await acknowledge(rpc, name, READER, 2)


async def test_read_when_the_claim_is_taken_over_ends(rpc: Rpc) -> None:
    """The stream of the former reader ends in the middle of its range with STALE_EPOCH."""
    name = await rpc.make_channel(capacity=1000, byte_capacity=1 << 30)
    for _ in range(40):
        await rpc.append(name, bytes(1 << 20))
    await rpc.claim(name, READER)
    stream = rpc.channels.Read(pb.ReadRequest(channel=name, reader_id=READER), timeout=TIMEOUT_SECONDS)
    assert len((await stream.read()).batch.events) == 1
    await rpc.claim(name, "reader-2", takeover=True)
    async with refused(grpc.StatusCode.ABORTED, "STALE_EPOCH"):
        while True:
            assert await stream.read()


async def test_epoch_of_a_channel_created_again_is_a_later_one(rpc: Rpc) -> None:
    """The new channel never grants an epoch of the former one, so readers of that get STALE_EPOCH."""
    name = await rpc.make_channel()
    former = await rpc.claim(name, READER)
    await rpc.delete(name)
    await rpc.make_channel(name)
    assert (await rpc.claim(name, READER)).epoch > former.epoch
    async with refused(grpc.StatusCode.ABORTED, "STALE_EPOCH"):
        await acknowledge(rpc, name, READER, 0, former.epoch)


async def renew(
    rpc: Rpc, channel: str, epoch: int, after_sequence: int = 0, wait_seconds: float = 30.0
) -> pb.ClaimResponse:
    """Renews the reader's claim, and waits for an event after a sequence."""
    return await rpc.claim(channel, READER, epoch=epoch, wait=seconds(wait_seconds), after_sequence=after_sequence)


async def test_renewal_that_waits_is_acknowledged_by_the_next_commit(rpc: Rpc) -> None:
    """A renewal with `after_sequence` waits for the channel to grow, so that readers need not poll."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a")
    claim = await rpc.claim(name, READER)
    known = await renew(rpc, name, claim.epoch, after_sequence=0)
    assert known.next_sequence == 2
    waiting = [asyncio.ensure_future(renew(rpc, name, claim.epoch, after_sequence=after)) for after in (1, 1, 2)]
    await asyncio.wait(waiting, timeout=0.1)
    assert not any(renewal.done() for renewal in waiting)
    await rpc.append(name, b"b")
    assert [(await renewal).next_sequence for renewal in waiting[:2]] == [3, 3]
    assert not waiting[2].done()
    await rpc.append(name, b"c")
    assert (await waiting[2]).next_sequence == 4


async def test_renewal_that_waits_keeps_the_claim(rpc: Rpc) -> None:
    """The lease does not run meanwhile; if no event came in time, the response says so."""
    name = await rpc.make_channel()
    claim = await rpc.claim(name, READER)
    response = await rpc.claim(name, READER, epoch=claim.epoch, lease=seconds(0.2), wait=seconds(0.4))
    assert (response.epoch, response.next_sequence) == (claim.epoch, 1)


@pytest.mark.parametrize("how", ["released", "taken over", "deleted"])
async def test_renewal_that_waits_ends_with_the_claim(rpc: Rpc, how: str) -> None:
    """The renewal ends at once with the reason."""
    name = await rpc.make_channel()
    claim = await rpc.claim(name, READER)
    waiting = asyncio.ensure_future(renew(rpc, name, claim.epoch))
    await asyncio.wait([waiting], timeout=0.1)
    assert not waiting.done()
    if how == "released":
        await release(rpc, name, READER)
        expected = grpc.StatusCode.FAILED_PRECONDITION, "NOT_CLAIMED", "no active claim"
    elif how == "taken over":
        await rpc.claim(name, "reader-2", takeover=True)
        expected = grpc.StatusCode.ABORTED, "STALE_EPOCH", "Claim the channel again"
    else:
        await rpc.delete(name, force=True)
        expected = grpc.StatusCode.NOT_FOUND, "CHANNEL_NOT_FOUND", "deleted"
    async with refused(*expected):
        await waiting


async def test_renewal_never_begins_a_claim(rpc: Rpc) -> None:
    """After the end of the claim others may have read, so the reader gets an error."""
    name = await rpc.make_channel()
    claim = await rpc.claim(name, READER)
    await release(rpc, name, READER)
    async with refused(grpc.StatusCode.FAILED_PRECONDITION, "NOT_CLAIMED", "no active claim"):
        await renew(rpc, name, claim.epoch, wait_seconds=0.0)
    assert not (await rpc.look(name)).HasField("claim")
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "set only one of them"):
        await rpc.claim(name, READER, epoch=claim.epoch, takeover=True)
