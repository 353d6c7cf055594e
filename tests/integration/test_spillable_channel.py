"""Spillable channels of real servers: where events are, and what remains after a kill and a stop."""

import json
import signal
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from millrace.v1 import admin_service_pb2 as pb
from millrace.v1 import channel_service_pb2, event_pb2
from tests.conftest import StartMillraced
from tests.millrace_program import run_millrace
from tests.millraced import Millraced
from tests.rpc import Rpc, bodies_of, connected, refused, seconds

SPILLABLE = pb.CHANNEL_TYPE_SPILLABLE
TOML = """
[channels.orders]
type = "spillable"
memory_capacity = 3
keep_alive_seconds = 0.0
min_free_bytes = 0
"""


def stamp(first: int, last: int) -> event_pb2.ProducerStamp:
    return event_pb2.ProducerStamp(producer_id="p", first_sequence=first, last_sequence=last)


@asynccontextmanager
async def open_on(server: Millraced) -> AsyncGenerator[Rpc]:
    """A connection to a server whose channel is open."""
    async with connected(server.grpc) as rpc:
        while (await rpc.look("orders")).state == pb.CHANNEL_STATE_REPLAYING:
            pass
        yield rpc


async def take_all(rpc: Rpc) -> list[bytes]:
    """Takes and commits all queued events."""
    txn_id = await rpc.begin("orders")
    bodies = bodies_of((await rpc.take(txn_id, wait=seconds(0))).batches)
    await rpc.commit(txn_id)
    return bodies


async def test_kill_loses_memory_and_a_stop_loses_nothing(start_millraced: StartMillraced) -> None:
    """One channel in three servers, with a producer and a reader that learn what happened to their events."""
    server = start_millraced(TOML)
    async with open_on(server) as rpc:
        await rpc.append("orders", b"1", b"2", stamp=stamp(1, 2))
        await rpc.append("orders", b"3", b"4", stamp=stamp(3, 4))
        assert (await rpc.look("orders")).gauges.memory_events == 2
        lost = await rpc.begin("orders")
        taken = await rpc.take(lost, max_events=3)
        assert bodies_of(taken.batches) == [b"1", b"2", b"3"]
    server.kill()

    server = start_millraced(TOML, data_dir=server.data_dir)
    async with open_on(server) as rpc:
        async with refused(grpc.StatusCode.NOT_FOUND, "TXN_NOT_FOUND"):
            await rpc.commit(lost)
        claim = await rpc.claim("orders", "reader")
        assert claim.first_sequence == 3
        again = await rpc.append("orders", b"1", b"2", b"3", b"4", b"5", stamp=stamp(1, 5))
        assert (again.deduplicated, again.last_sequence - again.first_sequence) == (True, 2)
        assert again.first_sequence > 5
        assert bodies_of(await rpc.read("orders", "reader")) == [b"3", b"4", b"1", b"2", b"5"]
        through = again.first_sequence + 1
        request = channel_service_pb2.AcknowledgeRequest(channel="orders", reader_id="reader", through_sequence=through)
        assert (await rpc.channels.Acknowledge(request)).first_sequence == again.last_sequence
        await rpc.channels.Release(channel_service_pb2.ReleaseRequest(channel="orders", reader_id="reader"))
        assert await take_all(rpc) == [b"5"]
        await rpc.append("orders", b"6", b"7", stamp=stamp(6, 7))
        assert (await rpc.look("orders")).gauges.memory_events == 2
        before = (await rpc.look("orders")).gauges.next_sequence
    assert server.stop() == 0

    server = start_millraced(TOML, data_dir=server.data_dir)
    async with open_on(server) as rpc:
        gauges = (await rpc.look("orders")).gauges
        assert (gauges.queued_events, gauges.memory_events, gauges.next_sequence) == (2, 0, before)
        assert (await rpc.append("orders", b"6", b"7", stamp=stamp(6, 7))).deduplicated
        assert await take_all(rpc) == [b"6", b"7"]


