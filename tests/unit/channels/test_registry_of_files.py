import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace_server.channels.channel import Channel
from millrace_server.channels.channel_file import ChannelFile
from millrace_server.channels.channel_handle import ChannelState
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import (
    ChannelCorruptError,
    ChannelLogFailedError,
    ChannelNotEmptyError,
    DrainingError,
    ReplayingError,
    TxnNotFoundError,
    TxnStateError,
)
from tests.channel_events import append, begin, begin_with_puts, limits_of, queued
from tests.file_channels import Gate, file_limits
from tests.simulated_disk import SimulatedDisk
from tests.waiting import until

HAS_THREADS = True


class Server:
    """A registry with file channels on a simulated disk; closed at the end of the test."""

    def __init__(self, base: Path, disk: SimulatedDisk) -> None:
        self.base = base
        self.disk = disk
        self.notified: list[tuple[str, ChannelState]] = []
        self.registry = self._new()

    def _new(self) -> ChannelRegistry:
        registry = ChannelRegistry(
            message_bytes_max=1 << 20, open_transactions_max=100, channels_dir=self.base, disk=self.disk
        )
        registry.watch(self._note)
        return registry

    def _note(self, name: str) -> None:
        if name in self.registry:
            self.notified.append((name, self.registry.find(name).state))

    async def open(self, name: str = "orders", **limits: Any) -> Channel:
        hosted = self.registry.create(name, file_limits(**limits))
        await hosted.opened.wait()
        return hosted.channel

    async def restart(self) -> None:
        await self.registry.close()
        self.registry = self._new()

    @property
    def segment(self) -> Path:
        return self.base / "orders" / "segment-000000000001.log"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    base = tmp_path / "channels"
    server = Server(base, SimulatedDisk([base / name for name in ("orders", "bills")]))
    yield server
    await server.registry.close()


async def test_create_of_a_file_channel_opens_it_in_the_background(server: Server) -> None:
    """No call waits for the disk; until the channel is open it is replaying, and may own any transaction."""
    gate = Gate(server.disk, "list")
    gate.close()
    hosted = server.registry.create("orders", file_limits())
    await gate.reached()
    assert hosted.state is ChannelState.REPLAYING
    assert server.registry.channels() == []
    with pytest.raises(ReplayingError):
        server.registry.get("orders")
    with pytest.raises(ReplayingError):
        server.registry.transactions.find("any")
    for force in (False, True):
        with pytest.raises(ReplayingError):
            server.registry.refuse_undeletable("orders", force=force)
    await server.registry.wait_open(0.01)
    assert not hosted.opened.is_set()
    gate.open()
    await server.registry.wait_open(30)
    assert server.registry.get("orders") is hosted.channel
    with pytest.raises(TxnNotFoundError):
        server.registry.transactions.find("any")
    assert server.notified == [("orders", ChannelState.REPLAYING), ("orders", ChannelState.OPEN)]


async def test_channel_of_a_transaction_is_sure_once_every_channel_is_known(server: Server) -> None:
    """A watcher can ask as soon as it is notified that a channel cannot be opened."""
    responses = list[type[Exception]]()

    def ask(_name: str) -> None:
        try:
            server.registry.transactions.find("any")
        except (ReplayingError, TxnNotFoundError) as error:
            responses.append(type(error))

    server.registry.watch(ask)
    server.disk.fail("list", 1, errno.EIO)
    with pytest.raises(ChannelLogFailedError):
        await server.open()
    assert (responses[0], responses[-1]) == (ReplayingError, TxnNotFoundError)


async def test_create_while_the_server_drains_opens_a_channel_that_begins_nothing(server: Server) -> None:
    """The channel may have been replaying when the drain began."""
    hosted = server.registry.create("orders", file_limits())
    server.registry.drain()
    await hosted.opened.wait()
    with pytest.raises(DrainingError):
        hosted.channel.transactions.begin(None, None)


async def test_create_after_a_close_finds_the_channel_and_its_transactions(server: Server) -> None:
    """Ids of ended transactions still belong to the channel, unless they were used again since."""
    channel = await server.open()
    await append(channel, b"a")
    for txn_id in ("mine", "reused"):
        begin(channel, txn_id)
        await channel.transactions.commit([txn_id], None)
    await server.restart()
    other = server.registry.create("bills", limits_of()).channel
    begin(other, "reused")
    found = await server.open()
    assert queued(found) == [b"a"]
    assert found.channel_id == channel.channel_id
    transactions = server.registry.transactions
    assert transactions.find("mine") is found.transactions
    assert transactions.find("reused") is other.transactions
    with pytest.raises(TxnStateError):
        begin(other, "mine")


async def test_log_that_fails_changes_the_state_once(server: Server) -> None:
    """Watchers are notified once; other channels continue, and the next opening determines what is stored."""
    channel, other = await server.open(), await server.open("bills")
    await append(channel, b"a")
    server.notified.clear()
    server.disk.fail("sync", 1, errno.EIO)
    for _ in range(3):
        with pytest.raises(ChannelLogFailedError):
            await append(channel, b"b")
    assert server.notified == [("orders", ChannelState.LOG_FAILED)]
    assert server.registry.get("orders") is channel
    await append(other, b"c")
    await server.restart()
    assert queued(await server.open())[:1] == [b"a"]


