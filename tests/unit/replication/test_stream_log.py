"""The log in a stream of a real nats-server."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.jetstream_cluster import JetStreamCluster
from millrace_server.replication.chain import Chain
from millrace_server.replication.engine import Engine, EngineError
from millrace_server.replication.messages import MessageKind
from millrace_server.replication.stream import Stream, StreamLimits
from millrace_server.replication.stream_reading import LOG, Patience, SetBackError, StreamMissingError
from millrace_server.wal.format import Kind, SegmentHeader, UnknownVersionError, encode_record_head
from millrace_server.wal.payload_codec import KeyMissingError, PayloadCodec
from millrace_server.wal.records import LogFailedError, LogFullError, LogTakenOverError
from millrace_server.wal.segments import LogCorruptError
from tests.cutting_proxy import CuttingAppends, cutting_proxy
from tests.stream_logs import LIMITS, OwnedLog, connecting_until, engine_at, new_name, owned_log

_MIB = 1 << 20


async def test_submit_stores_what_the_next_owner_replays(nats_url: str) -> None:
    """Records come back in order, and where each lies."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with owned_log(engine, name) as log:
            stored = await asyncio.gather(*[log.submit(b"%d" % number) for number in range(50)])
            assert await log.read(*stored) == [b"%d" % number for number in range(50)]
        async with owned_log(engine, name) as later:
            assert later.payloads == [b"%d" % number for number in range(50)]
            assert [record.location for record in later.records] == [found.locations[0] for found in stored]
            assert later.log.end == stored[-1].end
            assert later.chain.epoch > stored[-1].locations[0].segment_id


async def test_submit_of_a_group_larger_than_a_message_stores_it_in_parts(nats_url: str) -> None:
    """No limit of the engine's messages is met, also not by replay from a checkpoint within the parts."""
    name = new_name()
    large = [bytes([number]) * (_MIB + number) for number in range(3)]
    async with engine_at(nats_url) as engine:
        async with owned_log(engine, name) as log:
            stored = await log.submit(*large)
            await log.write_checkpoint(stored.end, b"s" * 3 * _MIB)
            behind = await log.submit(b"behind")
            assert await asyncio.to_thread(log.log.read_run, stored.locations) == large
            assert await log.read(behind) == [b"behind"]
        async with owned_log(engine, name) as later:
            assert later.checkpoint is not None
            assert later.checkpoint.state == b"s" * 3 * _MIB
            assert later.payloads == [b"behind"]
            assert await asyncio.to_thread(later.log.read_run, stored.locations) == large


async def test_replay_from_a_position_within_a_group_yields_the_rest(nats_url: str) -> None:
    """A checkpoint is often taken between records that are written together, or before them."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with owned_log(engine, name) as log:
            await log.submit(b"first")
            with log.together():
                together = [log.submit(b"1"), log.submit(), log.submit(b"2")]
            stored = await asyncio.gather(*together)
            assert stored[0].end == stored[1].end
            await log.write_checkpoint(stored[1].end, b"state")
        async with owned_log(engine, name) as later:
            assert later.payloads == [b"2"]
            with later.together():
                together = [later.submit(), later.submit(b"3")]
            front, _ = await asyncio.gather(*together)
            await later.write_checkpoint(front.end, b"state")
        async with owned_log(engine, name) as last:
            assert last.payloads == [b"3"]


async def test_parts_without_the_last_one_have_no_effect(nats_url: str) -> None:
    """A group that a crash has cut off was not acknowledged."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with owned_log(engine, name) as log:
            await log.submit(b"before")
            message = log.chain.message(MessageKind.GROUP, [b"half"])
            torn = type(message)(
                kind=message.kind, channel_id=message.channel_id, epoch=message.epoch, pieces=[b"half"], part_count=2
            )
            sequence = log.chain.last_sequence + 1
            await asyncio.wrap_future(engine.call(log.chain.stream.append(LOG, torn.encode(sequence), sequence)))
        async with owned_log(engine, name) as later:
            assert later.payloads == [b"before"]
            await later.submit(b"after")
        async with owned_log(engine, name) as last:
            assert last.payloads == [b"before", b"after"]


