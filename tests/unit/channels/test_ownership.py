"""Replicated channels of registries in this process that share a real engine."""

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import pytest

from millrace_server.channels import ownership
from millrace_server.channels.channel_handle import ChannelHandle, ChannelState
from millrace_server.channels.config import ReplicatedChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stream_store import OpenStream, StreamStores
from millrace_server.errors import (
    ChannelCorruptError,
    ChannelLogFailedError,
    DiskFullError,
    MillraceError,
    NotOwnerError,
    ReplayingError,
)
from millrace_server.replication.chain import Chain
from millrace_server.replication.engine import EngineError
from millrace_server.replication.engine_settings import EngineSettings
from millrace_server.replication.lease import ChannelLease
from millrace_server.replication.lease_bucket import BUCKET, JetStreamBucket
from millrace_server.replication.owner_entries import Holder, channel_key
from millrace_server.replication.stream import Stream, StreamLimits
from millrace_server.replication.stream_reading import StreamMissingError
from millrace_server.wal.records import LogFullError
from tests.channel_events import append, begin_with_takes, consume, numbered
from tests.stream_logs import engine_at, new_name, set_back
from tests.waiting import until

HAS_THREADS = True

_GRACE_SECONDS = 30.0
_SLOW_SECONDS = 2.0
"""Longer than those that are not slow take."""
_LIMITS = StreamLimits(replicas=1, stream_bytes_max=1 << 22)


def _config(url: str, stream_bytes_max: int = _LIMITS.stream_bytes_max, **limits: Any) -> ReplicatedChannelConfig:
    engine = EngineSettings(
        type="jetstream", servers=[url], replicas=1, stream_bytes_max=stream_bytes_max, lease_seconds=30.0
    )
    return ReplicatedChannelConfig(type="replicated", engine=engine, **limits)


@asynccontextmanager
async def _registry(address: str) -> AsyncIterator[ChannelRegistry]:
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=100)
    registry.serve_at(address)
    try:
        yield registry
    finally:
        await registry.close()


async def _until_state(handle: ChannelHandle, state: ChannelState) -> None:
    await until(lambda: handle.state is state)


def _queued(handle: ChannelHandle) -> list[tuple[int, bytes]]:
    return numbered(list(handle.channel._contents.held_batches()))


async def test_close_hands_the_channel_over_with_its_events_and_claims(nats_url: str) -> None:
    """The other server has taken over before anyone asks; what was taken is there again."""
    name = new_name()
    async with _registry("b:1") as other:
        async with _registry("a:1") as one:
            first = one.create(name, _config(nats_url))
            await first.opened.wait()
            await append(first.channel, b"1", b"2")
            second = other.create(name, _config(nats_url))
            await _until_state(second, ChannelState.STANDING_BY)
            await until(lambda: second.owner is not None and second.owner.address == "a:1")
            await begin_with_takes(first.channel, 1)
            one.drain()
            await one.handed_over(_GRACE_SECONDS)
            await _until_state(second, ChannelState.OPEN)
            with pytest.raises(NotOwnerError, match="owned by b:1"):
                one.get(name)
        assert _queued(second) == [(1, b"1"), (2, b"2")]


class _Handover(NamedTuple):
    """A server that stops, its channel, and what lets the other server take that over."""

    leaving: ChannelRegistry
    left: ChannelHandle
    may_take: asyncio.Event


@asynccontextmanager
async def _slow_successor(nats_url: str, slow: pytest.MonkeyPatch) -> AsyncIterator[_Handover]:
    """A server that leaves a channel to one that takes it over only when the test allows that."""
    name, may_take, try_acquire = new_name(), asyncio.Event(), ChannelLease.try_acquire

    async def acquire_slowly(lease: ChannelLease) -> bool:
        await may_take.wait()
        return await try_acquire(lease)

    async with _registry("b:1") as successor, _registry("a:1") as one:
        await one.create(name, _config(nats_url)).opened.wait()
        slow.setattr(ChannelLease, "try_acquire", acquire_slowly)
        successor.create(name, _config(nats_url))
        await until(lambda: one.has_successor(name))
        one.drain()
        yield _Handover(one, one.find(name), may_take)
        may_take.set()


