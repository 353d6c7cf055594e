"""AdminService over the wire: creating, changing, listing, watching, peeking at and purging channels."""

import asyncio
from typing import Any

import grpc
import pytest
from grpc import aio

from millrace.v1 import admin_service_pb2 as pb
from tests.rpc import TIMEOUT_SECONDS, Rpc, bodies_of, refused, rows_of, seconds, sequences_of

MEMORY, FILE, SPILLABLE = pb.CHANNEL_TYPE_MEMORY, pb.CHANNEL_TYPE_FILE, pb.CHANNEL_TYPE_SPILLABLE
NO_KEEP_ALIVE = seconds(0)
LOG_LIMITS: dict[str, Any] = {
    "backup_checkpoint": False,
    "checkpoint_interval": seconds(0.5),
    "segment_bytes_max": 64 << 10,
    "min_free_bytes": 0,
    "fsync": pb.FSYNC_POLICY_INTERVAL,
    "fsync_interval": seconds(0.01),
    "compression": pb.COMPRESSION_ZSTD,
}


async def create(rpc: Rpc, name: str, **limits: Any) -> pb.Channel:
    request = pb.CreateChannelRequest(name=name, config=pb.ChannelConfig(**{"type": MEMORY} | limits))
    response: pb.CreateChannelResponse = await rpc.admin.CreateChannel(request)
    return response.channel


async def update(rpc: Rpc, name: str, **limits: Any) -> pb.UpdateChannelResponse:
    request = pb.UpdateChannelRequest(name=name, config=pb.ChannelConfig(**limits))
    response: pb.UpdateChannelResponse = await rpc.admin.UpdateChannel(request)
    return response


async def test_create_with_nothing_but_a_type_has_the_defaults(rpc: Rpc) -> None:
    """The response contains every limit in force."""
    channel = await create(rpc, "defaults")
    config = channel.config
    assert (config.type, config.capacity, config.transaction_capacity) == (MEMORY, 100, 100)
    assert (config.byte_capacity_buffer_percentage, config.open_transactions_max) == (20, 5_000)
    assert (config.keep_alive, config.lease) == (seconds(3), seconds(30))
    assert channel.gauges.body_bytes_max == config.byte_capacity * 80 // 100
    assert (channel.gauges.first_sequence, channel.gauges.next_sequence) == (1, 1)
    assert not channel.HasField("claim")
    assert (channel.state, channel.fault, channel.replayed_fraction) == (pb.CHANNEL_STATE_OPEN, "", 1.0)
    assert await rpc.look("defaults") == channel
    # What only a log has is absent.
    assert not config.HasField("backup_checkpoint")
    assert (config.fsync, config.compression) == (0, 0)
    assert (channel.gauges.log_bytes, channel.gauges.segments) == (0, 0)


async def test_create_with_limits_has_them(rpc: Rpc) -> None:
    """The requested limits are in force."""
    limits = pb.ChannelConfig(
        type=MEMORY,
        capacity=7,
        transaction_capacity=5,
        byte_capacity=1000,
        byte_capacity_buffer_percentage=0,
        keep_alive=seconds(0),
        lease=seconds(0.5),
        open_transactions_max=1,
    )
    response = await rpc.admin.CreateChannel(pb.CreateChannelRequest(name="limits", config=limits))
    assert response.channel.config == limits


async def test_create_of_a_file_channel_with_nothing_but_a_type_has_the_defaults(rpc: Rpc) -> None:
    """The channel syncs each commit, is large, and is neither compressed nor encrypted."""
    config = (await create(rpc, "file-defaults", type=FILE)).config
    assert config == pb.ChannelConfig(
        type=FILE,
        capacity=1_000_000,
        transaction_capacity=10_000,
        byte_capacity=8 << 30,
        byte_capacity_buffer_percentage=20,
        keep_alive=seconds(3),
        lease=seconds(30),
        open_transactions_max=5_000,
        backup_checkpoint=True,
        checkpoint_interval=seconds(30),
        segment_bytes_max=256 << 20,
        min_free_bytes=500 << 20,
        fsync=pb.FSYNC_POLICY_COMMIT,
        fsync_interval=seconds(1),
        compression=pb.COMPRESSION_NONE,
    )