async def test_submit_by_an_owner_that_was_overtaken_fails(nats_url: str) -> None:
    """Nothing that it appends is stored, and it says who has overtaken it."""
    name = new_name()
    async with engine_at(nats_url) as engine, owned_log(engine, name) as first:
        await first.submit(b"1")
        async with owned_log(engine, name) as second:
            with pytest.raises(LogFailedError, match="another server has appended"):
                await first.submit(b"void")
            with pytest.raises(LogFailedError):
                await first.submit(b"void, too")
            with pytest.raises(OSError, match="another server"):
                await first.write_checkpoint(first.log.end, b"void")
            await second.submit(b"2")
        async with owned_log(engine, name) as third:
            assert third.payloads == [b"1", b"2"]


async def test_owners_that_fence_at_once_overtake_each_other(nats_url: str) -> None:
    """Each gets an epoch of its own, and only the last one can append."""
    name = new_name()
    async with engine_at(nats_url) as engine, engine_at(nats_url) as other:
        opened = await asyncio.gather(*[OwnedLog.opened(each, name) for each in (engine, other) * 4])
        by_epoch = sorted(opened, key=lambda log: log.chain.epoch)
        assert len({log.chain.epoch for log in opened}) == len(opened)
        responses = await asyncio.gather(*[log.submit(b"x") for log in by_epoch], return_exceptions=True)
        assert [isinstance(response, LogFailedError) for response in responses] == [True] * 7 + [False]
        for log in opened:
            await log.close()


async def test_append_whose_response_is_lost_is_stored_once(nats_url: str) -> None:
    """After each cut connection the place is read, and the caller gets its response."""
    name = new_name()
    async with (
        cutting_proxy(nats_url.removeprefix("nats://"), CuttingAppends) as proxy,
        engine_at(f"nats://{proxy.address}") as engine,
        owned_log(engine, name) as log,
    ):
        for number in range(3):
            proxy.lose_next_response()
            await log.submit(b"%d" % number)
        assert proxy.cut_count == 3
        async with engine_at(nats_url) as direct, owned_log(direct, name) as later:
            assert later.payloads == [b"0", b"1", b"2"]


async def test_append_whose_response_is_lost_and_that_was_overtaken_fails(nats_url: str) -> None:
    """The place has the fence of another server."""
    name = new_name()
    async with (
        cutting_proxy(nats_url.removeprefix("nats://"), CuttingAppends) as proxy,
        engine_at(f"nats://{proxy.address}") as engine,
        owned_log(engine, name) as log,
    ):
        await log.submit(b"1")
        async with engine_at(nats_url) as direct, owned_log(direct, name):
            proxy.lose_next_response()
            with pytest.raises(LogFailedError, match="another server"):
                await log.submit(b"void")


