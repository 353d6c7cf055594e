"""Claims and administration against a scripted server, in both variants."""

import asyncio
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

import millrace_client as millrace
from millrace.columns import columns_from_events
from millrace.v1 import admin_service_pb2 as admin_pb
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import aio
from tests.logged import messages_of
from tests.unit.client.fake_server import FakeServer, RefusalError

GRANT = pb.ClaimResponse(lease={"seconds": 30}, first_sequence=4, next_sequence=9, epoch=3, channel_id="c-1")


class UserCodeError(Exception):
    """An exception of the user's own code."""


@pytest.fixture
def orders(client: Any, server: FakeServer) -> Any:
    """A channel of a server that accepts everything."""
    server.script("Claim", GRANT)
    server.script("Acknowledge", pb.AcknowledgeResponse(first_sequence=7))
    server.script("Release", pb.ReleaseResponse())
    return client.channel("orders")


def test_claim_tells_what_was_granted_and_is_released(orders: Any, server: FakeServer) -> None:
    """A claim holds from the call to the end of its block."""
    with orders.claim("reader-1", lease_seconds=5, takeover=True) as claim:
        granted = (claim.first_sequence, claim.next_sequence, claim.epoch, claim.channel_id, claim.lease_seconds)
        assert granted == (4, 9, 3, "c-1", 30.0)
        assert (claim.channel, claim.reader_id) == ("orders", "reader-1")
    [request] = server.requests["Claim"]
    assert (request.channel, request.reader_id, request.lease.seconds, request.takeover) == (
        "orders",
        "reader-1",
        5,
        True,
    )
    [released] = server.requests["Release"]
    assert (released.channel, released.reader_id, released.epoch) == ("orders", "reader-1", 3)


def test_claim_without_a_block_lives_on(orders: Any, server: FakeServer) -> None:
    """A claim that is called for without a block is not released when it is garbage collected."""
    orders.claim("reader-1")
    assert "Release" not in server.requests


def test_claim_reads_and_acknowledges_under_its_epoch(orders: Any, server: FakeServer) -> None:
    """Reads and acknowledgements carry the claim's epoch, by which the server detects a lost claim."""
    [columns] = columns_from_events([({}, b"a"), ({}, b"b")])
    server.script("Read", [pb.ReadResponse(batch={"first_sequence": 4, "columns": columns})])
    with orders.claim("reader-1") as claim:
        [batch] = claim.read(4, 6)
        assert claim.acknowledge(5) == 7
    assert [(event.sequence, event.body) for event in batch] == [(4, b"a"), (5, b"b")]
    [read], [acknowledged] = server.requests["Read"], server.requests["Acknowledge"]
    assert (read.from_sequence, read.to_sequence, read.epoch, read.columns) == (4, 6, 3, True)
    assert (acknowledged.through_sequence, acknowledged.epoch, acknowledged.reader_id) == (5, 3, "reader-1")


def test_channel_reads_and_acknowledges_without_a_claim_at_hand(orders: Any, server: FakeServer) -> None:
    """Another process than the claim's may read and acknowledge; without an epoch none is checked."""
    server.script("Read", [])
    assert list(orders.read(reader_id="reader-1", from_sequence=4, to_sequence=6, epoch=3)) == []
    assert orders.acknowledge(reader_id="reader-1", through_sequence=5) == 7
    orders.release(reader_id="reader-1")
    assert server.requests["Read"][0].epoch == 3
    assert not server.requests["Acknowledge"][0].HasField("epoch")
    assert not server.requests["Release"][0].HasField("epoch")


def test_renew_keeps_the_claim(orders: Any, server: FakeServer) -> None:
    """Renewing asks for the same lease again, for this claim only."""
    claim = orders.claim("reader-1", lease_seconds=5, takeover=True)
    assert claim.renew() == 30.0
    _, renewal = server.requests["Claim"]
    assert (renewal.lease.seconds, renewal.takeover, renewal.epoch) == (5, False, 3)
    assert renewal.wait.ToTimedelta().total_seconds() == 0