async def test_create_of_a_file_channel_with_limits_has_them(rpc: Rpc) -> None:
    """The requested limits are in force, and the channel serves."""
    channel = await create(rpc, "file-limits", **LOG_LIMITS, type=FILE, capacity=7)
    expected = pb.ChannelConfig(type=FILE, capacity=7, transaction_capacity=7, **LOG_LIMITS)
    for field, value in expected.ListFields():
        assert getattr(channel.config, field.name) == value, field.name
    assert (channel.state, channel.fault, channel.replayed_fraction) == (pb.CHANNEL_STATE_OPEN, "", 1.0)
    # Its first commit begins its log.
    assert (channel.gauges.segments, channel.gauges.log_bytes) == (0, 0)


async def test_create_of_a_name_that_exists_is_refused(rpc: Rpc) -> None:
    """Even with the same limits, the error says that the channel already exists."""
    name = await rpc.make_channel()
    async with rpc.unchanged(name), refused(grpc.StatusCode.ALREADY_EXISTS, "CHANNEL_EXISTS", name) as caught:
        await create(rpc, name, capacity=1)
    assert caught.refusal.metadata["channel"] == name


async def test_create_of_one_name_many_times_at_once_makes_one(rpc: Rpc) -> None:
    """Of concurrent creations of one name, one succeeds."""
    responses = await asyncio.gather(*(create(rpc, "contended") for _ in range(20)), return_exceptions=True)
    assert sum(isinstance(response, pb.Channel) for response in responses) == 1
    codes = [response.code() for response in responses if isinstance(response, aio.AioRpcError)]
    assert codes == [grpc.StatusCode.ALREADY_EXISTS] * 19


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"type": 0}, "config.type: is CHANNEL_TYPE_UNSPECIFIED"),
        (
            {"type": 99},
            (
                "is 99; it must be CHANNEL_TYPE_MEMORY or CHANNEL_TYPE_FILE or CHANNEL_TYPE_SPILLABLE or "
                "CHANNEL_TYPE_REPLICATED"
            ),
        ),
        ({"memory_capacity": 5}, 'config.memory_capacity: is only for type "spillable"'),
        ({"type": FILE, "memory_byte_capacity": 5}, 'config.memory_byte_capacity: is only for type "spillable"'),
        ({"type": SPILLABLE, "memory_capacity": 0}, "config.memory_capacity: is 0"),
        ({"type": SPILLABLE, "capacity": 5, "memory_capacity": 6}, "must not be above capacity, 5"),
        ({"type": SPILLABLE, "memory_byte_capacity": 0}, "config.memory_byte_capacity: is 0"),
        ({"capacity": 0}, "config.capacity: is 0"),
        ({"capacity": (1 << 64) - 1}, "config.capacity: is 18446744073709551615"),
        ({"capacity": 5, "transaction_capacity": 6}, "must not be above capacity, 5"),
        ({"transaction_capacity": 0}, "config.transaction_capacity: is 0"),
        ({"byte_capacity": 0}, "config.byte_capacity: is 0"),
        ({"byte_capacity": (1 << 64) - 1}, "config.byte_capacity: is 18446744073709551615"),
        ({"byte_capacity_buffer_percentage": 100}, "config.byte_capacity_buffer_percentage: is 100"),
        ({"keep_alive": seconds(-1)}, "config.keep_alive: is -1 s"),
        ({"lease": seconds(-0.001)}, "config.lease: is -0.001 s"),
        ({"lease": seconds(0)}, "config.lease"),
        ({"open_transactions_max": 0}, "config.open_transactions_max: is 0"),
        ({"open_transactions_max": 1 << 63}, "config.open_transactions_max: is 9223372036854775808"),
        ({"backup_checkpoint": True}, 'config.backup_checkpoint: is only for type "file"'),
        ({"checkpoint_interval": seconds(1)}, 'config.checkpoint_interval: is only for type "file"'),
        ({"segment_bytes_max": 1 << 20}, 'config.segment_bytes_max: is only for type "file"'),
        ({"min_free_bytes": 0}, 'config.min_free_bytes: is only for type "file"'),
        ({"fsync": pb.FSYNC_POLICY_COMMIT}, 'config.fsync: is only for type "file"'),
        ({"fsync_interval": seconds(1)}, 'config.fsync_interval: is only for type "file"'),
        ({"compression": pb.COMPRESSION_ZSTD}, 'config.compression: is only for type "file"'),
        ({"active_key": "2026"}, 'config.active_key: is "2026"'),
        ({"type": FILE, "active_key": "2026"}, "keys are set in the server's configuration file"),
        ({"type": FILE, "checkpoint_interval": seconds(0.01)}, "config.checkpoint_interval: is 0.01"),
        ({"type": FILE, "checkpoint_interval": seconds(-1)}, "config.checkpoint_interval: is -1 s"),
        (
            {"type": FILE, "segment_bytes_max": 1},
            "config.segment_bytes_max: is 1; it must be a whole number from 65_536",
        ),
        ({"type": FILE, "min_free_bytes": 1 << 63}, "config.min_free_bytes: is 9223372036854775808"),
        ({"type": FILE, "fsync": 99}, "config.fsync: is 99; it must be FSYNC_POLICY_COMMIT or FSYNC_POLICY_INTERVAL"),
        ({"type": FILE, "fsync_interval": seconds(0)}, "config.fsync_interval: is 0"),
        ({"type": FILE, "compression": 3}, "config.compression: is 3; it must be COMPRESSION_NONE or COMPRESSION_ZSTD"),
        ({"type": FILE, "capacity": 10, "transaction_capacity": 11}, "must not be above capacity, 10"),
    ],
)
async def test_create_with_a_bad_limit_is_refused(rpc: Rpc, limits: dict[str, Any], sentence: str) -> None:
    """The message contains the field, its value and what is allowed; no channel is created."""
    async with rpc.unchanged(), refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", sentence):
        await create(rpc, "refused", **limits)


