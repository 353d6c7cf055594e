"""Transactions against a scripted server, in both variants."""

import asyncio
from typing import Any

import grpc
import pytest

import millrace_client as millrace
import millrace_client.aio
from millrace.columns import columns_from_events
from millrace.v1 import channel_service_pb2 as pb
from tests.logged import messages_of
from tests.unit.client.fake_server import FakeServer, RefusalError, unavailable

RECEIPT = pb.CommitResponse(first_sequence=1, last_sequence=2)


class UserCodeError(Exception):
    """An exception of the user's own code."""


@pytest.fixture
def orders(client: Any, server: FakeServer) -> Any:
    """A channel of a server that accepts everything."""
    server.script("BeginTxn", pb.BeginTxnResponse(lease={"seconds": 30}))
    server.script("Put", lambda request, _: pb.PutResponse(put_count=request.put_offset + request.columns.count))
    server.script("Take", pb.TakeResponse())
    server.script("Commit", RECEIPT)
    server.script("Rollback", pb.RollbackResponse())
    server.script("RenewTxn", pb.RenewTxnResponse(lease={"seconds": 12, "nanos": 500_000_000}))
    return client.channel("orders")


def taken(first_sequence: int, *bodies: bytes, take_count: int) -> pb.TakeResponse:
    """A response to Take."""
    [columns] = columns_from_events([({}, body) for body in bodies])
    return pb.TakeResponse(batches=[{"first_sequence": first_sequence, "columns": columns}], take_count=take_count)


def test_transaction_whose_lease_is_shorter_than_asked_says_so(orders: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The warning has the lease asked for and the lease granted."""
    with orders.transaction(lease_seconds=3_601) as txn:
        pass
    sentence = f"transaction {txn.txn_id} on orders: the server granted a lease of 30 s instead of the requested 3601 s"
    assert messages_of("millrace_client", caplog) == [sentence]


def test_transaction_commits_when_its_block_is_left(orders: Any, server: FakeServer) -> None:
    """Begin, put and commit have one id, and the receipt is available afterwards."""
    with orders.transaction(lease_seconds=7.5) as txn:
        assert txn.receipt is None
        assert txn.put([b"a", b"b"]) == 2
        assert txn.lease_seconds == 30.0
    assert txn.receipt == millrace.Receipt(1, 2, deduplicated=False)
    [begun], [put], [commit] = (server.requests[method] for method in ("BeginTxn", "Put", "Commit"))
    assert begun.txn_id == put.txn_id == txn.txn_id
    assert list(commit.txn_ids) == [txn.txn_id]
    assert (begun.channel, begun.lease.ToMilliseconds()) == ("orders", 7500)
    assert not commit.HasField("stamp")
    assert "Rollback" not in server.requests


def test_transaction_with_an_id_of_the_callers_uses_it(orders: Any, server: FakeServer) -> None:
    """The transaction can be found again by its id."""
    with orders.transaction(txn_id="mine"):
        pass
    assert server.requests["BeginTxn"][0].txn_id == "mine"


def test_transaction_rolls_back_when_its_block_raises(orders: Any, server: FakeServer) -> None:
    """The exception propagates unchanged."""
    with pytest.raises(UserCodeError) as caught, orders.transaction() as txn:  # noqa: PT012 - the block is tested
        txn.put([b"a"])
        raise UserCodeError
    assert [request.txn_id for request in server.requests["Rollback"]] == [txn.txn_id]
    assert "Commit" not in server.requests
    assert txn.receipt is None
    assert not hasattr(caught.value, "__notes__")


def test_transaction_whose_rollback_fails_shows_the_first_error(orders: Any, server: FakeServer) -> None:
    """The error of the rollback becomes a note of the first one."""
    server.script("Rollback", RefusalError(grpc.StatusCode.INTERNAL, "INTERNAL", "it burns"))
    with pytest.raises(UserCodeError) as caught, orders.transaction():
        raise UserCodeError
    assert "it burns" in caught.value.__notes__[0]


@pytest.mark.parametrize("reason", ["LEASE_EXPIRED", "TXN_NOT_FOUND"])
def test_transaction_that_is_gone_already_is_rolled_back_without_a_word(
    orders: Any, server: FakeServer, reason: str
) -> None:
    """A rollback that finds no transaction is not an error."""
    server.script("Rollback", RefusalError(grpc.StatusCode.ABORTED, reason))
    with pytest.raises(UserCodeError) as caught, orders.transaction():
        raise UserCodeError
    assert not hasattr(caught.value, "__notes__")


def test_transaction_whose_begin_fails_runs_no_block(orders: Any, server: FakeServer) -> None:
    """There is nothing to roll back."""
    server.script("BeginTxn", RefusalError(grpc.StatusCode.NOT_FOUND, "CHANNEL_NOT_FOUND"))
    with pytest.raises(millrace.ChannelNotFoundError), orders.transaction():
        raise AssertionError
    assert "Rollback" not in server.requests


def test_transaction_whose_commit_fails_is_rolled_back(orders: Any, server: FakeServer) -> None:
    """The transaction's events return at once, and the error of the commit is the one that is raised."""
    server.script("Commit", RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "CHANNEL_FULL"))
    with pytest.raises(millrace.ChannelFullError), orders.transaction():
        pass
    assert len(server.requests["Rollback"]) == 1


