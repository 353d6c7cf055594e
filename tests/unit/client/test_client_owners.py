"""Clients of a channel that one of several servers owns."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

import millrace_client as millrace
import millrace_client.aio
from millrace_client import _connection, _owners
from millrace_client._owners import Owners
from millrace_client.aio import _connection as aio_connection
from millrace_client.errors import ChannelNotFoundError, DeadlineError, NotOwnerError, UnavailableError
from tests.client_variants import Connect
from tests.fake_clock import FakeClock
from tests.unit.client.owned_servers import CHANNEL, OwnedServers, bodies
from tests.waiting import wait_until


@pytest.fixture
def client(connect: Connect, servers: OwnedServers) -> Any:
    """A client of the first server, in each variant."""
    return connect(servers.addresses[0], timeout_seconds=60.0)


def test_call_at_a_server_that_stands_by_is_served_by_the_owner(client: Any, servers: OwnedServers) -> None:
    """The client goes there at once, and remembers it for the channel."""
    orders = client.channel(CHANNEL)
    assert [orders.append([b"a"]).first_sequence for _ in range(3)] == [1, 2, 3]
    with orders.transaction() as txn:
        assert bodies(txn.take(2)) == [b"a", b"a"]
    assert servers.refusal_count(0) == 1


def test_channel_is_described_by_its_owner_and_listed_by_each_server(client: Any, servers: OwnedServers) -> None:
    """A list shows how the channels of one server are; while no owner is known, a description does, too."""
    [listed] = client.admin.list_channels()
    assert (listed.state, listed.owner) == (millrace.ChannelState.STANDING_BY, servers.addresses[1])
    assert client.admin.get_channel(CHANNEL).state is millrace.ChannelState.OPEN
    servers.own(2)
    servers.named = {0: "", 1: ""}
    assert client.admin.get_channel(CHANNEL).state is millrace.ChannelState.STANDING_BY


def test_streams_at_a_server_that_stands_by_are_the_owners(client: Any, servers: OwnedServers) -> None:
    """Peeks, claims and deliveries follow, each from its beginning."""
    orders = client.channel(CHANNEL)
    assert bodies(orders.peek(max_events=1)) == []
    assert servers.refusal_count(0) == 1
    orders.append([b"a", b"b"])
    with orders.claim("reader") as claim:
        assert bodies(claim.read()) == [b"a", b"b"]
    with orders.consume(max_events=1) as deliveries:
        for expected, delivery in zip((b"a", b"b"), deliveries, strict=False):
            assert delivery.bodies() == [expected]
            delivery.ack()


def test_first_deliveries_at_a_server_that_stands_by_are_the_owners(client: Any, servers: OwnedServers) -> None:
    """A client whose first call consumes follows, too."""
    with millrace.connect(servers.addresses[1]) as owner:
        owner.channel(CHANNEL).append([b"a"])
    with client.channel(CHANNEL).consume() as deliveries:
        delivery = next(iter(deliveries))
        assert delivery.bodies() == [b"a"]
        delivery.ack()
    assert servers.refusal_count(0) == 1


def test_call_after_another_change_of_owner_follows_it_again(client: Any, servers: OwnedServers) -> None:
    """The remembered server names its successor, which may be the client's own."""
    orders = client.channel(CHANNEL)
    orders.append([b"a"])
    servers.own(0)
    assert orders.append([b"b"]).first_sequence == 2
    servers.own(1)
    assert orders.append([b"c"]).first_sequence == 3


def test_call_when_the_owner_is_gone_waits_for_its_successor(client: Any, servers: OwnedServers) -> None:
    """The client's own server knows who it is; until it has taken over, it names the owner that is gone."""
    orders = client.channel(CHANNEL)
    orders.append([b"a"])
    servers.stop(1)
    servers.own(0)
    assert orders.append([b"b"]).first_sequence == 2


def test_call_asks_often_who_succeeds_an_owner_that_died(connect: Connect, servers: OwnedServers) -> None:
    """The pauses stay short, however long the lease is, and the owner that is dead costs no time."""
    orders = connect(servers.addresses[0], timeout_seconds=20.0).channel(CHANNEL)
    orders.append([b"a"])
    servers.stop(1)
    with ThreadPoolExecutor() as threads:
        # In the time of one call, of which gRPC's own repeats at the dead server would take more than a second each.
        taking_over = threads.submit(servers.own_after_refusals, 0, 8)
        assert orders.append([b"b"]).first_sequence == 2
        taking_over.result()


def test_search_for_the_owner_comes_back_to_each_server_within_half_a_second() -> None:
    """A dead server is tried in between without a pause of its own."""
    search = Owners(["home"]).search(CHANNEL, 60.0)
    dead = NotOwnerError("away")
    dead.address = "dead:7070"
    pauses = []
    for _ in range(100):
        assert search.endpoint == "home"
        first = search.pause_seconds(dead)
        assert search.endpoint == "dead:7070"
        second = search.pause_seconds(UnavailableError("gone"))
        assert first is not None
        assert second is not None
        pauses.append(first + second)
    assert pauses[0] <= 0.1
    assert 0.25 <= min(pauses[3:]) <= max(pauses) <= 0.5


