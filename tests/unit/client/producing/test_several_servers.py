"""Several servers: the distribution of events, and what happens when one fails."""

import time
from collections.abc import Callable

import grpc
import pytest

from millrace_client import Producer, Routing, SendFailedError
from millrace_client.producing.routing import ranked
from tests.unit.client.fake_server import RefusalError
from tests.unit.client.producing.conftest import AdvancedClock, FakeChannels, MakeProducer
from tests.waiting import wait_until

More = Callable[[], FakeChannels]


def wait_connected(producer: Producer, count: int) -> None:
    wait_until(lambda: sum(server.is_connected for server in producer.metrics().servers) >= count)


def draining() -> RefusalError:
    return RefusalError(grpc.StatusCode.UNAVAILABLE, "DRAINING", "the server is stopping")


def test_round_robin_gives_each_server_its_turn(
    channels: FakeChannels, more_channels: More, producer_of: MakeProducer
) -> None:
    """Batches go to the servers in turn."""
    other = more_channels()
    producer = producer_of(channels, other, batch_events_max=1)
    producer.send(b"first").result(60)
    wait_connected(producer, 2)
    for _ in range(20):
        producer.send(b"a").result(60)
    assert abs(len(channels.batches) - len(other.batches)) <= 3


def test_random_uses_all_servers(channels: FakeChannels, more_channels: More, producer_of: MakeProducer) -> None:
    """Each server gets some events."""
    other = more_channels()
    producer = producer_of(channels, other, batch_events_max=1, routing=Routing.RANDOM)
    producer.send(b"first").result(60)
    wait_connected(producer, 2)
    for _ in range(60):
        producer.send(b"a").result(60)
    assert min(len(channels.batches), len(other.batches)) > 10


def test_round_robin_keeps_a_producers_numbers_whole_on_each_server(
    channels: FakeChannels, more_channels: More, producer_of: MakeProducer
) -> None:
    """Each server sees numbers without gaps, so none has to remember one interval per batch."""
    other = more_channels()
    producer = producer_of(channels, other, batch_events_max=1)
    for _ in range(20):
        producer.send(b"a").result(60)
    for one in (channels, other):
        assert [stamp.first_sequence for stamp in one.stamps] == list(range(1, len(one.stamps) + 1))
    assert {stamp.producer_id for stamp in channels.stamps}.isdisjoint(stamp.producer_id for stamp in other.stamps)


def test_failover_uses_the_first_that_is_healthy_and_comes_back(
    channels: FakeChannels, more_channels: More, producer_of: MakeProducer
) -> None:
    """The second server is used while the first refuses, and only then."""
    second = more_channels()
    producer = producer_of(channels, second, routing=Routing.FAILOVER)
    assert producer.send(b"1").result(60).attempts[-1].server == channels.address
    wait_connected(producer, 2)
    channels.judge = lambda _bodies: draining()
    result = producer.send(b"2").result(60)
    *refused, stored = [attempt.server for attempt in result.attempts]
    # On a busy machine the first server may be available again before the batch is sent again.
    assert (set(refused), stored) == ({channels.address}, second.address)
    channels.judge = lambda _bodies: None
    give_up = time.monotonic() + 60
    while producer.send(b"3").result(60).attempts[-1].server != channels.address:
        assert time.monotonic() < give_up
    assert second.stored["orders"][0] == b"2"


def test_failover_from_a_server_that_is_not_there(channels: FakeChannels, producer_of: MakeProducer, dead: str) -> None:
    """A refused connection marks the server as failed at once; nothing was sent, so no outcome is unknown."""
    result = producer_of(dead, channels, routing=Routing.FAILOVER).send(b"a").result(60)
    assert [attempt.server for attempt in result.attempts] == [channels.address]


def test_batch_in_doubt_stays_with_its_server(
    channels: FakeChannels, more_channels: More, producer_of: MakeProducer
) -> None:
    """Only that server recognizes the repeat, so the batch is stored once."""
    second = more_channels()
    producer = producer_of(channels, second, routing=Routing.FAILOVER)
    producer.send(b"first").result(60)
    wait_connected(producer, 2)
    channels.outcomes.extend(["lose", "break"])
    result = producer.send(b"a").result(60)
    assert {attempt.server for attempt in result.attempts} == {channels.address}
    assert (result.deduplicated, second.stored) == (True, {})