def test_claim_whose_lease_is_shorter_than_asked_says_so(
    orders: Any, server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning is logged once per claim, not with each renewal."""
    server.script("Claim", GRANT, GRANT, GRANT)
    orders.claim("reader-1", lease_seconds=30.0)
    orders.claim("reader-1")
    assert messages_of("millrace_client", caplog) == []
    orders.claim("reader-1", lease_seconds=123456789).renew()
    [sentence] = messages_of("millrace_client", caplog)
    assert sentence == (
        "claim of reader-1 on orders: the server granted a lease of 30 s instead of the requested 123456789 s"
    )


def test_renew_that_waits_learns_what_has_come(orders: Any, server: FakeServer) -> None:
    """The renewal sends the last known sequence, and the next one continues from the response."""
    server.script("Claim", GRANT, pb.ClaimResponse(first_sequence=5, next_sequence=12, epoch=3, channel_id="c-1"))
    claim = orders.claim("reader-1")
    claim.renew(wait_seconds=2.5)
    assert (claim.first_sequence, claim.next_sequence) == (5, 12)
    claim.renew(wait_seconds=2.5)
    _, first, second = server.requests["Claim"]
    assert (first.after_sequence, second.after_sequence) == (8, 11)
    assert first.wait.ToTimedelta().total_seconds() == 2.5


@pytest.mark.parametrize("reason", ["NOT_CLAIMED", "CHANNEL_CLAIMED", "STALE_EPOCH"])
def test_renew_of_a_claim_that_has_ended_is_refused(orders: Any, server: FakeServer, reason: str) -> None:
    """Whatever the server's reason, the client raises one error, since others may have read in between."""
    server.script("Claim", GRANT, RefusalError(grpc.StatusCode.FAILED_PRECONDITION, reason, "no longer"))
    claim = orders.claim("reader-1")
    with pytest.raises(millrace.LeaseExpiredError, match=r"reader-1 has lost its claim \(no longer.*; claim again"):
        claim.renew()
    assert claim.epoch == 3


def test_claim_released_by_hand_is_left_alone(orders: Any, server: FakeServer) -> None:
    """Leaving the block does not release again."""
    with orders.claim("reader-1") as claim:
        claim.release()
    assert len(server.requests["Release"]) == 1


def test_claim_whose_release_fails_shows_the_first_error(orders: Any, server: FakeServer) -> None:
    """The block's error is raised with the release's as a note; without one, the release's error is raised."""
    server.script("Release", RefusalError(grpc.StatusCode.ABORTED, "STALE_EPOCH", "somebody else reads"))
    with pytest.raises(UserCodeError) as caught, orders.claim("reader-1"):
        raise UserCodeError
    assert "somebody else reads" in caught.value.__notes__[0]
    with pytest.raises(millrace.StaleEpochError), orders.claim("reader-1"):
        pass


OLDEST = datetime(2026, 5, 4, 3, 2, 1, 5, tzinfo=UTC)


def described(name: str) -> admin_pb.Channel:
    """A channel with a value in each field."""
    return admin_pb.Channel(
        name=name,
        channel_id="c-1",
        config={
            "type": admin_pb.CHANNEL_TYPE_MEMORY,
            "capacity": 100,
            "transaction_capacity": 10,
            "byte_capacity": 1000,
            "byte_capacity_buffer_percentage": 20,
            "keep_alive": {"seconds": 3},
            "lease": {"seconds": 30},
            "open_transactions_max": 5000,
            "retention": {"seconds": 3600},
        },
        gauges={"queued_events": 1, "taken_events": 2, "waiting_takes": 3, "oldest_commit_time": OLDEST},
        counters={"event_put_success_count": 4, "deduplicated_count": 5, "refused": {"CHANNEL_FULL": 2}},
        claim={"reader_id": "reader-1", "epoch": 6, "remaining": {"seconds": 1, "nanos": 500_000_000}},
        start_time=datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC),
    )


def test_get_channel_tells_all_of_it(client: Any, server: FakeServer) -> None:
    """Every field of the message is converted."""
    server.script("GetChannel", admin_pb.GetChannelResponse(channel=described("orders")))
    channel = client.admin.get_channel("orders")
    assert (channel.name, channel.channel_id) == ("orders", "c-1")
    assert channel.config.type == "memory"
    assert (channel.config.keep_alive_seconds, channel.config.byte_capacity_buffer_percentage) == (3.0, 20)
    assert (channel.gauges.queued_events, channel.gauges.waiting_takes, channel.gauges.producers) == (1, 3, 0)
    assert (channel.counters.event_put_success_count, channel.counters.deduplicated_count) == (4, 5)
    assert channel.config.retention_seconds == 3600.0
    assert (channel.gauges.oldest_commit_time, channel.gauges.last_put_time) == (OLDEST, None)
    assert (channel.counters.event_expired_count, channel.counters.refused) == (0, {"CHANNEL_FULL": 2})
    assert channel.claim == millrace.ClaimStatus(reader_id="reader-1", epoch=6, remaining_seconds=1.5)
    assert channel.start_time == datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)