async def test_append_whose_place_a_former_leader_does_not_know_is_acknowledged(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that the stream counts and nobody finds yet may be the caller's own: the place is read again."""
    name = new_name()
    async with (
        cutting_proxy(nats_url.removeprefix("nats://"), CuttingAppends) as proxy,
        engine_at(f"nats://{proxy.address}") as engine,
        owned_log(engine, name) as log,
    ):
        stream = log.chain.stream
        get, in_flight = stream.get, iter(range(3))

        async def get_late(sequence: int) -> bytes | None:
            return await get(sequence) if next(in_flight, None) is None else None

        monkeypatch.setattr(stream, "get", get_late)
        proxy.lose_next_response()
        stored = await log.submit(b"1")
        assert next(in_flight, None) is None
        assert await log.read(stored) == [b"1"]
        async with engine_at(nats_url) as direct, owned_log(direct, name) as later:
            assert later.payloads == [b"1"]


async def test_append_whose_place_another_owner_has_purged_fails(nats_url: str) -> None:
    """Whose message was there can no longer be seen; that another server has the channel can."""
    name = new_name()
    async with engine_at(nats_url) as engine, owned_log(engine, name) as log, owned_log(engine, name) as later:
        stored = await later.submit(b"1")
        await later.write_checkpoint(stored.end, b"1")
        await asyncio.to_thread(later.log.remove_before, stored.locations[0].segment_id)
        with pytest.raises(LogTakenOverError, match="another server has appended after message"):
            await log.submit(b"void")


@pytest.mark.parametrize(
    ("failures", "is_over"),
    [
        ([(0, SetBackError), (9, SetBackError)], False),
        ([(0, SetBackError), (10, SetBackError)], True),
        ([(0, EngineError), (12, SetBackError), (21, SetBackError)], False),
        ([(0, EngineError), (12, SetBackError), (22, StreamMissingError)], True),
        ([(0, SetBackError), (9, EngineError), (11, SetBackError)], False),
        ([(0, EngineError), (299, EngineError)], False),
        ([(0, EngineError), (300, EngineError)], True),
        ([(0, EngineError), (299, EngineError), (300, SetBackError)], True),
    ],
)
def test_patience_with_what_is_missing_begins_when_it_is(
    monkeypatch: pytest.MonkeyPatch, failures: list[tuple[float, type[Exception]]], *, is_over: bool
) -> None:
    """An election that took long leaves the new leader as much time as any other."""
    clock = iter([0.0, *(seconds for seconds, _ in failures)])
    monkeypatch.setattr("millrace_server.replication.stream_reading.time", SimpleNamespace(monotonic=clock.__next__))
    patience = Patience()
    ends = [patience.is_over(kind("")) for _, kind in failures]
    assert ends == [False] * (len(failures) - 1) + [is_over]


async def test_append_goes_on_when_a_killed_engine_is_back(tmp_path: Path) -> None:
    """The caller waits meanwhile, and nothing that was acknowledged is lost."""
    name = new_name()
    with JetStreamCluster(tmp_path, 1) as cluster:
        async with engine_at(cluster.urls[0]) as engine:
            async with owned_log(engine, name) as log:
                before = await asyncio.gather(*[log.submit(b"%d" % number) for number in range(20)])
                in_flight = log.submit(b"in flight")
                await asyncio.to_thread(cluster.stop)
                meanwhile = log.submit(b"meanwhile")
                reading = asyncio.ensure_future(log.read(before[0]))
                await asyncio.to_thread(cluster.start)
                await in_flight
                await meanwhile
                assert await reading == [b"0"]
            async with owned_log(engine, name) as later:
                assert later.payloads == [*(b"%d" % number for number in range(20)), b"in flight", b"meanwhile"]


async def test_checkpoints_keep_the_newest_two(nats_url: str) -> None:
    """Replay begins at the newest one, and removed messages leave no doubt about the rest."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with owned_log(engine, name) as log:
            stored = await log.submit(b"first")
            for number in range(5):
                stored = await log.submit(b"%d" % number)
                await log.write_checkpoint(stored.end, b"state %d" % number)
            await log.submit(b"behind")
            kept = await asyncio.to_thread(lambda: list(log.checkpoints.valid_checkpoints()))
            assert [checkpoint.state for checkpoint in kept] == [b"state 4", b"state 3"]
            assert [checkpoint.is_previous for checkpoint in kept] == [False, True]
        async with owned_log(engine, name) as later:
            assert later.payloads == [b"behind"]
            await asyncio.to_thread(later.log.remove_before, stored.locations[0].segment_id)
            assert later.log.first_segment_id == stored.locations[0].segment_id
        async with owned_log(engine, name) as last:
            assert last.payloads == [b"behind"]


async def test_replay_of_many_messages_yields_all_in_order(nats_url: str) -> None:
    """Several requests overlap, and a removed checkpoint between them leaves a gap."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with owned_log(engine, name) as log:
            for number in range(2_500):
                stored = await log.submit(b"%d" % number)
                if number in {700, 1_200, 1_300}:
                    await log.write_checkpoint(stored.end, b"state")
        later = await OwnedLog.opened(engine, name)
        assert later.payloads == [b"%d" % number for number in range(1_301, 2_500)]
        again = await asyncio.to_thread(_replayed_from_the_beginning, engine, name)
        assert again == [b"%d" % number for number in range(2_500)]
        await later.close()


def _replayed_from_the_beginning(engine: Engine, name: str) -> list[bytes]:
    from millrace_server.replication.stream_log import StreamLog

    chain = Chain.opened(engine, Stream(engine, name, LIMITS))
    return [bytes(record.payload) for record in StreamLog(chain, PayloadCodec()).replay()]


@pytest.mark.usefixtures("impatient")
async def test_replay_where_a_message_was_lost_is_refused(nats_url: str) -> None:
    """No loss passes in silence: not in the middle, nor at the end, nor of all, nor of what a checkpoint needs."""
    async with engine_at(nats_url) as engine:
        for lost in range(3):
            name = new_name()
            async with owned_log(engine, name) as log:
                stored = [await log.submit(b"%d" % number) for number in range(3)]
            sequence = stored[lost].locations[0].segment_id
            await asyncio.wrap_future(engine.call(engine.jetstream.delete_msg(log.chain.stream.name, sequence)))
            with pytest.raises(LogCorruptError):
                await OwnedLog.opened(engine, name)
        name = new_name()
        async with owned_log(engine, name) as log:
            await log.submit(b"1")
        await asyncio.wrap_future(engine.call(engine.jetstream.delete_stream(log.chain.stream.name)))
        with pytest.raises(LogCorruptError, match="is missing, and the channel had one"):
            await OwnedLog.opened(engine, name, sequence_known=log.chain.epoch)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("kind", "payload_bytes", "error", "words"),
    [(9, 0, UnknownVersionError, "a record of kind 9"), (Kind.PUT, 1, LogCorruptError, "is damaged at byte 0")],
    ids=["other_version", "cut_off"],
)
async def test_replay_of_a_group_whose_records_cannot_be_read_is_refused(
    nats_url: str, kind: int, payload_bytes: int, error: type[Exception], words: str
) -> None:
    """The checksum of a message says nothing of what its records mean, nor that they are whole."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with owned_log(engine, name) as log:
            end = (await log.submit(b"first")).end
            assert end is not None
            start = end._replace(segment_id=log.chain.last_sequence + 1)
            seed = SegmentHeader(log.chain.state.channel_id, start.segment_id, start.lsn, 0).seed(start.position)
            head = encode_record_head(seed, 0, payload_bytes, kind, 0, start.lsn, 0)
            await asyncio.to_thread(log.chain.append, LOG, log.chain.message(MessageKind.GROUP, [head], start))
        with pytest.raises(error, match=words):
            await OwnedLog.opened(engine, name)


@pytest.mark.usefixtures("impatient")
async def test_open_of_a_stream_that_was_set_back_is_refused(nats_url: str) -> None:
    """Also where the stream exists, but ends before what was there."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with owned_log(engine, name) as log:
            await log.submit(b"1")
        with pytest.raises(LogCorruptError, match=r"ends with message 2; there was a message 3, so it was lost or set"):
            await OwnedLog.opened(engine, name, sequence_known=3)


