import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace.v1 import admin_service_pb2 as admin_pb
from millrace_server.agent.agent import Agent
from millrace_server.agent.components import Component, ComponentKind
from millrace_server.channels.channel_handle import ChannelHandle, ChannelState
from millrace_server.channels.config import MemoryChannelConfig
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.configuration.settings import Settings, check_settings
from millrace_server.errors import ChannelConfiguredError
from millrace_server.grpc_services.admin_service import AdminService
from millrace_server.hosting.channel_changes import ChannelChanges
from millrace_server.hosting.data_dir import Catalog
from millrace_server.hosting.lifecycle import flows_of, open_channels
from millrace_server.hosting.signals import ReloadRequests
from millrace_server.process.reloading import Reloader
from tests.channel_events import append, begin, queued
from tests.stream_logs import new_name
from tests.waiting import WAIT_SECONDS_MAX, until

CAPACITY = 100
MEMORY = {"type": "memory", "keep_alive_seconds": 0.01, "capacity": CAPACITY}
FILE = {"type": "file", "min_free_bytes": 0}


def tables_of(
    channels: Mapping[str, Mapping[str, Any]], sinks: Mapping[str, Mapping[str, Any]] | None = None, **server: Any
) -> dict[str, Any]:
    return {"server": server, "channels": channels, "sinks": sinks or {}}


class Server:
    """Channels and flows of a configuration, which `reload` changes."""

    def __init__(self, data_dir: Path, tables: dict[str, Any]) -> None:
        self.data_dir = data_dir
        self.tables = tables
        self.catalog = Catalog(data_dir / "catalog.json")
        settings = self._load()
        self.registry = open_channels(settings, self.catalog)
        self.agent = Agent(self.registry, data_dir)
        self.agent.start(flows_of(settings))
        self.reloader = Reloader(settings, self._load, self.registry, self.catalog, self.agent)
        self.log: list[Any] = []

    def _load(self) -> Settings:
        self.tables["server"].setdefault("data_dir", str(self.data_dir))
        return check_settings(self.tables, "millrace.toml")

    async def reload(self, tables: dict[str, Any]) -> dict[str, Any]:
        """Reloads; returns the last log entry."""
        self.tables = tables
        with capture_logs() as self.log:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                await self.reloader.reload()
        return dict(self.log[-1])

    def why_not(self, setting: str) -> str:
        """The logged reason why a setting is not in force; empty if there is none."""
        return "".join(entry["why"] for entry in self.log if entry.get("setting") == setting)

    def component(self, name: str) -> Component:
        found = self.agent.components.find(ComponentKind.SINK, name)
        assert found is not None
        return found


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    null = {"type": "null", "channel": "orders"}
    server = Server(tmp_path, tables_of({"orders": MEMORY, "bills": MEMORY}, {"out": null}))
    await server.registry.wait_open()
    yield server
    await server.agent.stop_sinks(0.0)
    await server.registry.close()


NULL = {"type": "null", "channel": "orders"}


async def test_reload_of_an_unchanged_file_touches_nothing(server: Server) -> None:
    """Channels and components are the same objects, and channels keep their events."""
    orders, out = server.registry.get("orders"), server.component("out")
    await append(server.registry.get("bills"), b"a")
    last = await server.reload(tables_of({"orders": dict(MEMORY), "bills": dict(MEMORY)}, {"out": dict(NULL)}))
    assert last == {"event": "reloaded", "log_level": "info"}
    assert server.registry.get("orders") is orders
    assert server.component("out") is out
    assert queued(server.registry.get("bills")) == [b"a"]


async def test_reload_of_an_unchanged_file_restores_what_an_update_changed(server: Server) -> None:
    """Until then `is_overridden` is true, unless a further update restored the file's limits."""
    orders = server.registry.find("orders")
    admin = AdminService(server.registry, ChannelChanges(server.registry, server.catalog))

    async def update(capacity: int) -> admin_pb.Channel:
        request = admin_pb.UpdateChannelRequest(name="orders", config={"capacity": capacity})
        return (await admin._update_channel(request)).channel

    assert (orders.configured, orders.is_overridden) == (orders.config, False)
    for capacity in (CAPACITY + 1, CAPACITY):
        updated = await update(capacity)
        assert (updated.is_configured, updated.is_overridden) == (True, capacity != CAPACITY)
    await update(CAPACITY + 1)
    last = await server.reload(server.tables)
    assert last["channels_changed"] == ["orders"]
    assert (orders.config.capacity, orders.is_overridden) == (CAPACITY, False)