def file_channel(name: str) -> admin_pb.Channel:
    """A file channel with a fault, with a value in each field that only such channels have."""
    channel = described(name)
    channel.config.MergeFrom(
        admin_pb.ChannelConfig(
            type=admin_pb.CHANNEL_TYPE_FILE,
            backup_checkpoint=False,
            checkpoint_interval={"seconds": 30},
            segment_bytes_max=1 << 20,
            min_free_bytes=0,
            fsync=admin_pb.FSYNC_POLICY_INTERVAL,
            fsync_interval={"nanos": 500_000_000},
            compression=admin_pb.COMPRESSION_ZSTD,
            active_key="2026",
        )
    )
    channel.gauges.MergeFrom(
        admin_pb.ChannelGauges(log_bytes=4096, segments=2, checkpoint_time=OLDEST, disk_free_bytes=7)
    )
    channel.state, channel.fault = admin_pb.CHANNEL_STATE_REPLAYING, "it reads its log"
    channel.replayed_fraction = 0.5
    channel.is_configured = channel.is_overridden = True
    return channel


def test_get_channel_of_a_file_channel_tells_all_of_it(client: Any, server: FakeServer) -> None:
    """The fields of the log and of the channel's health are converted."""
    server.script("GetChannel", admin_pb.GetChannelResponse(channel=file_channel("orders")))
    channel = client.admin.get_channel("orders")
    config = channel.config
    assert (config.type, config.backup_checkpoint, config.checkpoint_interval_seconds) == ("file", False, 30.0)
    assert (config.segment_bytes_max, config.min_free_bytes, config.active_key) == (1 << 20, 0, "2026")
    assert (config.fsync, config.fsync_interval_seconds, config.compression) == ("interval", 0.5, "zstd")
    assert (channel.gauges.log_bytes, channel.gauges.segments) == (4096, 2)
    assert (channel.gauges.checkpoint_time, channel.gauges.disk_free_bytes) == (OLDEST, 7)
    assert channel.state is millrace.ChannelState.REPLAYING
    assert (channel.fault, channel.replayed_fraction) == ("it reads its log", 0.5)
    assert (channel.is_configured, channel.is_overridden) == (True, True)


def test_get_channel_of_a_spillable_channel_tells_what_is_in_memory(client: Any, server: FakeServer) -> None:
    """Its limits, which can be used to create another channel, and the number of events that a crash would lose."""
    described_so = file_channel("orders")
    described_so.config.MergeFrom(
        admin_pb.ChannelConfig(type=admin_pb.CHANNEL_TYPE_SPILLABLE, memory_capacity=500, memory_byte_capacity=1 << 20)
    )
    described_so.gauges.memory_events = 7
    server.script("GetChannel", admin_pb.GetChannelResponse(channel=described_so))
    server.script("CreateChannel", admin_pb.CreateChannelResponse(channel=described_so))
    channel = client.admin.get_channel("orders")
    config = channel.config
    assert (config.type, config.memory_capacity, config.memory_byte_capacity) == ("spillable", 500, 1 << 20)
    assert channel.gauges.memory_events == 7
    client.admin.create_channel("audit", config)
    asked = server.requests["CreateChannel"][0].config
    assert (asked.memory_capacity, asked.memory_byte_capacity) == (500, 1 << 20)


@pytest.mark.parametrize("state", [0, 99])
def test_get_channel_in_a_state_that_is_not_known_says_so(client: Any, server: FakeServer, state: int) -> None:
    """A server of another release may send more or fewer fields; what a memory channel does not have is None."""
    response = admin_pb.Channel.FromString(described("orders").SerializeToString() + bytes([8 << 3, state]))
    server.script("GetChannel", admin_pb.GetChannelResponse(channel=response))
    channel = client.admin.get_channel("orders")
    assert (channel.state, channel.fault) == (millrace.ChannelState.UNKNOWN, "")
    assert (channel.config.fsync, channel.config.compression, channel.config.backup_checkpoint) == (None, None, None)
    assert (channel.config.checkpoint_interval_seconds, channel.config.min_free_bytes) == (None, None)
    assert (channel.config.memory_capacity, channel.config.memory_byte_capacity) == (None, None)