@pytest.mark.usefixtures("impatient")
async def test_submit_to_a_stream_that_was_deleted_fails(nats_url: str) -> None:
    """The owner does not wait for it to come back for minutes."""
    async with engine_at(nats_url) as engine, owned_log(engine, new_name()) as log:
        await log.submit(b"1")
        await asyncio.wrap_future(engine.call(engine.jetstream.delete_stream(log.chain.stream.name)))
        with pytest.raises(LogFailedError, match="stream not found"):
            await log.submit(b"2")


@pytest.mark.usefixtures("impatient")
async def test_stream_that_was_set_back_fails_its_owner(nats_url: str) -> None:
    """An owner whose messages are gone appends nothing behind the hole."""
    name = new_name()
    async with engine_at(nats_url) as engine, owned_log(engine, name) as log:
        await log.submit(b"1")
        await log.submit(b"2")
        await asyncio.wrap_future(engine.call(engine.jetstream.delete_stream(log.chain.stream.name)))
        await asyncio.wrap_future(engine.call(log.chain.stream.open()))
        with pytest.raises(LogFailedError, match="was rolled back"):
            await log.submit(b"3")


@pytest.mark.usefixtures("impatient")
async def test_check_of_a_stream_that_lacks_messages_says_so(nats_url: str) -> None:
    """What the owner itself removes is not missing; what an operator purges, deletes or replaces is."""
    name = new_name()
    async with engine_at(nats_url) as engine, owned_log(engine, name) as log:
        stream = log.chain.stream.name

        async def check() -> None:
            await asyncio.wrap_future(log.chain.check())

        for number in range(3):
            submission = await log.submit(b"%d" % number)
            await log.write_checkpoint(submission.end, b"state")
            await check()
        await asyncio.to_thread(log.log.remove_before, log.chain.last_sequence - 3)
        await check()
        await asyncio.wrap_future(engine.call(engine.jetstream.purge_stream(stream)))
        with pytest.raises(LogCorruptError, match=r"begins with message 8; those from 4 on were removed, and not by"):
            await check()
        await asyncio.wrap_future(engine.call(engine.jetstream.delete_stream(stream)))
        with pytest.raises(StreamMissingError):
            await check()
        await asyncio.wrap_future(engine.call(log.chain.stream.open()))
        with pytest.raises(LogCorruptError, match="was replaced by another one"):
            await check()