async def test_create_with_several_bad_limits_lists_all(rpc: Rpc) -> None:
    """One response lists all problems."""
    async with rpc.unchanged(), refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "capacity: .*lease: "):
        await create(rpc, "refused", capacity=0, lease=seconds(0))


async def test_update_changes_what_is_given_and_nothing_else(rpc: Rpc) -> None:
    """Absent fields stay; the response and the next look show what is in force."""
    name = await rpc.make_channel(capacity=10, keep_alive=seconds(1))
    response = await update(rpc, name, capacity=20, byte_capacity_buffer_percentage=0, keep_alive=seconds(0))
    assert (response.applied, response.message) == (True, "")
    config = response.channel.config
    assert (config.capacity, config.byte_capacity_buffer_percentage, config.keep_alive) == (20, 0, seconds(0))
    assert (config.transaction_capacity, config.lease) == (10, seconds(30))
    assert (await rpc.look(name)).config == config


async def test_update_of_a_file_channel_changes_how_it_is_written(rpc: Rpc) -> None:
    """Everything can be changed except what is fixed at creation, which may be repeated."""
    await create(rpc, "rewritten", type=FILE, capacity=10)
    limits = {**LOG_LIMITS, "backup_checkpoint": True}
    response = await update(rpc, "rewritten", **limits)
    assert (response.applied, response.message) == (True, "")
    config = response.channel.config
    assert {field: getattr(config, field) for field in limits} == limits
    assert (config.capacity, config.keep_alive) == (10, seconds(3))
    assert (await rpc.look("rewritten")).config == config


async def test_update_of_a_file_channel_does_not_change_what_it_was_made_with(rpc: Rpc) -> None:
    """No part of the change takes effect."""
    await create(rpc, "as-made", type=FILE)
    for limits, sentence in (
        ({"backup_checkpoint": False}, "config.backup_checkpoint: is false; it cannot be changed from true"),
        ({"active_key": "2026"}, 'config.active_key: is "2026"'),
        ({"type": MEMORY}, "a channel's type, here file, cannot be changed"),
        ({"segment_bytes_max": 1}, "config.segment_bytes_max: is 1"),
        ({"fsync": 99}, "config.fsync: is 99"),
    ):
        async with (
            rpc.unchanged("as-made"),
            refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", sentence),
        ):
            await update(rpc, "as-made", lease=seconds(5), **limits)