def test_create_channel_with_the_limits_of_another_makes_one_like_it(client: Any, server: FakeServer) -> None:
    """All settings except the key are copied."""
    server.script("GetChannel", admin_pb.GetChannelResponse(channel=file_channel("orders")))
    server.script("CreateChannel", admin_pb.CreateChannelResponse(channel=file_channel("audit")))
    client.admin.create_channel("audit", client.admin.get_channel("orders").config)
    expected = file_channel("orders").config
    expected.active_key = ""
    assert server.requests["CreateChannel"][0].config == expected


def test_create_channel_with_a_word_that_is_none_is_refused(client: Any, server: FakeServer) -> None:
    """An unknown value is refused instead of being replaced by a default."""
    for field, words in (("type", "memory or file"), ("fsync", "commit or interval"), ("compression", "none or zstd")):
        wrong: dict[str, Any] = {field: "never"}
        with pytest.raises(millrace.BadArgumentError, match=f"{field}: is 'never'; it must be {words}"):
            client.admin.create_channel("orders", millrace.ChannelConfig(**wrong))
    assert "CreateChannel" not in server.requests


def test_create_channel_sends_only_what_was_said(client: Any, server: FakeServer) -> None:
    """Only given settings are sent; without a type it is a memory channel."""
    server.script("CreateChannel", admin_pb.CreateChannelResponse(channel=described("orders")))
    client.admin.create_channel("orders", millrace.ChannelConfig(capacity=7, lease_seconds=2.5, retention_seconds=0))
    client.admin.create_channel("orders")
    said, unsaid = (request.config for request in server.requests["CreateChannel"])
    expected = admin_pb.ChannelConfig(type=admin_pb.CHANNEL_TYPE_MEMORY, capacity=7)
    expected.lease.FromMilliseconds(2500)
    # Zero is not the same as absent: it lifts a limit.
    expected.retention.FromMilliseconds(0)
    assert said == expected
    assert unsaid == admin_pb.ChannelConfig(type=admin_pb.CHANNEL_TYPE_MEMORY)


def test_update_channel_tells_whether_it_was_applied(client: Any, server: FakeServer) -> None:
    """A shrinking that found no space is reported in the response, not as an error."""
    response = admin_pb.UpdateChannelResponse(channel=described("orders"), applied=False, message="no space")
    server.script("UpdateChannel", response)
    update = client.admin.update_channel("orders", millrace.ChannelConfig(capacity=1))
    assert (update.applied, update.message, update.channel.name) == (False, "no space", "orders")
    assert server.requests["UpdateChannel"][0].config == admin_pb.ChannelConfig(capacity=1)


def test_channels_come_as_lists(client: Any, server: FakeServer) -> None:
    """Listing returns all channels, watching returns them repeatedly."""
    channels = [described("a"), described("b")]
    server.script("ListChannels", admin_pb.ListChannelsResponse(channels=channels))
    server.script("WatchChannels", [admin_pb.WatchChannelsResponse(channels=channels[:1])] * 2)
    assert [channel.name for channel in client.admin.list_channels()] == ["a", "b"]
    looks = client.admin.watch_channels(["a"], interval_seconds=0.5)
    assert [[channel.name for channel in look] for look in looks] == [["a"], ["a"]]
    [request] = server.requests["WatchChannels"]
    assert (list(request.names), request.interval.ToMilliseconds()) == (["a"], 500)


def test_delete_and_purge_name_the_channel(client: Any, server: FakeServer) -> None:
    """Deleting may be forced; purging returns the number of events removed."""
    server.script("DeleteChannel", admin_pb.DeleteChannelResponse())
    server.script("PurgeChannel", admin_pb.PurgeChannelResponse(purged_count=3))
    client.admin.delete_channel("orders")
    client.admin.delete_channel("orders", force=True)
    assert client.admin.purge_channel("orders") == 3
    assert [request.force for request in server.requests["DeleteChannel"]] == [False, True]


