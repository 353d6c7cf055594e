"""Clients that are given several servers, of which one owns a channel and any may be dead."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

import millrace_client as millrace
import millrace_client.aio
from millrace_client import _settings
from millrace_client._owners import Owners
from tests.certificates import Authority
from tests.client_variants import Connect
from tests.unit.client.owned_servers import CHANNEL, OwnedServers, bodies
from tests.waiting import wait_until


def test_calls_whose_first_server_is_dead_go_to_the_next_and_to_the_owner(
    connect: Connect, servers: OwnedServers, dead: str
) -> None:
    """Calls on a channel, streams and calls that concern no channel; what was found is remembered."""
    client = connect(",".join([dead, *servers.addresses]), timeout_seconds=60.0)
    orders = client.channel(CHANNEL)
    assert [orders.append([b"a"]).first_sequence for _ in range(2)] == [1, 2]
    assert servers.refusal_count(0) == 1
    assert bodies(orders.peek()) == [b"a", b"a"]
    [listed] = client.admin.list_channels()
    assert listed.owner == servers.addresses[1]
    with orders.consume() as deliveries:
        assert next(iter(deliveries)).bodies() == [b"a", b"a"]


def test_first_stream_whose_first_server_is_dead_goes_to_the_next(
    connect: Connect, servers: OwnedServers, dead: str
) -> None:
    """A client may begin with a stream of either kind, or one about no channel."""
    endpoint = ", ".join([dead, *servers.addresses])
    assert bodies(connect(endpoint).channel(CHANNEL).peek()) == []
    assert next(iter(connect(endpoint).admin.watch_channels()))[0].name == CHANNEL
    connect(servers.addresses[1]).channel(CHANNEL).append([b"a"])
    with connect(endpoint).channel(CHANNEL).consume() as deliveries:
        assert next(iter(deliveries)).bodies() == [b"a"]


def test_call_whose_own_server_dies_goes_on_at_another_of_the_list(connect: Connect, servers: OwnedServers) -> None:
    """Nobody has named that one: it is known from the list alone."""
    servers.own(0)
    client = connect(",".join(servers.addresses), timeout_seconds=60.0)
    orders = client.channel(CHANNEL)
    assert orders.append([b"a"]).first_sequence == 1
    servers.stop(0)
    servers.own(1)
    assert orders.append([b"b"]).first_sequence == 2
    assert client.admin.list_channels()[0].state is millrace.ChannelState.OPEN


def test_call_when_all_servers_are_dead_says_what_each_of_them_responded(connect: Connect, dead: str) -> None:
    """They are asked as often as one alone, and none is left out."""
    other = "no..host:7070"
    with pytest.raises(millrace.UnavailableError) as caught:
        connect(f"{dead},{other}", timeout_seconds=60.0).admin.list_channels()
    assert f"cannot reach a Millrace server at {dead}; is millraced running there?" in caught.value.message
    assert f"at {other}; the name of its host cannot be resolved" in caught.value.message
    assert str(caught.value) == caught.value.message


def test_call_that_waits_for_ready_asks_all_servers_until_its_time_is_over(
    connect: Connect, servers: OwnedServers, dead: str
) -> None:
    """A dead one is not waited for, and the others are asked more often than without."""
    client = connect(f"{dead},{servers.addresses[1]}", timeout_seconds=60.0, wait_for_ready=True)
    assert client.channel(CHANNEL).append([b"a"]).first_sequence == 1
    search = Owners(["a:1", "b:1"], is_patient=True).search(CHANNEL, 600.0)
    for _ in range(3 * _settings.ATTEMPTS_MAX):
        assert search.pause_seconds(millrace.UnavailableError("gone")) is not None


def test_search_among_dead_servers_asks_each_between_two_pauses() -> None:
    """Hops are immediate, rounds are not, and there are as many as gRPC makes attempts at one server."""
    search = Owners(["a:1", "b:1", "c:1"]).search("", 600.0)
    asked, pauses = [], []
    for index in range(3 * _settings.ATTEMPTS_MAX - 1):
        asked.append(search.endpoint)
        pauses.append(search.pause_seconds(millrace.UnavailableError(f"{search.endpoint} is gone")))
        assert bool(pauses[index]) == (index % 3 == 2)
    assert asked[:3] == ["a:1", "b:1", "c:1"]
    assert sum(map(float, filter(None, pauses))) < 2.0
    with pytest.raises(millrace.UnavailableError) as caught:
        search.pause_seconds(millrace.UnavailableError(f"{search.endpoint} is gone"))
    assert sorted(caught.value.message.split("; ")) == ["a:1 is gone", "b:1 is gone", "c:1 is gone"]


def test_owner_that_is_named_is_forgotten_before_the_clients_own_servers() -> None:
    """However many servers are named, the client's own are asked in the end."""
    owners = Owners(["a:1", "b:1"])
    for number in range(100):
        named = millrace.NotOwnerError("away")
        named.address = f"named-{number}:1"
        owners.note_failure(CHANNEL, "a:1", named)
    asked = set()
    for _ in range(100):
        asked.add(owners.note_failure(CHANNEL, owners.endpoint_of(CHANNEL), millrace.UnavailableError("gone")))
    assert {"a:1", "b:1", "named-99:1"} < asked
    assert len(asked) == 18