async def test_update_below_what_the_channel_holds_changes_nothing_and_says_so(rpc: Rpc) -> None:
    """Shrinking waits for the keep-alive, then leaves everything unchanged."""
    name = await rpc.make_channel(keep_alive=seconds(0.05))
    await rpc.append(name, b"a", b"b")
    async with rpc.unchanged(name):
        response = await update(rpc, name, capacity=1, transaction_capacity=1, lease=seconds(5))
    assert not response.applied
    assert "holds 2 events" in response.message
    assert response.channel.config.lease == seconds(30)


@pytest.mark.parametrize(
    ("limits", "sentence"),
    [
        ({"type": FILE}, "a channel's type, here memory, cannot be changed"),
        ({"fsync": pb.FSYNC_POLICY_COMMIT}, 'config.fsync: is only for type "file"'),
        ({"active_key": "2026"}, 'config.active_key: is "2026"'),
        ({"capacity": 0}, "config.capacity: is 0"),
        ({"transaction_capacity": 101}, "must not be above capacity, 100"),
        ({"capacity": 50}, "must not be above capacity, 50"),
        ({"keep_alive": seconds(-1)}, "config.keep_alive: is -1 s"),
    ],
)
async def test_update_with_a_bad_limit_is_refused(rpc: Rpc, limits: dict[str, Any], sentence: str) -> None:
    """No part of the change takes effect."""
    name = await rpc.make_channel()
    async with rpc.unchanged(name), refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", sentence):
        await update(rpc, name, lease=seconds(5), **limits)


async def test_delete_of_a_channel_in_use_needs_force(rpc: Rpc) -> None:
    """Events and open transactions prevent a deletion; with force everything in the channel ends."""
    with_event, with_txn = await rpc.make_channel(), await rpc.make_channel()
    await rpc.append(with_event, b"a")
    txn_id = await rpc.begin(with_txn)
    for name in (with_event, with_txn):
        async with (
            rpc.unchanged(name),
            refused(grpc.StatusCode.FAILED_PRECONDITION, "CHANNEL_NOT_EMPTY", "empty it first, or force"),
        ):
            await rpc.delete(name)
        await rpc.delete(name, force=True)
        async with refused(grpc.StatusCode.NOT_FOUND, "CHANNEL_NOT_FOUND"):
            await rpc.look(name)
    async with refused(grpc.StatusCode.NOT_FOUND, "TXN_NOT_FOUND"):
        await rpc.commit(txn_id)


async def test_list_is_sorted_by_name(rpc: Rpc) -> None:
    """All channels are listed, as GetChannel describes them."""
    for name in ("sorted-b", "sorted-a", "sorted-10"):
        await create(rpc, name)
    listed = await rpc.admin.ListChannels(pb.ListChannelsRequest())
    names = [channel.name for channel in listed.channels]
    assert names == sorted(names)
    assert {"sorted-10", "sorted-a", "sorted-b"} <= set(names)


async def test_watch_responds_at_once_and_periodically(rpc: Rpc) -> None:
    """The first response comes at once, the next at the interval; unknown names are omitted."""
    name = await rpc.make_channel()
    request = pb.WatchChannelsRequest(names=[name, "not-there", "../x"], interval=seconds(0.1))
    watched = rpc.admin.WatchChannels(request, timeout=TIMEOUT_SECONDS)
    first = await watched.read()
    assert [channel.name for channel in first.channels] == [name]
    await rpc.append(name, b"a")
    while (await watched.read()).channels[0].gauges.queued_events != 1:
        pass
    await rpc.delete(name, force=True)
    while (await watched.read()).channels:
        pass
    watched.cancel()


async def test_watch_without_names_shows_all(rpc: Rpc) -> None:
    """Channels created during the stream are included."""
    watched = rpc.admin.WatchChannels(pb.WatchChannelsRequest(interval=seconds(0.1)), timeout=TIMEOUT_SECONDS)
    await watched.read()
    name = await rpc.make_channel()
    while name not in {channel.name for channel in (await watched.read()).channels}:
        pass
    watched.cancel()


async def test_watch_with_a_negative_interval_is_refused(rpc: Rpc) -> None:
    """A malformed interval is refused, not corrected."""
    async with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT", "interval: is -1 s"):
        await rpc.admin.WatchChannels(pb.WatchChannelsRequest(interval=seconds(-1)), timeout=TIMEOUT_SECONDS).read()


