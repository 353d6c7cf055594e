"""The client's two variants against a real server: events in and out."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import millrace_client as millrace
from millrace.columns import columns_from_events
from tests.client_variants import Connect, client_variant
from tests.millraced import Millraced

NUMBERS = itertools.count()
EACH_TYPE = pytest.mark.parametrize("channel_type", [each.value for each in millrace.ChannelType], indirect=True)


@pytest.fixture(params=["sync", "aio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """`connect` of each variant."""
    with client_variant(request.param) as connecting:
        yield connecting


@pytest.fixture
def client(connect: Connect, rpc_server: Millraced) -> Any:
    """A client of the shared server, in each variant."""
    return connect(rpc_server.grpc)


@pytest.fixture
def channel(client: Any) -> Any:
    """A channel of the test's own."""
    return made(client)


def made(client: Any, **limits: Any) -> Any:
    """A new memory channel with short waits."""
    name = f"client-{next(NUMBERS)}"
    config = millrace.ChannelConfig(**{"capacity": 1000, "keep_alive_seconds": 0.2} | limits)
    client.admin.create_channel(name, config)
    return client.channel(name)


def bodies_of(batches: Any) -> list[bytes]:
    """The bodies of all events, in order."""
    return [body for batch in batches for body in batch.bodies()]


def times_of(batches: Any) -> list[datetime | None]:
    """The times of all events, in order."""
    return [time for batch in batches for time in batch.commit_times()]


def take_all(channel: Any) -> list[bytes]:
    """Takes and commits all queued events."""
    with channel.transaction() as txn:
        return bodies_of(txn.take(wait_seconds=0))


def test_append_columns_is_as_append(channel: Any) -> None:
    """Prepared columns are stored unchanged."""
    [columns] = columns_from_events([({"k": str(n)}, bytes([n])) for n in range(10)])
    assert channel.append_columns(columns).last_sequence == 10
    assert take_all(channel) == [bytes([n]) for n in range(10)]


@EACH_TYPE
def test_each_event_has_the_time_of_its_commit(client: Any, channel_type: str) -> None:
    """Peeks, claims, deliveries and takes show the receipts' times, whichever way the server joins commits."""
    channel = made(client, type=millrace.ChannelType(channel_type))
    began = datetime.now(UTC)
    receipts = [channel.append(bodies) for bodies in ([b"a", b"b"], [b"c"], [b"d"])]
    expected = [receipts[index].commit_time for index in (0, 0, 1, 2)]
    in_order = [began, *expected, datetime.now(UTC)]
    assert in_order == sorted(in_order)
    assert times_of(channel.peek()) == expected
    with channel.claim("reader") as claim:
        assert times_of(claim.read()) == expected
    with channel.consume(max_events=3, prefetch=1) as deliveries:
        delivery = next(iter(deliveries))
        assert (delivery.commit_time, [event.commit_time for event in delivery]) == (expected[0], expected[:3])
    with channel.transaction() as txn:
        assert times_of(txn.take()) == expected
    assert txn.receipt.commit_time >= expected[-1]


@EACH_TYPE
def test_peek_and_find_start_at_the_first_commit_since_a_time(client: Any, channel_type: str) -> None:
    """Exact to the microsecond; without such an event nothing is shown, and the next sequence is found."""
    channel = made(client, type=millrace.ChannelType(channel_type))
    times = [channel.append(bodies).commit_time for bodies in ([b"a", b"b"], [b"c"], [b"d"])]
    just_later = times[0] + timedelta(microseconds=1)
    assert channel.find_sequence(times[0]) == millrace.FoundSequence(1, times[0])
    assert channel.find_sequence(just_later) == millrace.FoundSequence(3, times[1])
    assert channel.find_sequence(datetime.now(UTC) + timedelta(days=1)) == millrace.FoundSequence(5, None)
    assert bodies_of(channel.peek(since=just_later)) == [b"c", b"d"]
    assert bodies_of(channel.peek(since=datetime.now(UTC) + timedelta(days=1))) == []
    assert client.admin.get_channel(channel.name).gauges.oldest_commit_time == times[0]
    # The server's end would report what memory loses.
    client.admin.purge_channel(channel.name)


def test_transaction_in_steps_takes_and_puts_on(channel: Any) -> None:
    """Offsets continue from call to call."""
    channel.append([b"a", b"b", b"c"])
    with channel.transaction() as txn:
        assert [bodies_of(txn.take(max_events=1)) for _ in range(4)] == [[b"a"], [b"b"], [b"c"], []]
        assert [txn.put([b"x", b"y"]), txn.put([b"z"])] == [2, 3]
        assert txn.renew() == 30.0
    assert take_all(channel) == [b"x", b"y", b"z"]


def test_commit_of_transactions_filled_elsewhere_stores_all(channel: Any) -> None:
    """Their puts are stored in the order of the ids, and a repeat with the stamp is dropped with its transactions."""

    def commit(bodies: list[bytes], stamp: millrace.Stamp) -> bool:
        txns = [channel.transaction().begin() for _ in bodies]
        for txn, body in zip(txns, bodies, strict=True):
            txn.put([body])
        receipt: millrace.Receipt = channel.commit([txn.txn_id for txn in txns], stamp)
        return receipt.deduplicated

    seventh = millrace.Stamp("writer", 7, 7, oldest_open_sequence=7)
    assert [commit([b"a", b"b"], seventh), commit([b"x"], seventh)] == [False, True]
    # Another commit of the writer makes the channel use the oldest open number of the stamp.
    assert [
        commit([b"c"], replace(seventh, first_sequence=8, last_sequence=8)),
        commit([b"y"], millrace.Stamp("writer", 3, 3)),
    ] == [False, True]
    assert take_all(channel) == [b"a", b"b", b"c"]


def test_rollback_of_a_transaction_begun_elsewhere_ends_it(channel: Any) -> None:
    """A transaction can be rolled back by its id, also repeatedly."""
    txn = channel.transaction().begin()
    txn.put([b"a"])
    channel.rollback(txn.txn_id)
    channel.rollback(txn.txn_id)
    with pytest.raises(millrace.TxnStateError):
        channel.commit([txn.txn_id])
    assert take_all(channel) == []