def test_search_at_an_owner_that_has_no_such_channel_any_more_begins_again_at_home() -> None:
    """The channel was removed there, or deleted and created again: a client must not be stuck with that server."""
    owners = Owners(["home"])
    away = NotOwnerError("away")
    away.address = "away:7070"
    search = owners.search(CHANNEL, 60.0)
    search.pause_seconds(away)
    # What the call has learned, and then what the client remembers of it.
    for found in (search, owners.search(CHANNEL, 60.0)):
        assert found.endpoint == "away:7070"
        assert found.pause_seconds(ChannelNotFoundError("none")) is not None
        assert found.endpoint == "home"
        found.pause_seconds(away)
    search.pause_seconds(ChannelNotFoundError("none"))
    assert search.pause_seconds(ChannelNotFoundError("none")) is None
    assert owners.endpoint_of(CHANNEL) == "home"


def test_search_that_ends_while_a_server_is_asked_says_what_was_responded_before() -> None:
    """The time of a call may run out at any server; why it was asked again is the reason."""
    search = Owners(["home"]).search(CHANNEL, 60.0)
    search.pause_seconds(NotOwnerError("the owner is away"))
    late = DeadlineError("no response in time")
    assert search.pause_seconds(late) is None
    assert late.message == "no response in time; the owner is away"


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes pauses between the attempts of a call pass only on the clock that ends the call."""
    clock = FakeClock()

    def sleep(seconds: float) -> None:
        clock.now += seconds

    async def sleep_in_loop(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(_owners, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(_connection, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(aio_connection, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep_in_loop}))


@pytest.mark.usefixtures("quick_pauses")
def test_call_when_no_owner_can_be_found_fails_in_time(connect: Connect, servers: OwnedServers, dead: str) -> None:
    """Servers that name themselves, each other, a dead server, or nobody are asked until the call's time is over."""
    first, second = servers.addresses
    servers.own(2)
    responses = {
        "itself": {0: first},
        "in a circle": {0: second, 1: first},
        "nobody": {0: ""},
        "no address": {0: "mill"},
        "a dead server": {0: dead},
    }
    for named in responses.values():
        servers.named = named
        client = connect(first, timeout_seconds=10.0)
        # The last attempt has little time.
        with pytest.raises(millrace.MillraceError, match="this server stands by") as caught:
            client.channel(CHANNEL).append([b"a"])
        assert caught.value.advice in (millrace.RetryAdvice.LATER, millrace.RetryAdvice.UNREACHABLE)
        assert not caught.value.is_outcome_known


def test_owner_of_one_channel_gets_no_calls_on_others(client: Any, servers: OwnedServers) -> None:
    """Each channel has an owner of its own; channels that are not replicated are where the client was sent to."""
    client.channel(CHANNEL).append([b"a"])
    client.admin.create_channel("mine")
    assert client.channel("mine").append([b"a"]).first_sequence == 1
    servers.stop(0)
    with pytest.raises(millrace.UnavailableError):
        client.channel("mine").append([b"b"])
    assert client.channel(CHANNEL).append([b"b"]).first_sequence == 2


def test_consumer_goes_on_at_the_next_owner(servers: OwnedServers) -> None:
    """Its streams follow like calls, and each delivery arrives once where nothing broke."""
    with millrace.connect(servers.addresses[0]) as client:
        client.channel(CHANNEL).append([b"a", b"b"])
    config = millrace.ConsumerConfig(delivery_events_max=1, prefetch=1, reconnect_seconds=0.01)
    with millrace.Consumer([servers.addresses[0]], CHANNEL, config) as consumer:
        for delivery, expected in zip(consumer, (b"a", b"b"), strict=False):
            assert delivery.bodies() == [expected]
            delivery.ack()
            if expected == b"b":
                break
            # An acknowledgement that is lost would bring the event back.
            wait_until(lambda: servers.event_count == 1)
            servers.own(0)
            servers.stop(1)


def test_consumer_asks_often_who_succeeds_an_owner_that_died(servers: OwnedServers) -> None:
    """Its pauses stay short, too, whatever the longest one is."""
    home = servers.addresses[0]
    slow = millrace.ConsumerConfig(reconnect_seconds_max=600.0)
    with millrace.Consumer([home], CHANNEL, slow) as consumer:
        with millrace.connect(home) as client:
            client.channel(CHANNEL).append([b"a"])
        deliveries = iter(consumer)
        next(deliveries).ack()
        wait_until(lambda: servers.event_count == 0)
        servers.stop(1)
        servers.own_after_refusals(0, 10)
        with millrace.connect(home) as client:
            client.channel(CHANNEL).append([b"b"])
        assert next(deliveries).bodies() == [b"b"]


def test_producer_asks_often_who_succeeds_an_owner_that_died(servers: OwnedServers) -> None:
    """Its pauses stay short, too."""
    slow = millrace.ProducerConfig(backoff_seconds_max=600.0, delivery_timeout_seconds=600.0)
    with millrace.Producer(servers.addresses[0], CHANNEL, config=slow) as producer, ThreadPoolExecutor() as threads:
        producer.send(b"a").result(60)
        servers.stop(1)
        taking_over = threads.submit(servers.own_after_refusals, 0, 10)
        assert producer.send(b"b").result(60).sequence == 2
        taking_over.result()


async def test_asyncio_consumer_goes_on_at_the_owner(servers: OwnedServers) -> None:
    """The asyncio consumer follows, too."""
    with millrace.connect(servers.addresses[0]) as client:
        client.channel(CHANNEL).append([b"a"])
    config = millrace.ConsumerConfig(reconnect_seconds=0.01)
    async with millrace_client.aio.AsyncConsumer([servers.addresses[0]], CHANNEL, config) as consumer:
        async for delivery in consumer:
            assert delivery.bodies() == [b"a"]
            await delivery.ack()
            break
