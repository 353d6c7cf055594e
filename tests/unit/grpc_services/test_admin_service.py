import asyncio
import errno
import threading
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from millrace.columns import columns_from_events
from millrace.v1 import admin_service_pb2 as pb
from millrace_server.access.permissions import Permission
from millrace_server.agent.components import ComponentKind, Components
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.config import AnyChannelConfig, MemoryChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import BadArgumentError, ComponentNotFoundError, DiskFullError, ForbiddenError
from millrace_server.grpc_services.admin_service import PRODUCERS_LISTED_MAX, AdminService
from millrace_server.grpc_services.call import Call
from millrace_server.hosting.channel_changes import ChannelChanges
from millrace_server.hosting.data_dir import Catalog


class SlowCatalog(Catalog):
    """A catalog whose write ends when the test lets it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def _store(self, channels: dict[str, AnyChannelConfig]) -> None:
        self.has_begun.set()
        self.may_end.wait()
        super()._store(channels)


def opened(tmp_path: Path) -> tuple[SlowCatalog, ChannelRegistry, AdminService]:
    catalog = SlowCatalog(tmp_path / "catalog.json")
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=10)
    return catalog, registry, AdminService(registry, ChannelChanges(registry, catalog))


async def left_in_the_middle(call: Coroutine[Any, Any, Any], catalog: SlowCatalog, changed: asyncio.Event) -> None:
    """Cancels a call while the catalog is being written, and returns once channels have changed nevertheless."""
    calling = asyncio.ensure_future(call)
    await asyncio.to_thread(catalog.has_begun.wait)
    calling.cancel()
    await asyncio.wait((calling,))
    assert calling.cancelled()
    catalog.may_end.set()
    await changed.wait()


async def test_create_whose_caller_leaves_is_done_whole(tmp_path: Path) -> None:
    """The catalog after a restart matches the server before it."""
    catalog, registry, service = opened(tmp_path)
    changed = asyncio.Event()
    registry.watch(lambda _name: changed.set())
    request = pb.CreateChannelRequest(name="orders", config={"type": pb.CHANNEL_TYPE_MEMORY})
    await left_in_the_middle(service._create_channel(request), catalog, changed)
    assert "orders" in registry
    assert "orders" in Catalog(tmp_path / "catalog.json").load()


async def test_delete_whose_caller_leaves_is_done_whole(tmp_path: Path) -> None:
    """No channel continues that a restart would not restore."""
    config = MemoryChannelConfig(type="memory")
    Catalog(tmp_path / "catalog.json").put("orders", config)
    catalog, registry, service = opened(tmp_path)
    registry.create("orders", config)
    changed = asyncio.Event()
    registry.watch(lambda _name: changed.set())
    await left_in_the_middle(service._delete_channel(pb.DeleteChannelRequest(name="orders")), catalog, changed)
    assert "orders" not in registry
    assert Catalog(tmp_path / "catalog.json").load() == {}


class FullCatalog(Catalog):
    """A catalog on a disk without space."""

    def replace(self, name: str, config: AnyChannelConfig) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def remove(self, name: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")


async def test_update_that_cannot_survive_is_not_in_force(tmp_path: Path) -> None:
    """DISK_FULL means that nothing was changed."""
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=10)
    channel = registry.create("orders", MemoryChannelConfig(type="memory", capacity=100)).channel
    service = AdminService(registry, ChannelChanges(registry, FullCatalog(tmp_path / "catalog.json")))
    with pytest.raises(DiskFullError):
        await service._update_channel(pb.UpdateChannelRequest(name="orders", config={"capacity": 200}))
    assert (channel.config.capacity, channel._contents.capacity.events_max) == (100, 100)


async def test_updates_at_once_both_come_into_force(tmp_path: Path) -> None:
    """An update that waits for space does not revert another one made meanwhile."""
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=10)
    config = MemoryChannelConfig(type="memory", capacity=100, keep_alive_seconds=3_600)
    channel = registry.create("orders", config).channel
    service = AdminService(registry, ChannelChanges(registry, Catalog(tmp_path / "catalog.json")))
    await channel.appends.append(stored_columns(60), None)
    shrinking = asyncio.ensure_future(
        service._update_channel(
            pb.UpdateChannelRequest(name="orders", config={"capacity": 50, "transaction_capacity": 50})
        )
    )
    await asyncio.sleep(0)
    assert len(channel._contents.capacity.waiters) == 1
    other = asyncio.ensure_future(
        service._update_channel(pb.UpdateChannelRequest(name="orders", config={"open_transactions_max": 7}))
    )
    await asyncio.sleep(0)
    await channel.purge()
    assert (await shrinking).applied
    assert (await other).applied
    assert (channel.config.capacity, channel.config.open_transactions_max) == (50, 7)


def stored_columns(count: int) -> list[StoredColumns]:
    return [StoredColumns.of(columns) for columns in columns_from_events([({}, b"x")] * count)]


async def test_delete_that_the_catalog_has_no_space_for_leaves_no_channel_that_would_lose_events(
    tmp_path: Path,
) -> None:
    """Its files mark it as deleted, so events accepted later would be lost at the next start."""
    path = tmp_path / "catalog.json"
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=10, channels_dir=tmp_path / "channels")
    service = AdminService(registry, ChannelChanges(registry, Catalog(path)))
    for name, kind in (("logged", pb.CHANNEL_TYPE_FILE), ("remembered", pb.CHANNEL_TYPE_MEMORY)):
        await service._create_channel(pb.CreateChannelRequest(name=name, config={"type": kind}))
    service = AdminService(registry, ChannelChanges(registry, FullCatalog(path)))
    for name in ("logged", "remembered"):
        with pytest.raises(DiskFullError, match="no space for the server's catalog"):
            await service._delete_channel(pb.DeleteChannelRequest(name=name))
    assert "logged" not in registry
    assert "remembered" in registry
    await registry.close()


class LimitedCall(Call):
    """A call of an identity with some permissions on every channel."""

    def __init__(self, *permissions: Permission) -> None:
        super().__init__()
        self._permissions = permissions

    def may(self, permission: Permission, _channel: str) -> bool:
        return permission in self._permissions

    def require(self, permissions: Sequence[Permission], _channel: str) -> None:
        if not set(permissions) & set(self._permissions):
            raise ForbiddenError("no")


async def test_retry_of_a_component_that_waits_ends_its_wait(tmp_path: Path) -> None:
    """The name of two kinds needs the kind; `operate` suffices; who may neither see nor operate it does not find it."""
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=10)
    components = Components()
    service = AdminService(registry, ChannelChanges(registry, Catalog(tmp_path / "catalog.json")), components)
    sink = components.add(ComponentKind.SINK, "out", "test", ["orders"])
    components.add(ComponentKind.SOURCE, "out", "test", ["orders"])
    waiting = asyncio.ensure_future(sink.wait_for_retry(1e6))
    await asyncio.sleep(0)
    with pytest.raises(BadArgumentError, match="'out' is the name of a sink and a source"):
        await service._retry_component(pb.RetryComponentRequest(name="out"))
    request = pb.RetryComponentRequest(name="out", kind=pb.COMPONENT_KIND_SINK)
    for call, error in ((LimitedCall(), ComponentNotFoundError), (LimitedCall(Permission.DESCRIBE), ForbiddenError)):
        with call, pytest.raises(error):
            await service._retry_component(request)
    with LimitedCall(Permission.OPERATE):
        response = await service._retry_component(request)
    assert list(response.component.channels) == ["orders"]
    await waiting


async def test_list_of_very_many_producers_has_the_least_recently_active(tmp_path: Path) -> None:
    """A response with all that a channel may remember would be too long for gRPC's clients."""
    _, registry, service = opened(tmp_path)
    channel = registry.create("orders", MemoryChannelConfig(type="memory")).channel
    for number in range(PRODUCERS_LISTED_MAX + 1):
        await channel.appends.append(stored_columns(1), Stamp(f"p{number}", 1, 1))
        await channel.purge()
    with LimitedCall(Permission.DESCRIBE):
        response = await service._list_producers(pb.ListProducersRequest(channel="orders"))
    assert [one.producer_id for one in response.producers] == [f"p{number}" for number in range(PRODUCERS_LISTED_MAX)]
