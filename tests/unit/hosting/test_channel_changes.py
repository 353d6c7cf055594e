from pathlib import Path

import pytest

from millrace_server.channels.config import ReplicatedChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import ChannelLogFailedError
from millrace_server.hosting.channel_changes import ChannelChanges
from millrace_server.hosting.data_dir import Catalog
from millrace_server.replication.engine_settings import EngineSettings


async def test_create_of_a_replicated_channel_that_cannot_be_opened_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls on unknown transactions look at all channels that replay, and not at this one."""

    async def fail(_settings: EngineSettings) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("millrace_server.channels.engines.Engine.of", fail)
    registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=10)
    registry.serve_at("a:1")
    catalog = Catalog(tmp_path / "catalog.json")
    engine = EngineSettings(type="jetstream", servers=["nats://127.0.0.1:1"])
    with pytest.raises(ChannelLogFailedError):
        await ChannelChanges(registry, catalog).create(
            "orders", ReplicatedChannelConfig(type="replicated", engine=engine)
        )
    assert ("orders" in registry, catalog.load()) == (False, {})
    registry.refuse_unless_known("")
    await registry.close()
