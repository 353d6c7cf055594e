"""A source `grpc` on real servers: whatever appends to a channel appends to it."""

import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql import SparkSession

import millrace_client as millrace
from millrace_client import ComponentState
from tests.access_site import METHODS, Site, call, request_of
from tests.conftest import StartMillraced
from tests.integration.daemon_queries import component_of, stored_bodies, stored_count
from tests.millraced import Millraced, MillracedError
from tests.tiers import CHANNEL_TOML, Load, Tier, sink_toml, tiers
from tests.tiers import stored_bodies as bodies_at
from tests.waiting import wait_until

CHANNELS = ("left", "right")
SOURCE_TOML = """
[channels.left]
type = "file"
min_free_bytes = 0
keep_alive_seconds = 0.3

[channels.right]
type = "file"
min_free_bytes = 0
keep_alive_seconds = 0.3

[sources.orders]
type = "grpc"
channels = ["left", "right"]
"""
SMALL_TOML = SOURCE_TOML.replace("keep_alive_seconds = 0.3", "keep_alive_seconds = 0.3\ncapacity = 40", 1)
OF_CHANNELS = {
    *("Acknowledge", "Claim", "Consume", "FindSequence", "PeekEvents", "Read", "Release"),
    *("DeleteChannel", "GetChannel", "PurgeChannel", "UpdateChannel"),
    *("ForgetProducer", "ListConsumers", "ListProducers", "ReleaseClaim"),
}
"""The calls that only channels support, besides CreateChannel."""


@pytest.fixture
def server(start_millraced: StartMillraced) -> Millraced:
    started = start_millraced(SOURCE_TOML)
    started.wait_for("serving")
    wait_until(lambda: component_of(started, "orders")["State"] == "running")
    return started


@pytest.fixture
def client(server: Millraced) -> Iterator[millrace.Client]:
    with millrace.connect(server.grpc) as connected:
        yield connected


def take(client: millrace.Client, channel: str, count: int, wait_seconds: float = 0.0) -> list[bytes]:
    """Takes events out of a channel; returns their bodies."""
    with client.channel(channel).transaction() as txn:
        return [event.body for batch in txn.take(count, wait_seconds=wait_seconds) for event in batch]


def in_both(server: Millraced) -> list[bytes]:
    """The bodies in both channels, which must have the same."""
    left, right = (stored_bodies(server, name) for name in CHANNELS)
    assert left == right
    return left


def test_calls_that_only_channels_support_are_refused(server: Millraced, client: millrace.Client) -> None:
    """NOT_A_CHANNEL, also where the name is to become a channel."""
    ends = {method: call(server.grpc, method, request_of(method, "orders", ""), ())[:2] for method in OF_CHANNELS}
    assert ends == dict.fromkeys(OF_CHANNELS, ("FAILED_PRECONDITION", "NOT_A_CHANNEL"))
    with pytest.raises(millrace.NotAChannelError):
        client.admin.create_channel("orders")


def test_take_in_a_transaction_of_a_source_is_refused_and_leaves_it_open(client: millrace.Client) -> None:
    """It can put, and be committed."""
    with client.channel("orders").transaction() as txn:
        txn.put([b"1"])
        with pytest.raises(millrace.NotAChannelError):
            txn.take(1)
        [listed] = client.admin.list_transactions("orders")
        assert (listed.channel, listed.put_count) == ("orders", 1)
    assert client.admin.get_channel("left").gauges.queued_events == 1
    assert client.admin.append_capacity("orders") == client.admin.append_capacity("left") == 10_000


def test_transaction_of_a_source_that_an_operator_ends_stores_nothing(
    client: millrace.Client, server: Millraced
) -> None:
    """Operators have the same means as with a channel."""
    txn = client.channel("orders").transaction().begin()
    txn.put([b"1"])
    client.admin.end_transaction(txn.txn_id)
    with pytest.raises(millrace.TxnStateError):
        client.channel("orders").commit([txn.txn_id])
    assert in_both(server) == []


def test_producer_learns_that_all_is_stored_and_in_which_order(server: Millraced) -> None:
    """Sequences are those of each channel, so the results have none."""
    sent = [b"%d" % number for number in range(3_000)]
    with millrace.Producer(server.grpc, "orders") as producer:
        futures = producer.send_many(sent, key="one order")
        summary = futures.summary(30)
    assert (summary.stored_count, summary.repeated_count, summary.first_sequence) == (3_000, 0, None)
    assert in_both(server) == sent