def damage(server: Server, body: bytes) -> None:
    content = bytearray(server.disk.content(server.segment))
    content[content.index(body)] ^= 1
    server.disk.set_content(server.segment, content)
    for path in server.disk.paths():
        if path.name.startswith("checkpoint"):
            server.disk.remove(path)


async def test_create_of_a_damaged_channel_is_corrupt_and_can_be_deleted(server: Server) -> None:
    """Deletion needs force, since the content is unknown; a channel that is created again is another one."""
    channel = await server.open()
    await append(channel, b"damaged")
    await append(channel, b"b")
    await server.restart()
    damage(server, b"damaged")
    with pytest.raises(ChannelCorruptError):
        await server.open()
    hosted = server.registry.find("orders")
    assert hosted.state is ChannelState.CORRUPT
    await server.registry.wait_open(30)
    with pytest.raises(ChannelCorruptError):
        server.registry.refuse_undeletable("orders", force=False)
    server.registry.refuse_undeletable("orders", force=True)
    await server.registry.mark_deleted("orders")
    await server.registry.delete("orders")
    assert "orders" not in server.registry
    assert not (server.base / "orders").exists()


async def test_create_of_a_channel_that_another_has_open_is_refused_and_harms_nothing(
    server: Server, tmp_path: Path
) -> None:
    """The first server continues; the second can neither use nor delete the channel."""
    channel = await server.open()
    second = Server(server.base, server.disk)
    with pytest.raises(ChannelLogFailedError, match="cannot be opened; see the server's log"):
        await second.open()
    assert second.registry.find("orders").state is ChannelState.LOG_FAILED
    with pytest.raises(ChannelLogFailedError, match="cannot be deleted; see the server's log"):
        await second.registry.mark_deleted("orders")
    await second.registry.close()
    assert (await append(channel, b"a")).first_sequence == 1


async def test_delete_of_a_file_channel_removes_its_files(server: Server) -> None:
    """Open transactions go too; a channel that is marked never returns, even after a crash."""
    channel = await server.open()
    await append(channel, b"a")
    begin_with_puts(channel, b"b")
    with pytest.raises(ChannelNotEmptyError):
        server.registry.refuse_undeletable("orders", force=False)
    await server.registry.mark_deleted("orders")
    marked = ChannelFile.read(server.base / "orders")
    assert marked is not None
    assert marked.is_deleted
    # The simulated disk keeps the file, which the real directory does not have.
    (server.base / "orders" / server.segment.name).write_bytes(b"")
    await server.registry.delete("orders")
    assert not (server.base / "orders").exists()
    assert server.registry.transactions.limit.open_count == 0
    for path in server.disk.paths():
        server.disk.remove(path)
    assert (await append(await server.open(), b"c")).first_sequence == 1


async def test_close_while_a_channel_is_being_opened_waits_for_it(server: Server) -> None:
    """Its files are closed like the others'."""
    gate = Gate(server.disk, "list")
    gate.close()
    server.registry.create("orders", file_limits())
    await gate.reached()
    closing = asyncio.ensure_future(server.registry.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    gate.open()
    await closing
    await server.restart()
    await server.open()


async def test_finish_deletions_before_the_first_opening_removes_what_is_left(server: Server) -> None:
    """A starting server deletes them first."""
    await server.open()
    await server.registry.mark_deleted("orders")
    await server.restart()
    server.registry.finish_deletions(())
    assert not (server.base / "orders").exists()


async def test_open_of_a_channel_that_was_moved_into_an_engine_is_refused_until_it_is_deleted(server: Server) -> None:
    """It accepts nothing, and callers learn why. Deleted, it is created like any other."""
    await server.open()
    await server.restart()
    home = server.base / "orders"
    file = ChannelFile.read(home)
    assert file is not None
    replace(file, moved_to="stream MILLRACE_orders").write(home)
    handle = server.registry.create("orders", file_limits())
    await handle.opened.wait()
    assert handle.state is ChannelState.LOG_FAILED
    with pytest.raises(ChannelLogFailedError, match="millraced migrate moved it into an engine"):
        server.registry.get("orders")
    await server.registry.mark_deleted("orders")
    await server.registry.delete("orders")
    assert not home.exists()
    assert (await server.open()).event_count == 0


async def test_stalled_disk_notifies_watchers(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the stall notifies them too."""
    monkeypatch.setattr("millrace_server.channels.journal.STALL_SECONDS", 0.03)
    monkeypatch.setattr("millrace_server.channels.journal._STALL_CHECK_SECONDS_MIN", 0.01)
    channel = await server.open()
    server.notified.clear()
    gate = Gate(server.disk)
    gate.close()
    appending = asyncio.ensure_future(append(channel, b"a"))
    await until(lambda: server.notified == [("orders", ChannelState.STALLED)])
    gate.open()
    await appending
    await until(lambda: server.notified[1:] == [("orders", ChannelState.OPEN)])


async def test_retire_keeps_how_transactions_ended(server: Server) -> None:
    """A commit repeated when the channel is opened again gets its receipt, as after a restart."""
    channel = await server.open()
    txn_id = begin_with_puts(channel, b"a")
    receipt = await channel.transactions.commit([txn_id], None)
    await server.registry.retire("orders")
    channel = await server.open()
    assert await channel.transactions.commit([txn_id], None) == receipt
