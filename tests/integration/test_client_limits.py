"""Many events, large events and events with unusual headers, sent by the client to a real server."""

import itertools
from collections.abc import Iterator

import pytest

from millrace_client import (
    Channel,
    ChannelConfig,
    Client,
    Event,
    EventTooLargeError,
    MessageTooLargeError,
    Stamp,
    TxnCapacityError,
    connect,
)
from tests.conftest import StartMillraced

MIB = 1 << 20
_numbers = itertools.count()


@pytest.fixture
def channel(client: Client) -> Iterator[Channel]:
    name = f"limits-{next(_numbers)}"
    client.admin.create_channel(name, ChannelConfig(capacity=1_000, transaction_capacity=600))
    yield client.channel(name)
    client.admin.delete_channel(name, force=True)


def test_append_above_the_message_limit_stores_all_or_none(channel: Channel) -> None:
    """Events that exceed a message are sent in a transaction, under one stamp, and can be fetched again."""
    bodies = [bytes([number]) * 20 * MIB for number in range(4)]
    stamp = Stamp("producer", 1, 4)
    receipt = channel.append(bodies, stamp=stamp)
    assert (receipt.first_sequence, receipt.last_sequence) == (1, 4)
    assert channel.append(bodies, stamp=stamp).deduplicated
    taken: list[bytes] = []
    with channel.transaction() as txn:
        while batches := txn.take(wait_seconds=0):
            taken += [body for batch in batches for body in batch.bodies()]
    assert taken == bodies


def test_append_of_an_event_above_the_message_limit_is_refused(channel: Channel) -> None:
    """An event cannot be split; the client raises before it sends anything."""
    with pytest.raises(EventTooLargeError, match="a request holds at most") as caught:
        channel.append([b"small", bytes(65 * MIB)])
    assert caught.value.is_outcome_known
    assert list(channel.peek()) == []


def test_append_of_more_than_256_header_keys_stores_all_or_none(channel: Channel) -> None:
    """The events become several batches of one commit, in order, and each has its own headers."""
    events = [Event(b"%d" % number, {f"key-{number}": "value", "common": "yes"}) for number in range(600)]
    receipt = channel.append(events)
    assert (receipt.first_sequence, receipt.last_sequence) == (1, 600)
    seen = [event for batch in channel.peek(max_events=1_000) for event in batch]
    assert [(event.body, dict(event.headers)) for event in seen] == [(event.body, event.headers) for event in events]
    with pytest.raises(TxnCapacityError):
        channel.append([*events, b"one more"])
    assert channel.append([b"next"]).first_sequence == 601


def test_put_above_the_message_limit_stores_each_event_once(channel: Channel) -> None:
    """A put is split into several calls with consecutive offsets."""
    bodies = [bytes([number]) * 30 * MIB for number in range(3)]
    with channel.transaction() as txn:
        assert txn.put(bodies) == 3
        assert txn.put([b"last"]) == 4
    assert [body for batch in channel.peek() for body in batch.bodies()] == [*bodies, b"last"]


def test_append_above_the_servers_own_limit_says_so(start_millraced: StartMillraced) -> None:
    """A server with a smaller message limit than the client's is distinguished from a full one."""
    server = start_millraced("server.message_bytes_max = 1_048_576\n")
    with connect(server.grpc) as client:
        client.admin.create_channel("small")
        with pytest.raises(MessageTooLargeError, match="above a limit"):
            client.channel("small").append([bytes(2 * MIB)])