@pytest.mark.parametrize("in_columns", [False, True])
async def test_peek_shows_without_taking(rpc: Rpc, *, in_columns: bool) -> None:
    """The default is ten events, from the oldest or from a sequence on; nothing is changed."""
    name = await rpc.make_channel()
    for number in range(0, 12, 3):
        await rpc.append(name, *[b"%d" % event for event in range(number, number + 3)])
    async with rpc.unchanged(name):
        for from_sequence, max_events, sequences in (
            (0, 0, range(1, 11)),
            (0, 4, range(1, 5)),
            (5, 100, range(5, 13)),
            (13, 0, range(0)),
            ((1 << 64) - 1, 0, range(0)),
        ):
            request = pb.PeekEventsRequest(
                channel=name, from_sequence=from_sequence, max_events=max_events, columns=in_columns
            )
            batches = [response.batch async for response in rpc.admin.PeekEvents(request, timeout=TIMEOUT_SECONDS)]
            assert rows_of(batches) == [(number, {}, b"%d" % (number - 1)) for number in sequences]
            assert {batch.HasField("columns") for batch in batches} <= {in_columns}


async def test_peek_that_follows_shows_each_event_as_it_is_committed(rpc: Rpc) -> None:
    """Events that are taken at once are shown too; the default start is the next event."""
    name = await rpc.make_channel()
    await rpc.append(name, b"a", b"b")
    from_now = rpc.admin.PeekEvents(pb.PeekEventsRequest(channel=name, follow=True), timeout=TIMEOUT_SECONDS)
    from_two = rpc.admin.PeekEvents(
        pb.PeekEventsRequest(channel=name, follow=True, from_sequence=2, max_events=3), timeout=TIMEOUT_SECONDS
    )
    assert bodies_of([(await from_two.read()).batch]) == [b"b"]
    # It has no event to show its start.
    await from_now.initial_metadata()
    taker = asyncio.ensure_future(rpc.take(await rpc.begin(name), wait=seconds(3600)))
    await rpc.append(name, b"c")
    await taker
    await rpc.append(name, b"d", b"e")
    assert [(await from_two.read()).batch.first_sequence for _ in range(2)] == [3, 4]
    assert await from_two.read() is aio.EOF
    responses = [await from_now.read() for _ in range(2)]
    assert [(bodies_of([response.batch]), response.skipped_events) for response in responses] == [
        ([b"c"], 0),
        ([b"d", b"e"], 0),
    ]
    from_now.cancel()


async def test_peek_that_follows_too_slowly_learns_how_many_it_missed(rpc: Rpc) -> None:
    """A follower that does not read holds a bounded amount of memory, and the gap is counted."""
    name = await rpc.make_channel(capacity=5000)
    follower = rpc.admin.PeekEvents(
        pb.PeekEventsRequest(channel=name, follow=True, from_sequence=1), timeout=TIMEOUT_SECONDS
    )
    await rpc.append(name, b"first")
    assert bodies_of([(await follower.read()).batch]) == [b"first"]
    for _ in range(40):
        await rpc.append(name, *[bytes(40_000)] * 100)
        await rpc.purge(name)
    next_sequence, skipped = 2, 0
    while next_sequence < 4002:
        response = await follower.read()
        skipped += response.skipped_events
        [first, *_] = sequences = sequences_of([response.batch])
        assert first == next_sequence + response.skipped_events
        next_sequence = sequences[-1] + 1
    assert skipped > 0
    follower.cancel()


async def test_peek_that_follows_a_channel_that_is_deleted_ends(rpc: Rpc) -> None:
    """The stream ends with CHANNEL_NOT_FOUND."""
    name = await rpc.make_channel()
    follower = rpc.admin.PeekEvents(
        pb.PeekEventsRequest(channel=name, follow=True, from_sequence=1), timeout=TIMEOUT_SECONDS
    )
    await rpc.append(name, b"a")
    await follower.read()
    await rpc.delete(name, force=True)
    async with refused(grpc.StatusCode.NOT_FOUND, "CHANNEL_NOT_FOUND", "deleted"):
        await follower.read()