def test_transaction_whose_commit_finds_it_gone_is_left_alone(orders: Any, server: FakeServer) -> None:
    """After the lease has expired there is nothing to roll back."""
    server.script("Commit", RefusalError(grpc.StatusCode.ABORTED, "LEASE_EXPIRED"))
    with pytest.raises(millrace.LeaseExpiredError), orders.transaction():
        pass
    assert "Rollback" not in server.requests


def test_transaction_whose_commit_got_lost_says_what_became_of_it(orders: Any, server: FakeServer) -> None:
    """If the rollback shows that the commit took effect, the error says so."""
    server.script("Commit", unavailable())
    server.script("Rollback", RefusalError(grpc.StatusCode.FAILED_PRECONDITION, "TXN_STATE"))
    with pytest.raises(millrace.UnavailableError) as caught, orders.transaction():
        pass
    assert "committed" in caught.value.__notes__[0]


def test_transaction_that_its_block_ended_is_left_alone(orders: Any, server: FakeServer) -> None:
    """After an explicit commit or rollback, leaving the block does nothing, with and without an error."""
    with orders.transaction() as txn:
        txn.commit(millrace.Stamp("p", 3, 4))
    with pytest.raises(UserCodeError), orders.transaction() as txn:  # noqa: PT012 - the block is tested
        txn.rollback()
        raise UserCodeError
    [commit] = server.requests["Commit"]
    assert (commit.stamp.producer_id, commit.stamp.first_sequence, commit.stamp.last_sequence) == ("p", 3, 4)
    assert len(server.requests["Rollback"]) == 1


def test_begin_whose_response_is_lost_is_repeated_under_the_same_id(orders: Any, server: FakeServer) -> None:
    """The client makes the id, so a repeat opens no second transaction."""
    server.script("BeginTxn", unavailable(), pb.BeginTxnResponse())
    with orders.transaction():
        pass
    first, second = server.requests["BeginTxn"]
    assert first.txn_id == second.txn_id


def test_put_counts_on_from_what_is_there(orders: Any, server: FakeServer) -> None:
    """Each put says how many events went before, so that a repeated put is distinguished from a new one."""
    with orders.transaction() as txn:
        assert [txn.put([b"a", b"b"]), txn.put([]), txn.put(iter(["c"]))] == [2, 2, 3]
        [columns] = columns_from_events([({"k": "v"}, b"d")])
        assert txn.put_columns(columns) == 4
    assert [request.put_offset for request in server.requests["Put"]] == [0, 2, 3]
    assert server.requests["Put"][2].columns == columns


def test_put_with_too_many_different_headers_goes_in_parts(orders: Any, server: FakeServer) -> None:
    """Events with more header keys than one batch may have become several puts."""
    events = [millrace.Event(b"", {f"key-{event}-{key}": "v" for key in range(200)}) for event in range(3)]
    with orders.transaction() as txn:
        assert txn.put(events) == 3
    assert [request.put_offset for request in server.requests["Put"]] == [0, 1, 2]


def test_put_that_is_refused_leaves_the_transaction_usable(orders: Any, server: FakeServer) -> None:
    """A refused put has stored nothing, so the transaction may continue."""
    server.script("Put", RefusalError(grpc.StatusCode.INVALID_ARGUMENT, "TXN_CAPACITY"), pb.PutResponse(put_count=1))
    with orders.transaction() as txn:
        with pytest.raises(millrace.TxnCapacityError):
            txn.put([b"a", b"b"])
        txn.put([b"a"])
    assert txn.receipt is not None
    assert [request.put_offset for request in server.requests["Put"]] == [0, 0]


def test_put_whose_response_never_came_forbids_the_commit(orders: Any, server: FakeServer) -> None:
    """What the transaction holds is unknown, so it cannot be committed."""
    server.script("Put", unavailable())
    with pytest.raises(millrace.TxnStateError), orders.transaction() as txn:  # noqa: PT012 - the block is tested
        with pytest.raises(millrace.UnavailableError):
            txn.put([b"a"])
        with pytest.raises(millrace.TxnStateError):
            txn.put([b"b"])
    assert "Commit" not in server.requests
    assert len(server.requests["Rollback"]) == 1