async def test_delete_of_a_channel_in_the_file_is_refused_until_it_has_gone_from_there(server: Server) -> None:
    """A channel that a reload could not remove from the server can be deleted."""
    changes = ChannelChanges(server.registry, server.catalog)
    await append(server.registry.get("bills"), b"a")
    for is_forced in (False, True):
        with pytest.raises(ChannelConfiguredError, match="is defined in the server's configuration file"):
            await changes.delete("bills", force=is_forced)
    await server.reload(tables_of({"orders": MEMORY}, {"out": NULL}))
    assert "holds 1 events" in server.why_not("channels.bills")
    await changes.delete("bills", force=True)
    assert "bills" not in server.registry


async def test_reload_of_a_bad_file_changes_nothing_and_lists_all_problems(server: Server) -> None:
    """Valid changes in the file do not take effect either."""
    orders, out = server.registry.get("orders"), server.component("out")
    bad = tables_of({"orders": {**MEMORY, "capacity": 0}, "new": MEMORY}, {"out": {**NULL, "batch_events_max": -1}})
    last = await server.reload(bad)
    assert last["event"] == "the configuration was not reloaded, and nothing was changed"
    assert last["log_level"] == "error"
    assert [problem.partition(":")[0] for problem in last["problems"]] == [
        "channels.orders.capacity",
        "sinks.out.batch_events_max",
    ]
    assert server.registry.get("orders") is orders
    assert "new" not in server.registry
    assert server.component("out") is out


async def test_reload_of_a_changed_sink_replaces_it_and_leaves_the_others(server: Server) -> None:
    """Only changed components are restarted."""
    two: dict[str, dict[str, Any]] = {"out": NULL, "other": {"type": "null", "channel": "bills"}}
    assert (await server.reload(tables_of({"orders": MEMORY, "bills": MEMORY}, two)))["started"] == ["sinks/other"]
    out, other = server.component("out"), server.component("other")
    changed = {"out": {**NULL, "batch_events_max": 7}, "other": two["other"]}
    last = await server.reload(tables_of({"orders": MEMORY, "bills": MEMORY}, changed))
    assert last["changed"] == ["sinks/out"]
    assert server.component("out") is not out
    assert server.component("other") is other
    last = await server.reload(tables_of({"orders": MEMORY, "bills": MEMORY}, {"other": two["other"]}))
    assert last["stopped"] == ["sinks/out"]
    assert server.agent.components.find(ComponentKind.SINK, "out") is None


async def test_reload_of_changed_limits_changes_the_channel_in_use(server: Server) -> None:
    """The channel and its events stay, with other limits."""
    bills = server.registry.get("bills")
    await append(bills, b"a", b"b")
    last = await server.reload(tables_of({"orders": MEMORY, "bills": {**MEMORY, "capacity": 5_000}}, {"out": NULL}))
    assert last["channels_changed"] == ["bills"]
    assert server.registry.get("bills") is bills
    assert (bills.config.capacity, bills._contents.capacity.events_max) == (5_000, 5_000)
    assert queued(bills) == [b"a", b"b"]


async def test_reload_of_limits_that_do_not_fit_says_so_and_tries_again_next_time(server: Server) -> None:
    """No event is lost for a smaller channel, and nothing else is delayed."""
    bills = server.registry.get("bills")
    await append(bills, b"a", b"b", b"c")
    small = {**MEMORY, "capacity": 2, "transaction_capacity": 2}
    changed = tables_of({"orders": MEMORY, "bills": small, "new": MEMORY}, {"out": NULL})
    last = await server.reload(changed)
    assert last["not_in_force"] == ["channels.bills"]
    assert "holds 3 events" in server.why_not("channels.bills")
    assert last["channels_made"] == ["new"]
    assert bills.config.capacity == 100
    await bills.purge()
    assert (await server.reload(changed))["channels_changed"] == ["bills"]
    assert bills.config.capacity == 2


