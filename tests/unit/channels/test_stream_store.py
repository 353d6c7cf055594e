"""Channels in streams of a real nats-server, and what happens when another server takes them over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace_server.channels.channel import Channel
from millrace_server.channels.log_store import LogStore
from millrace_server.channels.recovery import ReplayProgress
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.stream_store import StreamStores, TakeOver
from millrace_server.channels.transactions import TxnDirectory
from millrace_server.errors import DiskFullError, NotOwnerError
from millrace_server.replication.engine import Engine
from millrace_server.replication.stream import StreamLimits
from millrace_server.wal.segments import LogCorruptError
from tests.channel_events import RESPONSE_BYTES_MAX, append, begin_with_takes, numbered
from tests.simulated_channels import small_limits
from tests.stream_logs import engine_at, new_name
from tests.waiting import until

HAS_THREADS = True

_STREAM_BYTES_MAX = 1 << 22


class _Server:
    """A server that owns one channel."""

    def __init__(self, store: LogStore, channel: Channel, epoch: int, changes: list[str]) -> None:
        self.store = store
        self.channel = channel
        self.epoch = epoch
        self.changes = changes

    def held(self) -> list[tuple[int, bytes]]:
        """The sequences and bodies of the channel's events."""
        return numbered(sorted(self.channel._contents.held_batches(), key=lambda batch: batch.first_sequence))


@asynccontextmanager
async def _server(engine: Engine, name: str, sequence_known: int = 0, **limits: Any) -> AsyncIterator[_Server]:
    config = small_limits(**limits)
    changes: list[str] = []
    limits_of_stream = StreamLimits(replicas=1, stream_bytes_max=_STREAM_BYTES_MAX)
    attempt = TakeOver(limits_of_stream, "127.0.0.1:1", sequence_known)
    store, chain = await StreamStores(engine).open(name, config, attempt, ReplayProgress(), changes.append)
    channel = Channel(name, config, store.storage, TxnDirectory(100), RESPONSE_BYTES_MAX)
    try:
        yield _Server(store, channel, chain.epoch, changes)
    finally:
        await store.close()


async def test_open_by_another_server_has_all_that_was_acknowledged(nats_url: str) -> None:
    """The former owner, which was not stopped, stores nothing more; stamps and sequences go on."""
    name = new_name()
    async with engine_at(nats_url) as engine, _server(engine, name) as former:
        first = await append(former.channel, b"1", b"2", stamp=Stamp("p", 1, 2))
        async with _server(engine, name, former.epoch) as owner:
            assert owner.epoch > former.epoch
            assert owner.held() == [(1, b"1"), (2, b"2")]
            with pytest.raises(NotOwnerError):
                await append(former.channel, b"void")
            assert "another server has appended" in former.changes[-1]
            assert former.channel.fault is not None
            again = await append(owner.channel, b"1", b"2", stamp=Stamp("p", 1, 2))
            assert again.is_deduplicated
            assert (await append(owner.channel, b"3")).first_sequence == first.first_sequence + 2
        async with _server(engine, name, owner.epoch) as last:
            assert last.held() == [(1, b"1"), (2, b"2"), (3, b"3")]


async def test_open_of_a_stream_smaller_than_the_channel_warns_with_both_figures(nats_url: str) -> None:
    """Operators learn before puts are refused that `byte_capacity` will not be reached."""
    async with engine_at(nats_url) as engine:
        with capture_logs() as logged:
            async with _server(engine, new_name(), body_bytes_max=_STREAM_BYTES_MAX + 1):
                pass
            async with _server(engine, new_name(), body_bytes_max=_STREAM_BYTES_MAX):
                pass
    [warning] = [entry for entry in logged if entry["log_level"] == "warning"]
    assert (warning["byte_capacity"], warning["stream_bytes_max"]) == (_STREAM_BYTES_MAX + 1, _STREAM_BYTES_MAX)


async def test_close_leaves_a_checkpoint_from_which_the_next_server_goes_on(nats_url: str) -> None:
    """Hardly anything is replayed."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with _server(engine, name) as server:
            for number in range(50):
                await append(server.channel, b"%d" % number * 1_000)
            bytes_before = server.store.log_bytes
        async with _server(engine, name) as following:
            assert len(following.held()) == 50
            assert following.store._opened.recovered.replayed_records <= 1
            assert following.store.replay_bytes < bytes_before


async def test_append_to_a_full_stream_is_refused_until_takes_have_freed_it(nats_url: str) -> None:
    """Puts leave `min_free_bytes` of the stream for what frees it."""
    body = b"x" * (_STREAM_BYTES_MAX // 8)
    limits = {"min_free_bytes": _STREAM_BYTES_MAX // 2}
    async with engine_at(nats_url) as engine, _server(engine, new_name(), **limits) as server:
        for _ in range(3):
            await append(server.channel, body)
        with pytest.raises(DiskFullError, match=r"the channel's stream has \d+ bytes free; .* min_free_bytes"):
            await append(server.channel, body)
        journal = server.store._journal
        await until(lambda: "the stream has no space for puts" in journal.disk_trouble)
        assert "or raise stream_bytes_max" in journal.disk_trouble
        for is_stalled in (True, False):
            journal._set_stalled(is_stalled=is_stalled)
        assert server.changes[-2:] == ["the engine does not respond; commits wait for it", "the engine responds again"]
        for _ in range(3):
            await server.channel.transactions.commit([await begin_with_takes(server.channel, 1)], None)
        # The events were needed by the previous checkpoint until the second one.
        for _ in range(2):
            await server.store._checkpointing.make()
        await server.store._journal.measure()
        await append(server.channel, body)
        assert [sequence for sequence, _ in server.held()] == [4]


@pytest.mark.usefixtures("impatient")
async def test_open_of_a_stream_that_was_lost_is_refused(nats_url: str) -> None:
    """No new, empty stream takes its place in silence."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with _server(engine, name) as server:
            await append(server.channel, b"1")
        await asyncio.to_thread(server.store._opened.holder.remove)
        with pytest.raises(LogCorruptError, match="is missing, and the channel had one"):
            async with _server(engine, name, server.epoch):
                pass


async def test_remove_deletes_the_stream(nats_url: str) -> None:
    """A channel of the same name begins empty, with another id."""
    name = new_name()
    async with engine_at(nats_url) as engine:
        async with _server(engine, name) as server:
            await append(server.channel, b"1")
            await server.store.mark_deleted()
            await server.store.remove()
        async with _server(engine, name) as following:
            assert following.held() == []
            assert following.channel.channel_id != server.channel.channel_id