def test_open_transactions_come_as_a_list(client: Any, server: FakeServer) -> None:
    """A delivery has no lease."""
    started = Timestamp(seconds=1_790_000_000)
    transactions = [
        admin_pb.OpenTransaction(
            txn_id="t", channel="orders", put_count=1, take_count=2, body_bytes=3, start_time=started
        ),
        admin_pb.OpenTransaction(txn_id="d", lease_remaining={"seconds": 5}, identity="i", peer="p", is_delivery=True),
    ]
    server.script("ListTransactions", admin_pb.ListTransactionsResponse(transactions=transactions))
    first, second = client.admin.list_transactions("orders")
    assert (first.txn_id, first.put_count, first.take_count, first.body_bytes) == ("t", 1, 2, 3)
    assert (first.start_time, first.lease_remaining_seconds) == (datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC), None)
    assert (second.identity, second.peer, second.is_delivery, second.lease_remaining_seconds) == ("i", "p", True, 5.0)
    client.admin.list_transactions()
    assert [request.channel for request in server.requests["ListTransactions"]] == ["orders", ""]


def test_consumers_and_producers_come_as_lists(client: Any, server: FakeServer) -> None:
    """A producer whose time an earlier release did not store has none."""
    consumer = admin_pb.Consumer(channel="orders", peer="sinks/out", open_deliveries=1, open_events=2)
    server.script("ListConsumers", admin_pb.ListConsumersResponse(consumers=[consumer]))
    producer = admin_pb.Producer(producer_id="p", last_sequence=9, gap_count=1)
    server.script("ListProducers", admin_pb.ListProducersResponse(producers=[producer]))
    [seen] = client.admin.list_consumers()
    assert (seen.channel, seen.peer, seen.open_deliveries, seen.open_events) == ("orders", "sinks/out", 1, 2)
    [known] = client.admin.list_producers("orders")
    assert known == millrace.ProducerInfo(producer_id="p", last_sequence=9, gap_count=1, last_seen=None)


def test_release_by_who_may_not_describe_the_channel_names_no_epoch(client: Any, server: FakeServer) -> None:
    """`operate` is enough; the server then ends whichever claim is active."""
    server.script("GetChannel", RefusalError(grpc.StatusCode.PERMISSION_DENIED, "FORBIDDEN"))
    claim = admin_pb.ClaimStatus(reader_id="r", epoch=7)
    server.script("ReleaseClaim", admin_pb.ReleaseClaimResponse(claim=claim))
    assert client.admin.release_claim("orders").epoch == 7
    [request] = server.requests["ReleaseClaim"]
    assert not request.HasField("epoch")


def test_operations_name_what_they_end(client: Any, server: FakeServer) -> None:
    """Without an epoch, that of the active claim, which a repeat cannot mistake; a kind only if it is given."""
    server.script("EndTransaction", admin_pb.EndTransactionResponse())
    server.script("ForgetProducer", admin_pb.ForgetProducerResponse())
    claim = admin_pb.ClaimStatus(reader_id="r", epoch=7)
    server.script("ReleaseClaim", admin_pb.ReleaseClaimResponse(claim=claim))
    server.script("GetChannel", admin_pb.GetChannelResponse(channel=described("orders")))
    component = admin_pb.Component(kind=admin_pb.COMPONENT_KIND_SINK, name="out", channels=["orders"])
    server.script("RetryComponent", admin_pb.RetryComponentResponse(component=component))
    client.admin.end_transaction("t")
    client.admin.forget_producer("orders", "p")
    assert [client.admin.release_claim("orders", epoch).epoch for epoch in (None, 0)] == [7, 7]
    assert client.admin.retry_component("out").channels == ("orders",)
    client.admin.retry_component("out", millrace.ComponentKind.SINK)
    assert server.requests["EndTransaction"][0].txn_id == "t"
    assert server.requests["ForgetProducer"][0].producer_id == "p"
    assert [(request.HasField("epoch"), request.epoch) for request in server.requests["ReleaseClaim"]] == [
        (True, 6),
        (True, 0),
    ]
    assert [request.kind for request in server.requests["RetryComponent"]] == [0, admin_pb.COMPONENT_KIND_SINK]


async def test_claim_whose_task_is_cancelled_as_its_block_ends_is_released(server: FakeServer) -> None:
    """Otherwise no other reader could claim the channel until the lease ends."""
    released = asyncio.Event()
    loop = asyncio.get_running_loop()

    def release(_request: Any, _context: Any) -> pb.ReleaseResponse:
        loop.call_soon_threadsafe(released.set)
        return pb.ReleaseResponse()

    server.script("Claim", GRANT)
    server.script("Release", release)

    async def read() -> None:
        async with await client.channel("orders").claim("reader-1"):
            reading.cancel()

    async with aio.connect(server.address) as client:
        reading = loop.create_task(read())
        with pytest.raises(asyncio.CancelledError):
            await reading
        await asyncio.wait_for(released.wait(), 60)