def test_take_gives_batches_and_counts_on(orders: Any, server: FakeServer) -> None:
    """Taken events come in batches, and each take says how many came before."""
    server.script("Take", taken(5, b"a", b"b", take_count=2), taken(9, b"c", take_count=3))
    with orders.transaction() as txn:
        [batch] = txn.take(max_events=2, max_bytes=10, wait_seconds=1.5)
        [last] = txn.take()
    assert [(event.sequence, event.body) for event in batch] == [(5, b"a"), (6, b"b")]
    assert last.bodies() == [b"c"]
    first, second = server.requests["Take"]
    assert (first.max_events, first.max_bytes, first.wait.ToMilliseconds(), first.columns) == (2, 10, 1500, True)
    assert (first.take_offset, second.take_offset) == (0, 2)
    assert not second.HasField("wait")


def test_take_whose_response_never_came_is_made_good_by_the_next(orders: Any, server: FakeServer) -> None:
    """The next take asks for the same position, and returns the events of the lost response."""
    server.script("Take", *[unavailable()] * 5, taken(5, b"a", take_count=1))
    with orders.transaction() as txn:
        with pytest.raises(millrace.UnavailableError):
            txn.take()
        [batch] = txn.take()
    assert batch.bodies() == [b"a"]
    assert {request.take_offset for request in server.requests["Take"]} == {0}
    assert txn.receipt is not None


def test_take_whose_response_never_came_forbids_the_commit(orders: Any, server: FakeServer) -> None:
    """Committing would remove events that the caller has not seen."""
    server.script("Take", unavailable())
    with (
        pytest.raises(millrace.TxnStateError),
        orders.transaction() as txn,
        pytest.raises(millrace.UnavailableError),
    ):
        txn.take()
    assert "Commit" not in server.requests
    assert len(server.requests["Rollback"]) == 1


def test_renew_gives_the_lease(orders: Any) -> None:
    """Renewing returns the remaining lease."""
    with orders.transaction() as txn:
        assert txn.renew() == 12.5


def test_errors_of_a_transaction_name_it(orders: Any, server: FakeServer) -> None:
    """Errors raised by the client itself name channel and transaction too."""
    server.script("RenewTxn", unavailable())
    with pytest.raises(millrace.UnavailableError) as caught, orders.transaction() as txn:
        txn.renew()
    assert (caught.value.channel, caught.value.txn_id) == ("orders", txn.txn_id)


def test_append_that_does_not_fit_one_batch_is_one_transaction(orders: Any, server: FakeServer) -> None:
    """Events with too many different headers are stored all or none, under one stamp."""
    events = [millrace.Event(b"", {f"key-{event}-{key}": "v" for key in range(200)}) for event in range(3)]
    assert orders.append(events) == millrace.Receipt(1, 2, deduplicated=False)
    [commit] = server.requests["Commit"]
    assert commit.stamp.last_sequence - commit.stamp.first_sequence == 2
    assert sum(request.columns.count for request in server.requests["Put"]) == 3
    assert "Append" not in server.requests


def test_append_that_fails_half_way_is_rolled_back(orders: Any, server: FakeServer) -> None:
    """No part of the append remains."""
    server.script("Put", pb.PutResponse(put_count=1), RefusalError(grpc.StatusCode.INVALID_ARGUMENT, "TXN_CAPACITY"))
    events = [millrace.Event(b"", {f"key-{event}-{key}": "v" for key in range(200)}) for event in range(3)]
    with pytest.raises(millrace.TxnCapacityError):
        orders.append(events)
    assert len(server.requests["Rollback"]) == 1
    assert "Commit" not in server.requests


async def test_take_for_asyncio_is_awaited_iterated_and_scheduled(server: FakeServer) -> None:
    """`async for` needs no `await` before it, and a task can run the take."""
    server.script("BeginTxn", pb.BeginTxnResponse(lease={"seconds": 30}))
    server.script("Rollback", pb.RollbackResponse())
    server.script("Take", taken(1, b"a", take_count=1), taken(2, b"b", take_count=2), taken(3, b"c", take_count=3))
    async with millrace_client.aio.connect(server.address) as client:
        txn = await client.channel("orders").transaction().begin()
        bodies = [batch.bodies() async for batch in txn.take()]
        bodies += [batch.bodies() for batch in await txn.take()]
        bodies += [batch.bodies() for batch in await asyncio.create_task(txn.take())]
        await txn.rollback()
    assert bodies == [[b"a"], [b"b"], [b"c"]]