@pytest.mark.usefixtures("impatient")
async def test_check_of_a_stream_that_is_purged_under_load_says_so(nats_url: str) -> None:
    """The owner would acknowledge more and more that no later one can read back."""
    async with engine_at(nats_url) as engine, owned_log(engine, new_name()) as log:

        async def append_all() -> None:
            while True:
                await log.submit(b"x")

        await log.submit(b"first")
        async with asyncio.TaskGroup() as callers:
            appending = [callers.create_task(append_all()) for _ in range(3)]
            await asyncio.wrap_future(log.chain.check())
            await asyncio.wrap_future(engine.call(engine.jetstream.purge_stream(log.chain.stream.name)))
            with pytest.raises(LogCorruptError, match="were removed, and not by Millrace"):
                await asyncio.wrap_future(log.chain.check())
            for each in appending:
                each.cancel()


@pytest.mark.usefixtures("impatient")
async def test_check_by_an_owner_that_was_overtaken_misses_nothing(nats_url: str) -> None:
    """What the next owner has removed was not needed any more."""
    name = new_name()
    async with engine_at(nats_url) as engine, owned_log(engine, name) as former, owned_log(engine, name) as log:
        for number in range(2):
            submission = await log.submit(b"%d" % number)
            await log.write_checkpoint(submission.end, b"state")
        await asyncio.to_thread(log.log.remove_before, log.chain.epoch)
        await asyncio.wrap_future(former.chain.check())


async def test_submit_to_a_full_stream_is_refused_until_there_is_space(nats_url: str) -> None:
    """What is refused is not in the log, and what comes after `resume` is."""
    limits = StreamLimits(replicas=1, stream_bytes_max=_MIB)
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with owned_log(engine, name, limits=limits) as log:
            first = await log.submit(b"x" * (_MIB // 2))
            with pytest.raises(LogFullError, match="no space"):
                await log.submit(b"y" * (_MIB // 2))
            log.log.resume()
            second = await log.submit(b"z")
            await log.write_checkpoint(second.end, b"state")
            await asyncio.to_thread(log.log.remove_before, second.locations[0].segment_id)
            assert log.log.byte_count() < _MIB // 2
            await log.submit(b"y" * (_MIB // 2))
            assert first.end != second.end
        async with owned_log(engine, name, limits=limits) as later:
            assert later.payloads == [b"y" * (_MIB // 2)]


async def test_submit_that_the_engine_refuses_for_good_fails(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where an operator has limited the size of messages; it does not try without a pause until then."""
    monkeypatch.setattr("millrace_server.replication.stream_reading.UNKNOWN_SECONDS_MAX", 0.5)
    async with engine_at(nats_url) as engine, owned_log(engine, new_name()) as log:
        stream = log.chain.stream
        config = (await asyncio.wrap_future(engine.call(engine.jetstream.stream_info(stream.name)))).config
        config.max_msg_size = 1_000
        await asyncio.wrap_future(engine.call(engine.jetstream.update_stream(config)))
        publish, attempts = stream._publish, list[int]()

        async def count(*arguments: Any) -> None:
            attempts.append(1)
            await publish(*arguments)

        monkeypatch.setattr(stream, "_publish", count)
        async with asyncio.timeout(60):
            with pytest.raises(LogFailedError, match="message size exceeds maximum allowed"):
                await log.submit(b"x" * 2_000)
        assert len(attempts) < 20


async def test_records_are_encrypted_and_compressed_as_in_files(nats_url: str) -> None:
    """Nothing of a body is in the stream, and without the key nothing is replayed."""
    name = new_name()
    codec = PayloadCodec(True, "first", {"first": bytes(32)})
    async with engine_at(nats_url) as engine:
        async with owned_log(engine, name, codec=codec) as log:
            stored = await log.submit(b"secret " * 1_000)
            found = await asyncio.wrap_future(engine.call(log.chain.stream.get(stored.locations[0].segment_id)))
            assert found is not None
            assert b"secret" not in found
            assert len(found) < 1_000
        async with owned_log(engine, name, codec=codec) as later:
            assert later.payloads == [b"secret " * 1_000]
        with pytest.raises(KeyMissingError):
            await OwnedLog.opened(engine, name)


async def test_connect_to_nothing_says_what_cannot_be_reached() -> None:
    """An operator sees the addresses."""
    with (
        connecting_until("Connect"),
        pytest.raises(EngineError, match=r"none of nats://127\.0\.0\.1:1 can be used: .*Connect"),
    ):
        await Engine.connected(["nats://127.0.0.1:1"])