async def test_stop_with_a_second_signal_does_not_wait_for_memory(start_millraced: StartMillraced) -> None:
    """The events in memory are lost then, and the server's log says how many: only one write may still succeed."""
    server = start_millraced(TOML)
    async with open_on(server) as rpc:
        for _ in range(3):
            # As large as one write.
            await rpc.append("orders", bytes(16 << 20))
        # With an open transaction the server waits until the second signal.
        await rpc.begin("orders")
        server.send(signal.SIGTERM)
        server.wait_for("stopping")
        server.send(signal.SIGTERM)
    assert server.wait() == 0
    assert server.wait_for("events that were only in memory are lost")["events"] >= 2


async def test_create_and_update_of_a_spillable_channel_say_what_is_in_force(start_millraced: StartMillraced) -> None:
    """The limits are its own and a log's; other types refuse its limits, and a restart keeps them."""
    server = start_millraced()
    async with connected(server.grpc) as rpc:
        config = pb.ChannelConfig(type=SPILLABLE, capacity=50, memory_capacity=10, memory_byte_capacity=1000)
        created = (await rpc.admin.CreateChannel(pb.CreateChannelRequest(name="orders", config=config))).channel
        assert (created.config.type, created.config.memory_capacity) == (SPILLABLE, 10)
        assert (created.config.memory_byte_capacity, created.config.transaction_capacity) == (1000, 50)
        assert (created.config.fsync, created.gauges.segments) == (pb.FSYNC_POLICY_COMMIT, 1)
        change = pb.UpdateChannelRequest(name="orders", config=pb.ChannelConfig(memory_capacity=20))
        assert (await rpc.admin.UpdateChannel(change)).channel.config.memory_capacity == 20
        async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "config.memory_capacity: is 51"):
            await rpc.admin.UpdateChannel(
                pb.UpdateChannelRequest(name="orders", config=pb.ChannelConfig(memory_capacity=51))
            )
        sentence = 'config.memory_capacity: is only for type "spillable"'
        for other in (pb.CHANNEL_TYPE_MEMORY, pb.CHANNEL_TYPE_FILE):
            async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", sentence):
                await rpc.admin.CreateChannel(
                    pb.CreateChannelRequest(name="other", config=pb.ChannelConfig(type=other, memory_capacity=1))
                )
        await rpc.append("orders", b"a")
    assert server.stop() == 0
    server = start_millraced(data_dir=server.data_dir)
    async with open_on(server) as rpc:
        assert (await rpc.look("orders")).config.memory_capacity == 20
        assert await rpc.peek("orders") == [b"a"]
        await rpc.delete("orders", force=True)
    assert not (server.data_dir / "channels" / "orders").exists()


def described_by(server: Millraced) -> dict[str, Any]:
    """The channel in the HTTP service's response."""
    with urllib.request.urlopen(f"http://{server.http}/channels", timeout=10) as response:
        described: dict[str, Any] = json.load(response)["CHANNEL.orders"]
        return described


def test_commands_and_metrics_of_a_spillable_channel_tell_what_is_in_memory(start_millraced: StartMillraced) -> None:
    """`millrace channel create --type spillable`, the description, and the figures over HTTP are checked."""
    server = start_millraced()
    made = run_millrace(
        server.grpc, "channel", "create", "orders", "--type", "spillable", "--memory-capacity", "2",
        "--memory-byte-capacity", "1KiB", "--json",
    )  # fmt: skip
    limits = json.loads(made.stdout)["config"]
    assert (limits["type"], limits["memory_capacity"], limits["memory_byte_capacity"]) == ("spillable", 2, 1024)
    run_millrace(server.grpc, "put", "orders", typed=b"a\n")
    shown = json.loads(run_millrace(server.grpc, "channel", "show", "orders", "--json").stdout)
    assert (shown["gauges"]["queued_events"], shown["gauges"]["memory_events"]) == (1, 1)
    updated = run_millrace(server.grpc, "channel", "update", "orders", "--memory-capacity", "5", "--json")
    assert json.loads(updated.stdout)["config"]["memory_capacity"] == 5
    described = described_by(server)
    assert (described["ChannelType"], described["MemoryEvents"], described["ChannelSize"]) == ("spillable", 1, 1)
    assert described["LogBytes"] > 0
