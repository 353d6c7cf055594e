"""BeginTxn, Put, Take, Commit, Rollback and RenewTxn over the wire."""

import asyncio
import time

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from tests.millraced import Millraced
from tests.rpc import Rpc, bodies_of, connected, refused, rows_of, seconds

RUNS_REPLICATED = True

NO_KEEP_ALIVE = seconds(0)


async def test_begin_without_an_id_makes_one(rpc: Rpc) -> None:
    """Each call opens another transaction, with the channel's lease."""
    name = await rpc.make_channel(lease=seconds(12.5))
    first, second = [await rpc.channels.BeginTxn(pb.BeginTxnRequest(channel=name)) for _ in range(2)]
    assert first.txn_id != second.txn_id
    assert first.lease == seconds(12.5)
    assert (await rpc.look(name)).gauges.open_transactions == 2


@pytest.mark.parametrize("asked", [seconds(3601), seconds(315_576_000_000)])
async def test_begin_with_a_long_lease_grants_an_hour(rpc: Rpc, asked: Duration) -> None:
    """A lease above the limit is reduced, and the response says so."""
    name = await rpc.make_channel()
    response = await rpc.channels.BeginTxn(pb.BeginTxnRequest(channel=name, lease=asked))
    assert response.lease == seconds(3600)


async def test_renew_says_the_lease(rpc: Rpc) -> None:
    """The granted lease starts again."""
    name = await rpc.make_channel()
    txn_id = await rpc.begin(name, lease=seconds(9))
    response = await rpc.channels.RenewTxn(pb.RenewTxnRequest(txn_id=txn_id))
    assert response.lease == seconds(9)


@pytest.mark.parametrize("puts_columns", [False, True])
@pytest.mark.parametrize("takes_columns", [False, True])
async def test_take_in_either_form_gives_what_was_put_in_either_form(
    rpc: Rpc, *, puts_columns: bool, takes_columns: bool
) -> None:
    """Headers and bodies are unchanged, and sequences begin at 1, whichever form is used."""
    contents = [({"host": "web-1", "π": "3,14 €"}, b"one"), ({"host": "web-2"}, b""), ({}, bytes(range(256)))]
    name = await rpc.make_channel()
    txn_id = await rpc.begin(name)
    if puts_columns:
        encoded = columns_of(contents)
        request = pb.PutRequest(txn_id=txn_id, columns=encoded)
    else:
        rows = [event_pb2.Event(headers=headers, body=body) for headers, body in contents]
        request = pb.PutRequest(txn_id=txn_id, events=rows)
    assert (await rpc.channels.Put(request)).put_count == 3
    receipt = await rpc.commit(txn_id)
    assert (receipt.first_sequence, receipt.last_sequence, receipt.deduplicated) == (1, 3, False)
    taken = await rpc.take(await rpc.begin(name), columns=takes_columns)
    assert rows_of(taken.batches) == [
        (sequence, headers, body) for sequence, (headers, body) in enumerate(contents, start=1)
    ]
    assert {batch.HasField("columns") for batch in taken.batches} == {takes_columns}
    assert taken.take_count == 3


def columns_of(contents: list[tuple[dict[str, str], bytes]]) -> event_pb2.EventColumns:
    return event_pb2.EventColumns(
        count=3,
        body_sizes=[len(body) for _, body in contents],
        bodies=b"".join(body for _, body in contents),
        headers=[
            event_pb2.HeaderColumn(key="host", sizes=[6, 6, 0], values=b"web-1web-2"),
            event_pb2.HeaderColumn(key="π", sizes=[len("3,14 €".encode()) + 1, 0, 0], values="3,14 €".encode()),
        ],
    )


async def test_put_of_nothing_changes_nothing(rpc: Rpc) -> None:
    """A put without events, in either form, counts nothing."""
    name = await rpc.make_channel()
    txn_id = await rpc.begin(name)
    await rpc.put(txn_id, b"a")
    assert await rpc.put(txn_id) == 1
    empty = pb.PutRequest(txn_id=txn_id, columns=event_pb2.EventColumns())
    assert (await rpc.channels.Put(empty)).put_count == 1