async def test_reload_of_what_an_open_channel_cannot_change_says_that_it_needs_a_restart(server: Server) -> None:
    """Its other limits and all other changes take effect."""
    kept = {**FILE, "capacity": 10, "transaction_capacity": 10}
    await server.reload(tables_of({"orders": MEMORY, "bills": MEMORY, "kept": kept}, {"out": NULL}))
    await server.registry.wait_open()
    moved = {**kept, "capacity": 20, "data_dirs": [str(server.data_dir / "elsewhere")], "backup_checkpoint": False}
    changed = tables_of({"orders": {**FILE}, "bills": MEMORY, "kept": moved, "new": MEMORY}, {"out": NULL})
    last = await server.reload(changed)
    assert last["not_in_force"] == [
        "channels.kept.backup_checkpoint",
        "channels.kept.data_dirs",
        "channels.orders.type",
    ]
    assert server.why_not("channels.kept.data_dirs") == "cannot change while the server runs; restart it"
    assert last["channels_made"] == ["new"]
    assert server.registry.get("kept").config.capacity == 20
    assert server.registry.get("orders").config.type == "memory"
    assert not (server.data_dir / "elsewhere").exists()
    # Each reload reports it while it lasts.
    assert (await server.reload(changed))["not_in_force"] == last["not_in_force"]


async def test_reload_while_standing_by_changes_all_but_what_needs_a_restart(server: Server) -> None:
    """So the channel does not get its former limits back when this server takes it over."""

    def tables(port: int, capacity: int) -> dict[str, Any]:
        engine = {"type": "jetstream", "servers": [f"nats://127.0.0.1:{port}"]}
        shared = {"type": "replicated", "engine": engine, "capacity": capacity}
        return tables_of({"orders": MEMORY, "bills": MEMORY, "shared": shared})

    await server.reload(tables(1, 10))
    shared = server.registry.find("shared")
    await until(lambda: shared.state is ChannelState.STANDING_BY)
    outcome = await server.reload(tables(2, 20))
    assert shared.config.capacity == 20
    assert shared.config.replicated is not None
    assert shared.config.replicated.engine.servers == ["nats://127.0.0.1:1"]
    assert (outcome["channels_changed"], outcome["not_in_force"]) == (["shared"], ["channels.shared.engine"])
    assert "restart" in server.why_not("channels.shared.engine")


async def test_reload_without_a_channel_that_others_share_hands_it_over(server: Server, nats_url: str) -> None:
    """With its events and open transactions; without others it would stay, since they would be out of reach."""
    engine = {"type": "jetstream", "servers": [nats_url], "replicas": 1, "stream_bytes_max": 1 << 22}
    name, table = new_name(), {"type": "replicated", "engine": engine}
    both = {"orders": MEMORY, "bills": MEMORY}
    server.registry.serve_at("a:1")
    await server.reload(tables_of(both | {name: table}))
    await until(lambda: server.registry.find(name).state is ChannelState.OPEN)
    await append(server.registry.get(name), b"1")
    await server.reload(tables_of(both))
    assert "it holds 1 events" in server.why_not(f"channels.{name}")
    other = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=100)
    other.serve_at("b:1")
    successor = other.create(name, server.registry.find(name).config)
    await until(lambda: server.registry.has_successor(name))
    begin(server.registry.get(name))
    assert (await server.reload(tables_of(both)))["channels_removed"] == [name]
    await until(lambda: successor.state is ChannelState.OPEN)
    assert successor.channel.event_count == 1
    await other.close()


async def test_reload_of_server_settings_says_which_need_a_restart(server: Server) -> None:
    """The new grace time applies from the next stop on; a port cannot be changed."""
    changed = tables_of(
        {"orders": MEMORY, "bills": MEMORY}, {"out": NULL}, listen="127.0.0.1:1", shutdown_grace_seconds=1.5
    )
    last = await server.reload(changed)
    assert last["not_in_force"] == ["server.listen"]
    assert server.reloader.shutdown_grace_seconds == 1.5


async def test_reload_without_a_channel_that_holds_events_keeps_it(server: Server) -> None:
    """A channel removed from the file loses no event: it stays until it is empty."""
    bills = server.registry.get("bills")
    await append(bills, b"a")
    without = tables_of({"orders": MEMORY}, {"out": NULL})
    assert (await server.reload(without))["not_in_force"] == ["channels.bills"]
    assert "it holds 1 events; take them out, then reload again" in server.why_not("channels.bills")
    assert server.registry.get("bills") is bills
    await bills.purge()
    txn_id = begin(bills)
    assert (await server.reload(without))["not_in_force"] == ["channels.bills"]
    assert "open in it" in server.why_not("channels.bills")
    bills.transactions.rollback(txn_id)
    assert (await server.reload(without))["channels_removed"] == ["bills"]
    assert "bills" not in server.registry