def test_append_that_waits_for_space_is_not_stored_after_its_deadline(start_millraced: StartMillraced) -> None:
    """A full channel refuses with its name, and leaves nothing in the others."""
    server = start_millraced(SMALL_TOML.replace("0.3", "5", 1))
    request = request_of("Append", "orders", "")
    request.events.add(body=b"late")  # type: ignore[attr-defined] # it is an AppendRequest
    with millrace.connect(server.grpc) as client, grpc.insecure_channel(server.grpc) as connection:
        channel = client.channel("orders")
        channel.append([b"%d" % number for number in range(40)])
        append: Any = connection.unary_unary(
            "/millrace.v1.ChannelService/Append",
            type(request).SerializeToString,
            GetMessageClass(METHODS["Append"].output_type).FromString,
        )
        with pytest.raises(grpc.RpcError) as refused:
            append(request, timeout=0.5)
        assert refused.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert take(client, "left", 40)[-1] == b"39"
        channel.append([b"next"])
    assert stored_bodies(server, "right")[40:] == [b"next"]
    assert stored_bodies(server, "left") == [b"next"]


def test_append_to_a_full_channel_is_refused_with_its_name(start_millraced: StartMillraced) -> None:
    """Nothing is left in the channel that has space; the source backs off, and runs again once there is space."""
    server = start_millraced(SMALL_TOML)
    with millrace.connect(server.grpc) as client:
        client.channel("orders").append([b"%d" % number for number in range(40)])
        with pytest.raises(millrace.ChannelFullError) as refused:
            client.channel("orders").append([b"late"])
        assert refused.value.channel == "left"
        assert stored_count(server, "right") == 40
        [source] = client.admin.list_components()
        assert source.state is ComponentState.BACKING_OFF
        assert "left" in source.reason
        client.admin.purge_channel("left")
        wait_until(lambda: client.admin.list_components()[0].state is ComponentState.RUNNING)


def test_append_needs_the_permission_on_the_sources_name_only(start_millraced: StartMillraced, tmp_path: Path) -> None:
    """Its channels are not the caller's; stamps belong to the identity that used them first."""
    roles = {
        "shop": ["append:orders"],
        "rival": ["append:orders"],
        "reader": ["*:left", "*:right"],
        "seer": ["describe:orders"],
    }
    site = Site(tmp_path, roles)
    access = site.toml().partition("[channels.orders]")[0]
    server = start_millraced(access + SOURCE_TOML)
    stamp = millrace.Stamp("p", 1, 1)

    def connect(name: str) -> millrace.Client:
        return millrace.connect(server.grpc, token=site.tokens[name])

    with connect("shop") as shop, connect("rival") as rival, connect("reader") as reader, connect("seer") as seer:
        shop.channel("orders").append([b"1"], stamp)
        assert shop.channel("orders").append([b"1"], stamp).deduplicated
        with pytest.raises(millrace.ForbiddenError, match="belongs to the identity"):
            rival.channel("orders").append([b"1"], millrace.Stamp("p", 2, 2))
        for refused in (reader, seer):
            with pytest.raises(millrace.ForbiddenError, match="append"):
                refused.channel("orders").append([b"1"])
        with pytest.raises(millrace.ForbiddenError):
            shop.channel("left").append([b"1"])
        with pytest.raises(millrace.ForbiddenError):
            shop.admin.get_channel("orders")
        with pytest.raises(millrace.NotAChannelError):
            seer.admin.get_channel("orders")
        txn = shop.channel("orders").transaction().begin()
        txn.put([b"2"])
        with pytest.raises(millrace.TxnNotFoundError):
            rival.channel("orders").commit([txn.txn_id])
        assert seer.admin.list_transactions("orders")[0].identity == "shop"
        assert reader.admin.list_transactions() == []
        txn.commit()
        assert take(reader, "right", 9) == [b"1", b"2"]
    assert server.stop() == 0