def test_channel_that_is_missing_where_a_server_was_not_reached_names_it(
    connect: Connect, servers: OwnedServers, dead: str
) -> None:
    """That server may have the channel: a list is for servers that share their channels."""
    client = connect(f"{dead},{servers.addresses[0]}")
    with pytest.raises(millrace.ChannelNotFoundError, match=f"other.*; cannot reach a Millrace server at {dead}"):
        client.channel("other").append([b"a"])


@pytest.mark.parametrize(
    ("endpoint", "problem"),
    [
        ("a:1,", "'' is not an address"),
        ("a:1,b", "'b' has no port"),
        ("a:1;b:1", "'a:1;b:1' is not an address"),
        (",", "'' is not an address"),
    ],
)
def test_list_with_a_malformed_server_is_refused(endpoint: str, problem: str) -> None:
    """The message names that one."""
    with pytest.raises(millrace.BadArgumentError, match=f"^endpoint: {problem}"):
        millrace.connect(endpoint)


def test_token_is_sent_unencrypted_to_none_of_several_servers() -> None:
    """Each of them is checked before anything is sent."""
    for make in (millrace.connect, millrace.Producer):
        with pytest.raises(millrace.BadArgumentError, match="would be sent to mill-2:7070 unencrypted"):
            make("localhost:7070,mill-2:7070", token="secret")  # noqa: S106 - of no server


def test_grpc_forms_with_commas_of_their_own_are_one_server(connect: Connect, servers: OwnedServers, dead: str) -> None:
    """They are left to gRPC, which connects to the first of these addresses that it reaches."""
    client = connect(f"ipv4:{dead},{servers.addresses[1]}")
    assert client.channel(CHANNEL).append([b"a"]).first_sequence == 1


@contextmanager
def tls_server(folder: Path, authority: Authority, host: str) -> Iterator[str]:
    """A gRPC server without any methods, whose certificate has this host."""
    certificate, private_key = authority.issue(folder, host, hosts=[host])
    pair = (private_key.read_bytes(), certificate.read_bytes())
    with ThreadPoolExecutor() as threads:
        server = grpc.server(threads)
        port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


def test_certificate_of_each_server_is_checked_for_its_own_name(connect: Connect, tmp_path: Path) -> None:
    """One that is not what the list says is skipped, as if it could not be reached."""
    authority = Authority()
    (tmp_path / "ca.pem").write_bytes(authority.certificate)
    with tls_server(tmp_path, authority, "127.0.0.2") as other, tls_server(tmp_path, authority, "127.0.0.1") as right:
        tls = millrace.Tls(ca=tmp_path / "ca.pem")
        with pytest.raises(millrace.MillraceError, match=f"^the server at {right} does not know this call"):
            connect(f"{other},{right}", tls=tls).admin.list_channels()
        with pytest.raises(millrace.UnavailableError, match=f"{other}; its certificate is not valid for this name"):
            connect(f"{other},{other.replace('127.0.0.1', 'localhost')}", tls=tls).admin.list_channels()


def test_producer_whose_first_server_is_dead_sends_to_the_owner(servers: OwnedServers, dead: str) -> None:
    """Also one that can be resumed: servers that share a channel are one endpoint."""
    config = millrace.ProducerConfig(producer_id="loader")
    with millrace.Producer(",".join([dead, *servers.addresses]), CHANNEL, config=config) as producer:
        assert [producer.send(b"a").result(60).sequence for _ in range(2)] == [1, 2]
        servers.stop(1)
        servers.own(0)
        assert producer.send(b"a").result(60).sequence == 3
    with millrace.Producer(servers.addresses[0], CHANNEL, config=config) as again:
        assert again.send(b"a").result(60).deduplicated


def test_producer_of_dead_servers_names_all_of_them(dead: str) -> None:
    """Each of them was tried."""
    config = millrace.ProducerConfig(delivery_timeout_seconds=0.5)
    with millrace.Producer(f"{dead},localhost:1", CHANNEL, config=config) as producer:
        with pytest.raises(millrace.SendFailedError, match=f"at {dead}, localhost:1; is millraced running"):
            producer.send(b"a").result(60)
        wait_until(lambda: {server.server for server in producer.metrics().servers} == {dead, "localhost:1"})


async def test_asyncio_producer_and_consumer_whose_first_server_is_dead_find_the_owner(
    servers: OwnedServers, dead: str
) -> None:
    """They are the same engines on another loop."""
    endpoint = ",".join([dead, *servers.addresses])
    async with millrace_client.aio.AsyncProducer(endpoint, CHANNEL) as producer:
        assert (await (await producer.send(b"a"))).stored
    async with millrace_client.aio.AsyncConsumer(endpoint, CHANNEL) as consumer:
        async for delivery in consumer:
            assert delivery.bodies() == [b"a"]
            await delivery.ack()
            break


def test_consumer_whose_first_server_is_dead_gets_deliveries_of_each_owner(servers: OwnedServers, dead: str) -> None:
    """It has one subscription to the servers of a list, and goes on when the owner changes."""
    with millrace.connect(servers.addresses[1]) as client:
        client.channel(CHANNEL).append([b"a", b"b"])
    config = millrace.ConsumerConfig(delivery_events_max=1, prefetch=1)
    with millrace.Consumer(",".join([dead, *servers.addresses]), CHANNEL, config) as consumer:
        for delivery, expected in zip(consumer, (b"a", b"b"), strict=False):
            assert delivery.bodies() == [expected]
            delivery.ack()
            if expected == b"b":
                break
            # An acknowledgement that is lost would bring the event back.
            wait_until(lambda: servers.event_count == 1)
            servers.own(0)
            servers.stop(1)