async def test_handed_over_with_a_slow_successor_waits_for_it(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that knows only the server that stops could not find the other one afterwards."""
    async with _slow_successor(nats_url, monkeypatch) as handover:
        asyncio.get_running_loop().call_later(_SLOW_SECONDS, handover.may_take.set)
        await handover.leaving.handed_over(_GRACE_SECONDS)
        assert handover.left.owner is not None
        assert handover.left.owner.address == "b:1"


async def test_handed_over_after_the_grace_period_waits_for_nobody(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs holds no other up."""
    async with _slow_successor(nats_url, monkeypatch) as handover:
        async with asyncio.timeout(_GRACE_SECONDS):
            await handover.leaving.handed_over(0.0)
        assert handover.left.owner is not None
        assert handover.left.owner.address == ""


async def test_handed_over_where_all_servers_stop_waits_for_nobody(nats_url: str) -> None:
    """Each leaves the channel to the other one, which does not want it."""
    name = new_name()
    async with _registry("b:1") as other, _registry("a:1") as one:
        await one.create(name, _config(nats_url)).opened.wait()
        await _until_state(other.create(name, _config(nats_url)), ChannelState.STANDING_BY)
        await until(lambda: one.has_successor(name))
        async with asyncio.timeout(_GRACE_SECONDS):
            for registry in (one, other):
                registry.drain()
            for registry in (one, other):
                await registry.handed_over(10 * _GRACE_SECONDS)


async def test_channel_whose_stream_was_lost_is_corrupt_until_it_is_deleted(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty channel in its place would be a silent loss."""
    monkeypatch.setattr("millrace_server.replication.stream_reading.MISSING_SECONDS_MAX", 0.1)
    name = new_name()
    async with _registry("a:1") as one:
        handle = one.create(name, _config(nats_url))
        await handle.opened.wait()
        await append(handle.channel, b"1")
    async with engine_at(nats_url) as engine:
        await StreamStores(engine).delete(name, _LIMITS)
    async with _registry("b:1") as other:
        lost = other.create(name, _config(nats_url))
        await _until_state(lost, ChannelState.CORRUPT)
        with pytest.raises(ChannelCorruptError):
            other.get(name)
        assert await other.mark_deleted(name)
        await other.delete(name)
        again = other.create(name, _config(nats_url), is_new=True)
        await _until_state(again, ChannelState.OPEN)
        assert again.channel.next_sequence == 1


async def test_delete_whose_response_is_lost_is_repeated(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the node that leads the stream dies: the stream is gone, and must not be taken for lost."""
    delete, attempts = StreamStores.delete, itertools.count()

    async def lose_response(stores: StreamStores, *arguments: Any) -> None:
        await delete(stores, *arguments)
        if not next(attempts):
            raise EngineError("nats: timeout")

    monkeypatch.setattr(StreamStores, "delete", lose_response)
    async with _registry("a:1") as one:
        handle = one.create(new_name(), _config(nats_url))
        await handle.opened.wait()
        assert await one.mark_deleted(handle.name)
        assert next(attempts) == 2


async def test_delete_that_its_server_does_not_finish_is_finished_by_the_next_owner(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it is decided, the channel does not come back."""
    forgotten: list[ChannelHandle] = []
    async with engine_at(nats_url) as engine, _registry("b:1") as other:
        other.on_deleted_elsewhere = forgotten.append
        async with _registry("a:1") as one:
            config = _config(nats_url)
            config = config.model_copy(update={"engine": config.engine.model_copy(update={"lease_seconds": 1.0})})
            handle = one.create(new_name(), config)
            await handle.opened.wait()
            await append(handle.channel, b"1")
            with monkeypatch.context() as silence:
                silence.setattr(StreamStores, "delete", _fail_for_engine)
                with pytest.raises(ChannelLogFailedError, match="will be deleted once the engine responds"):
                    await one.mark_deleted(handle.name)
                assert handle.state is ChannelState.STANDING_BY
                assert handle.trouble == "the channel is being deleted"
                second = other.create(handle.name, config)
                one.drain()
        await until(lambda: forgotten == [second])
        with pytest.raises(StreamMissingError):
            await asyncio.wrap_future(engine.call(Stream(engine, handle.name, _LIMITS).state()))


async def _fail_for_engine(*_: object) -> None:
    raise EngineError("nats: timeout")


async def test_channel_that_is_corrupt_is_forgotten_once_another_server_deletes_it(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each server would have to be asked to."""
    monkeypatch.setattr("millrace_server.replication.stream_reading.MISSING_SECONDS_MAX", 0.1)
    name, forgotten = new_name(), list[ChannelHandle]()
    async with _registry("a:1") as one, _registry("b:1") as other:
        handle = one.create(name, _config(nats_url))
        await handle.opened.wait()
        second = other.create(name, _config(nats_url))
        other.on_deleted_elsewhere = forgotten.append
        await _until_state(second, ChannelState.STANDING_BY)
        async with engine_at(nats_url) as engine:
            await StreamStores(engine).delete(name, _LIMITS)
        with suppress(MillraceError):
            await append(handle.channel, b"1")
        for each in (handle, second):
            await _until_state(each, ChannelState.CORRUPT)
        assert await one.mark_deleted(name)
        await until(lambda: forgotten == [second])


async def test_channel_whose_stream_was_set_back_behind_the_last_fence_is_corrupt(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has left a note of the last message, so another server misses what came behind the epoch."""
    monkeypatch.setattr("millrace_server.replication.stream_reading.MISSING_SECONDS_MAX", 0.1)
    name = new_name()
    async with _registry("a:1") as one:
        handle = one.create(name, _config(nats_url))
        await handle.opened.wait()
        for body in (b"1", b"2"):
            await append(handle.channel, body)
    async with engine_at(nats_url) as engine:
        # The fence and the first commit; the second one, and the checkpoint at the end, are lost.
        await set_back(engine, name, 2)
    async with _registry("b:1") as other:
        lost = other.create(name, _config(nats_url))
        await until(lambda: lost.state in {ChannelState.CORRUPT, ChannelState.OPEN})
        assert lost.state is ChannelState.CORRUPT


async def test_owner_notes_how_far_its_stream_has_come(nats_url: str) -> None:
    """Also one that is killed later leaves a note, which is at most a lease old."""
    name = new_name()
    async with _registry("a:1") as one:
        config = _config(nats_url)
        engine_settings = config.engine.model_copy(update={"lease_seconds": 3.0})
        handle = one.create(name, config.model_copy(update={"engine": engine_settings}))
        await handle.opened.wait()
        await append(handle.channel, b"1")
        async with engine_at(nats_url) as engine:
            bucket = await JetStreamBucket.opened(engine, 1)

            async def noted() -> Holder:
                async for change in bucket.watch(60.0):
                    if change is not None and change[0] == channel_key(name):
                        holder = Holder.decoded(change[1].value)
                        if holder.last_sequence:
                            return holder
                raise TimeoutError

            holder = await asyncio.wrap_future(engine.call(noted()))
            assert (holder.address, holder.epoch) == ("a:1", 1)
            # A checkpoint may follow the fence and the commit.
            assert holder.last_sequence >= 2


async def test_channel_is_corrupt_whose_engine_was_set_back_with_its_notes(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that has served it knows what was acknowledged, also if the bucket of the owners was set back too."""
    monkeypatch.setattr("millrace_server.replication.stream_reading.MISSING_SECONDS_MAX", 0.1)
    name = new_name()
    async with _registry("a:1") as one, engine_at(nats_url) as engine:
        config = _config(nats_url)
        engine_settings = config.engine.model_copy(update={"lease_seconds": 2.0})
        handle = one.create(name, config.model_copy(update={"engine": engine_settings}))
        await handle.opened.wait()
        for body in (b"1", b"2", b"3"):
            await append(handle.channel, body)
        await set_back(engine, name, 3)
        await asyncio.wrap_future(engine.call(engine.jetstream.purge_stream(f"KV_{BUCKET}")))
        await _until_state(handle, ChannelState.CORRUPT)


@pytest.mark.parametrize("damage", ["deleted", "set back", "purged"])
async def test_channel_at_rest_whose_stream_is_damaged_is_corrupt_within_a_lease(
    nats_url: str, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    """Its owner looks by itself: nothing is appended or read that would meet the damage."""
    monkeypatch.setattr("millrace_server.replication.stream_reading.MISSING_SECONDS_MAX", 0.1)
    name = new_name()
    async with _registry("a:1") as one, engine_at(nats_url) as engine:
        config = _config(nats_url)
        engine_settings = config.engine.model_copy(update={"lease_seconds": 1.0})
        handle = one.create(name, config.model_copy(update={"engine": engine_settings}))
        await handle.opened.wait()
        for body in (b"1", b"2"):
            await append(handle.channel, body)
        if damage == "deleted":
            await StreamStores(engine).delete(name, _LIMITS)
        elif damage == "set back":
            await set_back(engine, name, 2)
        else:
            stream = Stream(engine, name, _LIMITS)
            await asyncio.wrap_future(engine.call(stream.purge_before(3)))
        await _until_state(handle, ChannelState.CORRUPT)


async def test_channel_without_its_engine_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it, and the server can be stopped."""
    monkeypatch.setattr(ownership, "_READY_SECONDS", 1.0)
    monkeypatch.setattr("millrace_server.replication.engine._CONNECT_SECONDS", 2.0)
    waiting = r"the engine has been unavailable since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC: "
    early: list[str] = []

    async with _registry("a:1") as one:

        def note(name: str) -> None:
            if one.find(name).state is ChannelState.REPLAYING:
                with pytest.raises(ReplayingError) as refused:
                    one.get(name)
                early.append(str(refused.value))

        one.watch(note)
        handle = one.create(new_name(), _config("nats://127.0.0.1:1"))
        await _until_state(handle, ChannelState.STANDING_BY)
        assert re.search(f"0% so far: {waiting}it has not responded yet$", early[-1])
        assert handle.is_troubled
        await until(lambda: "refused" in handle.trouble)
        assert re.match(f"{waiting}none of nats://127.0.0.1:", handle.trouble)
        with pytest.raises(NotOwnerError) as refused:
            one.get(handle.name)
        assert refused.value.metadata["address"] == ""


async def test_channel_whose_engine_raises_what_nobody_expects_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operators see it, instead of a channel that stands by for ever."""

    async def fail(_settings: EngineSettings) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("millrace_server.channels.engines.Engine.of", fail)
    async with _registry("a:1") as one:
        handle = one.create(new_name(), _config("nats://127.0.0.1:1"))
        await _until_state(handle, ChannelState.LOG_FAILED)


async def test_channel_that_does_not_open_for_calls_abandons_its_stream(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is left open, another server can take it over, and it can be deleted here."""
    name, abandoned = new_name(), []
    abandon = OpenStream.abandon

    async def note(opened: OpenStream) -> None:
        await abandon(opened)
        abandoned.append(opened)

    def fail(*_arguments: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(OpenStream, "abandon", note)
    async with _registry("a:1") as one, _registry("b:1") as other:
        with monkeypatch.context() as broken:
            broken.setattr("millrace_server.channels.registry.Channel", fail)
            handle = one.create(name, _config(nats_url))
            await _until_state(handle, ChannelState.LOG_FAILED)
            await until(lambda: bool(abandoned))
        assert handle.store is None
        await other.create(name, _config(nats_url)).opened.wait()
        await until(lambda: other.find(name).state is ChannelState.OPEN)
        await other.retire(name)
        async with asyncio.timeout(60):
            assert await one.mark_deleted(name)


async def test_channel_says_that_its_engine_does_not_respond_any_more(
    nats_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody owns it then, and the state alone does not tell that from another server's channel."""
    name = new_name()
    async with _registry("a:1") as one, _registry("b:1") as other:
        await one.create(name, _config(nats_url)).opened.wait()
        handle = other.create(name, _config(nats_url))
        await _until_state(handle, ChannelState.STANDING_BY)
        assert not handle.is_troubled
        assert other._shared is not None
        [shared] = other._shared._engines._shared.values()
        with monkeypatch.context() as silence:
            silence.setattr(shared.leases.members, "session", "")
            silence.setattr(shared.leases.members, "last_error", "timed out")
            assert re.fullmatch(r"the engine has not responded since \S+ \S+ UTC: timed out", handle.trouble)
        assert not handle.is_troubled


async def test_channel_of_a_server_without_an_address_waits_for_it(nats_url: str) -> None:
    """Its port is known only once it listens."""
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=100)
    handle = registry.create(new_name(), _config(nats_url))
    await handle.opened.wait()
    assert handle.trouble == "the server has not started yet"
    registry.serve_at("a:1")
    await _until_state(handle, ChannelState.OPEN)
    assert not handle.is_troubled
    await registry.close()


async def test_open_with_a_lower_limit_than_the_stream_needs_keeps_the_former_one(nats_url: str) -> None:
    """Puts are refused until events were taken, rather than the channel cannot be opened and nothing can be taken."""
    name, small, large = new_name(), _config(nats_url), _config(nats_url, 2 * _LIMITS.stream_bytes_max)
    async with _registry("a:1") as one:
        handle = one.create(name, large)
        await handle.opened.wait()
        for _ in range(10):
            await append(handle.channel, b"x" * (1 << 19))
    async with _registry("b:1") as other:
        handle = other.create(name, small)
        await until(lambda: handle.state not in {ChannelState.REPLAYING, ChannelState.STANDING_BY})
        with pytest.raises(DiskFullError, match="has 0 bytes free"):
            await append(handle.channel, b"y")
        for _ in range(10):
            await consume(handle.channel, 1)
        await until(lambda: handle.state is ChannelState.OPEN)
        await append(handle.channel, b"y")
    async with _registry("c:1") as third:
        await _until_state(third.create(name, small), ChannelState.OPEN)
    async with engine_at(nats_url) as engine:
        found = engine.jetstream.stream_info(Stream(engine, name, _LIMITS).name)
        info = await asyncio.wrap_future(engine.call(found))
        assert info.config.max_bytes == _LIMITS.stream_bytes_max


async def test_takeover_of_a_full_stream_is_tried_again(nats_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be fenced until an operator makes space, which needs no restart of the servers."""
    fence, attempts = Chain.fence, itertools.count()

    def fence_later(chain: Chain, *arguments: Any) -> None:
        if not next(attempts):
            raise LogFullError("the stream has no space: insufficient storage")
        fence(chain, *arguments)

    monkeypatch.setattr(Chain, "fence", fence_later)
    monkeypatch.setattr("millrace_server.replication.membership.RENEWALS_PER_LEASE", 300)
    async with _registry("a:1") as one:
        handle = one.create(new_name(), _config(nats_url))
        await until(lambda: "insufficient storage" in handle.trouble)
        assert handle.state is ChannelState.STANDING_BY
        await _until_state(handle, ChannelState.OPEN)


async def test_retire_leaves_the_channel_to_the_others(nats_url: str) -> None:
    """It is removed from one server's file; its stream stays."""
    name = new_name()
    async with _registry("a:1") as one, _registry("b:1") as other:
        first = one.create(name, _config(nats_url))
        await first.opened.wait()
        await append(first.channel, b"1")
        second = other.create(name, _config(nats_url, capacity=50, transaction_capacity=50))
        await _until_state(second, ChannelState.STANDING_BY)
        await one.retire(name)
        assert name not in one
        await _until_state(second, ChannelState.OPEN)
        assert _queued(second) == [(1, b"1")]
        assert second.channel.config.capacity == 50