def test_reload_of_a_changed_source_keeps_its_transactions_and_loses_nothing(start_millraced: StartMillraced) -> None:
    """Producers go on; what is committed later goes to the channels of now."""
    server = start_millraced(SOURCE_TOML + '[channels.third]\ntype = "file"\n')
    config = Path(server.arguments[1])
    with millrace.connect(server.grpc) as client, millrace.Producer(server.grpc, "orders") as producer:
        wait_until(lambda: component_of(server, "orders")["State"] == "running")
        txn = client.channel("orders").transaction().begin()
        txn.put([b"of a transaction"])
        sent = [producer.send(b"%d" % number, key="k") for number in range(50)]
        config.write_text(config.read_text().replace('channels = ["left", "right"]', 'channels = ["left", "third"]'))
        server.send(signal.SIGHUP)
        sent += [producer.send(b"%d" % number, key="k") for number in range(50, 100)]
        server.wait_for("reloaded")
        sent += [producer.send(b"%d" % number, key="k") for number in range(100, 150)]
        assert all(future.result(30).stored for future in sent)
        txn.commit()
        numbers = [b"%d" % number for number in range(150)]
        assert stored_bodies(server, "left") == [*numbers, b"of a transaction"]
        assert stored_bodies(server, "third")[-51:] == [*numbers[100:], b"of a transaction"]
        # A name that is taken keeps the source from starting, and leaves the rest of the file in force.
        client.admin.create_channel("taken")
        config.write_text(config.read_text() + '[sources.taken]\ntype = "grpc"\nchannels = ["left"]\n')
        server.send(signal.SIGHUP)
        pending = server.wait_for("not in force yet")
        assert pending["setting"] == "sources.taken"
        client.channel("orders").append([b"still there"])
        config.write_text(SOURCE_TOML.partition("[sources")[0] + '[channels.third]\ntype = "file"\n')
        server.send(signal.SIGHUP)
        wait_until(lambda: not client.admin.list_components())
        with pytest.raises(millrace.ChannelNotFoundError):
            client.channel("orders").append([b"too late"])
    assert server.stop() == 0


def test_start_with_a_source_of_a_created_channels_name_is_refused(
    start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """The events of that channel would be out of reach."""
    first = start_millraced("", tmp_path / "data")
    with millrace.connect(first.grpc) as client:
        client.admin.create_channel("orders")
    assert first.stop() == 0
    with pytest.raises(MillracedError, match="the name of a channel that CreateChannel created"):
        start_millraced(SOURCE_TOML, tmp_path / "data")


def test_stop_lets_transactions_of_a_source_end(server: Millraced) -> None:
    """As those of channels; new appends are refused meanwhile."""
    with millrace.connect(server.grpc) as client:
        txn = client.channel("orders").transaction().begin()
        txn.put([b"1"])
        with ThreadPoolExecutor(1) as stopping:
            stopped = stopping.submit(server.stop)
            server.wait_for("stopping")
            with pytest.raises(millrace.DrainingError):
                client.channel("orders").append([b"2"])
            txn.commit()
            assert stopped.result() == 0


def test_sink_of_another_server_forwards_to_a_source(tmp_path: Path) -> None:
    """Its events are in every channel once and in order, although both servers are killed."""
    with tiers(tmp_path, "edge", "collector") as (edge, collector):
        collector.start(SOURCE_TOML)
        edge.start(CHANNEL_TOML + sink_toml("forward", collector.address, batch_events_max=20))
        load = Load(edge.address, count_max=1_500)
        load.start()
        for tier in (collector, edge, collector):
            wait_until(lambda: load.count > 100)
            tier.restart()
        load.finish()
        wait_until(lambda: not edge.event_count())
        for name in CHANNELS:
            assert bodies_at(collector.address, name) == load.sent


def run_kills(server: Tier, toml: str, count_max: int, kill_count: int) -> None:
    """Kills a server while a producer sends and a consumer makes space; then both channels have had everything once."""
    chance = random.Random(kill_count)
    server.start(toml)
    load = Load(server.address, count_max=count_max)
    load.start()
    taken: list[bytes] = []
    kills = 0
    while len(taken) < count_max:
        with millrace.connect(server.address, timeout_seconds=60, wait_for_ready=True) as client:
            taken += take(client, "left", 15, wait_seconds=0.2)
        if kills < kill_count and chance.random() < 0.3:
            server.restart()
            kills += 1
    load.finish()
    assert taken == load.sent
    assert bodies_at(server.address, "right") == load.sent
    assert kills == kill_count


def test_producer_through_kills_and_full_channels_stores_each_event_once_in_order(tmp_path: Path) -> None:
    """One channel is full most of the time, so that appends are refused, and repeated after kills."""
    with tiers(tmp_path, "server") as [server]:
        run_kills(server, SMALL_TOML, 600, 3)


@pytest.mark.torture
@pytest.mark.timeout(3000)
def test_producer_through_many_kills_stores_each_event_once_in_order(tmp_path: Path) -> None:
    """The same for longer."""
    with tiers(tmp_path, "server") as [server]:
        run_kills(server, SMALL_TOML, 20_000, 100)


@pytest.mark.spark
def test_save_to_a_source_is_stored_once_in_each_channel(server: Millraced, spark: SparkSession) -> None:
    """Several tasks put, and the driver commits; a repeat under the same id stores nothing."""
    rows = spark.range(0, 5_000, 1, 3).selectExpr("cast(id as string) as body")
    for _ in range(2):
        rows.write.format("millrace").mode("append").options(
            endpoints=server.grpc, channel="orders", producerId="save-1", retrySeconds=5
        ).save()
    assert sorted(map(int, in_both(server))) == list(range(5_000))
