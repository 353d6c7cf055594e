import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from millrace.v1 import admin_service_pb2 as pb
from millrace_server.catalog import Catalog
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.grpc_services.admin_service import AdminService


class SlowCatalog(Catalog):
    """Begins to write, and ends when it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.has_begun = threading.Event()
        self.may_end = threading.Event()

    def _store(self, channels: dict[str, ChannelConfig]) -> None:
        self.has_begun.set()
        self.may_end.wait()
        super()._store(channels)


def opened(tmp_path: Path) -> tuple[SlowCatalog, ChannelRegistry, AdminService]:
    catalog = SlowCatalog(tmp_path / "catalog.json")
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=10)
    return catalog, registry, AdminService(registry, catalog)


async def left_in_the_middle(call: Coroutine[Any, Any, Any], catalog: SlowCatalog, changed: asyncio.Event) -> None:
    """Cancels a call while the catalog is being written, and returns once channels have changed all the same."""
    calling = asyncio.ensure_future(call)
    await asyncio.to_thread(catalog.has_begun.wait)
    calling.cancel()
    await asyncio.wait((calling,))
    assert calling.cancelled()
    catalog.may_end.set()
    await changed.wait()


async def test_create_whose_caller_leaves_is_done_whole(tmp_path: Path) -> None:
    """What the catalog says after a restart is what the server says before it."""
    catalog, registry, service = opened(tmp_path)
    changed = asyncio.Event()
    registry.watch(lambda _name: changed.set())
    request = pb.CreateChannelRequest(name="orders", config={"type": pb.CHANNEL_TYPE_MEMORY})
    await left_in_the_middle(service._create_channel(request), catalog, changed)
    assert "orders" in registry
    assert "orders" in Catalog(tmp_path / "catalog.json").load()


async def test_delete_whose_caller_leaves_is_done_whole(tmp_path: Path) -> None:
    """No channel goes on that a restart would not bring back."""
    config = ChannelConfig(type="memory")
    Catalog(tmp_path / "catalog.json").put("orders", config)
    catalog, registry, service = opened(tmp_path)
    registry.create("orders", config)
    changed = asyncio.Event()
    registry.watch(lambda _name: changed.set())
    await left_in_the_middle(service._delete_channel(pb.DeleteChannelRequest(name="orders")), catalog, changed)
    assert "orders" not in registry
    assert Catalog(tmp_path / "catalog.json").load() == {}