def test_batch_in_doubt_moves_after_its_patience(
    channels: FakeChannels, more_channels: More, producer_of: MakeProducer
) -> None:
    """With `move_after_seconds`, a batch whose outcome is unknown moves to another server, perhaps as a duplicate."""
    second = more_channels()
    producer = producer_of(channels, second, routing=Routing.FAILOVER, move_after_seconds=0.2)
    producer.send(b"first").result(60)
    wait_connected(producer, 2)
    channels.outcomes.append("lose")
    channels.judge = lambda _bodies: draining()
    result = producer.send(b"a").result(60)
    assert result.attempts[-1].server == second.address
    assert (channels.stored["orders"], second.stored["orders"]) == ([b"first", b"a"], [b"a"])


def test_by_key_gives_a_key_one_server(channels: FakeChannels, more_channels: More, producer_of: MakeProducer) -> None:
    """All events of a key go to its home server, in order; keys are spread over the servers."""
    others = [more_channels(), more_channels()]
    producer = producer_of(channels, *others, routing=Routing.BY_KEY)
    producer.send(b"first").result(60)
    wait_connected(producer, 3)
    for index in range(300):
        producer.send(b"%d %d" % (index % 60, index), key=str(index % 60))
    producer.flush(60)
    homes: dict[bytes, set[str]] = {}
    for one in (channels, *others):
        bodies = [body for body in one.stored["orders"] if body != b"first"]
        assert len(bodies) > 15
        places: dict[bytes, list[int]] = {}
        for body in bodies:
            key, _, place = body.partition(b" ")
            homes.setdefault(key, set()).add(one.address)
            places.setdefault(key, []).append(int(place))
        assert all(indexes == sorted(indexes) for indexes in places.values())
    assert {len(addresses) for addresses in homes.values()} == {1}


def test_by_key_while_a_home_is_sick_uses_another(
    channels: FakeChannels, more_channels: More, producer_of: MakeProducer
) -> None:
    """Keys return when their home recovers; a home that is merely full keeps them."""
    other = more_channels()
    producer = producer_of(channels, other, routing=Routing.BY_KEY)
    producer.send(b"first").result(60)
    wait_connected(producer, 2)
    by_address = {channels.address: channels, other.address: other}
    home = by_address[producer.send(b"1", key="k").result(60).attempts[-1].server]
    home.outcomes.append(RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "CHANNEL_FULL"))
    assert producer.send(b"2", key="k").result(60).attempts[-1].server == home.address
    home.judge = lambda _bodies: draining()
    assert producer.send(b"3", key="k").result(60).attempts[-1].server != home.address
    home.judge = lambda _bodies: None
    give_up = time.monotonic() + 60
    while producer.send(b"4", key="k").result(60).attempts[-1].server != home.address:
        assert time.monotonic() < give_up


def test_ranked_moves_few_lanes_when_a_server_goes() -> None:
    """Keys of the remaining servers stay, and those of the lost one are spread over all others."""
    names = ["a:1", "b:1", "c:1", "d:1"]
    before = {bucket: ranked(bucket, names)[0] for bucket in range(1000)}
    after = {bucket: ranked(bucket, names[:3])[0] for bucket in range(1000)}
    moved = [bucket for bucket in before if before[bucket] != after[bucket]]
    assert {before[bucket] for bucket in moved} == {"d:1"}
    assert {after[bucket] for bucket in moved} == set(names[:3])
    assert all(150 < list(before.values()).count(name) < 350 for name in names)


def test_send_with_all_servers_sick_waits_and_fails_in_its_time(
    channels: FakeChannels, more_channels: More, producer_of: MakeProducer, clock: AdvancedClock
) -> None:
    """The result lists the servers that were tried."""
    other = more_channels()
    for one in (channels, other):
        one.judge = lambda _bodies: draining()
    producer = producer_of(channels, other, delivery_timeout_seconds=600, timeout_seconds=6000)
    future = producer.send(b"a")
    # Each has responded, since they get the event in turn.
    wait_until(lambda: min(len(channels.batches), len(other.batches)) > 1)
    clock.advanced_seconds += 600
    with pytest.raises(SendFailedError, match="stopping") as caught:
        future.result(60)
    assert caught.value.result is not None
    assert {attempt.server for attempt in caught.value.result.attempts} == {channels.address, other.address}