async def test_take_from_an_empty_channel_responses_when_the_wait_passed(rpc: Rpc) -> None:
    """Without a wait the channel's keep-alive is used; then the response has no batches."""
    name = await rpc.make_channel(keep_alive=seconds(0.3))
    txn_id = await rpc.begin(name)
    started = asyncio.get_running_loop().time()
    response = await rpc.channels.Take(pb.TakeRequest(txn_id=txn_id))
    assert (list(response.batches), response.take_count) == ([], 0)
    assert asyncio.get_running_loop().time() - started > 0.25


async def test_take_within_bytes_ends_before_them(rpc: Rpc) -> None:
    """max_bytes bounds the bodies of a response; a larger first event is returned alone."""
    name = await rpc.make_channel()
    await rpc.append(name, b"aaa", b"bb", b"cccccc")
    txn_id = await rpc.begin(name)
    responses = [await rpc.take(txn_id, max_bytes=5) for _ in range(3)]
    assert [bodies_of(response.batches) for response in responses] == [[b"aaa", b"bb"], [b"cccccc"], []]


async def test_commit_removes_takes_and_stores_puts_together(rpc: Rpc) -> None:
    """A full channel swaps one event for another, since takes make space for puts of the same transaction."""
    name = await rpc.make_channel(capacity=2, keep_alive=NO_KEEP_ALIVE)
    await rpc.append(name, b"a", b"b")
    txn_id = await rpc.begin(name)
    await rpc.take(txn_id, max_events=1)
    await rpc.put(txn_id, b"c")
    receipt = await rpc.commit(txn_id)
    assert (receipt.first_sequence, receipt.last_sequence) == (3, 3)
    assert await rpc.peek(name) == [b"b", b"c"]


async def test_commit_of_nothing_succeeds(rpc: Rpc) -> None:
    """Without puts both sequences are 0; a repeat has the same response, with the time of the first commit."""
    name = await rpc.make_channel()
    txn_id = await rpc.begin(name)
    before = time.time()
    response = await rpc.commit(txn_id)
    assert (response.first_sequence, response.last_sequence) == (0, 0)
    assert before - 1e-6 < response.commit_time.ToNanoseconds() / 1e9 < time.time()
    assert await rpc.commit(txn_id) == response


async def test_commit_without_space_leaves_the_transaction_open(rpc: Rpc) -> None:
    """CHANNEL_FULL comes after the keep-alive, with a retry delay; once there is space, the commit succeeds."""
    name = await rpc.make_channel(capacity=1, keep_alive=seconds(0.1))
    await rpc.append(name, b"a")
    txn_id = await rpc.begin(name)
    await rpc.put(txn_id, b"b")
    async with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "CHANNEL_FULL", "holds 1 events of 1") as caught:
        await rpc.commit(txn_id)
    assert caught.refusal.retry_delay_seconds
    await rpc.purge(name)
    assert (await rpc.commit(txn_id)).first_sequence == 2


async def test_commit_with_a_stamp_stores_each_number_once(rpc: Rpc) -> None:
    """Overlapping numbers are removed event by event, also between transactions."""
    name = await rpc.make_channel()
    receipts = []
    for first, bodies in [(0, [b"0", b"1"]), (1, [b"1", b"2"])]:
        txn_id = await rpc.begin(name)
        await rpc.put(txn_id, *bodies)
        stamp = event_pb2.ProducerStamp(producer_id="p", first_sequence=first, last_sequence=first + 1)
        receipts.append(await rpc.commit(txn_id, stamp=stamp))
    assert [(it.first_sequence, it.last_sequence, it.deduplicated) for it in receipts] == [(1, 2, False), (3, 3, True)]
    assert await rpc.peek(name) == [b"0", b"1", b"2"]


async def test_take_over_another_connection_works_on_the_same_transaction(rpc_server: Millraced, rpc: Rpc) -> None:
    """A transaction belongs to its channel, not to the connection that began it."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a")
    txn_id = await rpc.begin(name)
    async with connected(rpc_server.grpc) as other:
        assert bodies_of((await other.take(txn_id)).batches) == [b"a"]
    await rpc.commit(txn_id)
    assert await rpc.peek(name) == []