async def test_reload_without_an_empty_file_channel_keeps_its_files(server: Server) -> None:
    """When the channel is configured again, it continues: sequences and stamps are not reused."""
    with_file = tables_of({"orders": MEMORY, "bills": MEMORY, "kept": FILE}, {"out": NULL})
    without = tables_of({"orders": MEMORY, "bills": MEMORY}, {"out": NULL})
    await server.reload(with_file)
    await server.registry.wait_open()
    channel_id = server.registry.get("kept").channel_id
    await append(server.registry.get("kept"), b"a", b"b")
    await server.registry.get("kept").purge()
    assert (await server.reload(without))["channels_removed"] == ["kept"]
    assert (await server.reload(with_file))["channels_made"] == ["kept"]
    await server.registry.wait_open()
    again = server.registry.get("kept")
    assert (again.channel_id, again._contents.next_sequence) == (channel_id, 3)


async def test_reload_leaves_channels_alone_that_were_made_by_hand(server: Server) -> None:
    """Channels created by CreateChannel do not depend on the file."""
    server.catalog.put("made", MemoryChannelConfig(type="memory"))
    made = server.registry.create("made", MemoryChannelConfig(type="memory")).channel
    await server.reload(tables_of({"orders": MEMORY, "bills": MEMORY}, {"out": NULL}))
    assert server.registry.get("made") is made


async def test_reload_tries_a_channel_again_that_could_not_be_opened(server: Server) -> None:
    """After the cause is repaired a reload opens the channel, without a restart of the server."""
    key = server.data_dir / "key"
    sealed = {**FILE, "encryption": {"active_key": "k", "keys": {"k": str(key)}}}
    tables = tables_of({"orders": MEMORY, "bills": MEMORY, "sealed": sealed}, {"out": NULL})
    await server.reload(tables)
    await server.registry.wait_open()
    assert server.registry.find("sealed").channel_if_open is None
    key.write_text("ab" * 32)
    key.chmod(0o600)
    assert (await server.reload(tables))["channels_made"] == ["sealed"]
    await server.registry.wait_open()
    assert server.registry.get("sealed").config.type == "file"


async def test_reload_without_a_file_says_that_there_is_none(server: Server) -> None:
    """A server with defaults continues with them."""
    reloader = Reloader(server._load(), None, server.registry, server.catalog, server.agent)
    with capture_logs() as log:
        await reloader.reload()
    assert [entry["log_level"] for entry in log] == ["warning"]


async def test_follow_of_requests_during_a_reload_reloads_once_more(server: Server) -> None:
    """The newest file is read, and a bug in one reload does not affect the next."""
    requests = ReloadRequests()
    loads: list[int] = []

    def load() -> Settings:
        loads.append(len(loads))
        if len(loads) == 1:
            for _ in range(3):
                requests.add()
            raise ZeroDivisionError
        return server._load()

    reloader = Reloader(server._load(), load, server.registry, server.catalog, server.agent)
    with capture_logs() as log:
        following = asyncio.create_task(reloader.follow(requests))
        requests.add()
        await until(lambda: any(entry["event"] == "reloaded" for entry in log))
        following.cancel()
        await asyncio.wait({following})
    assert loads == [0, 1]
    assert log[0]["event"].startswith("the reload failed halfway")


@pytest.mark.parametrize("failing", ["flows", "channel"])
async def test_reload_of_which_one_part_fails_ends_when_the_others_have(
    server: Server, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Parts still running could revert what the next reload has done."""
    ended: list[str] = []

    async def update(handle: ChannelHandle, *_arguments: object) -> str:
        if failing == "channel" and handle.name == "orders":
            raise RuntimeError("a bug")
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append(handle.name)
        return ""

    async def change(*_arguments: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("millrace_server.process.reloading._update", update)
    if failing == "flows":
        monkeypatch.setattr(server.agent, "change", change)
    larger = MEMORY | {"capacity": 500}
    with pytest.raises(RuntimeError, match="a bug"):
        await server.reload(tables_of({"orders": larger, "bills": larger}, {"out": NULL}))
    assert ended == (["orders", "bills"] if failing == "flows" else ["bills"])
