import pytest

from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import (
    BadNameError,
    ChannelExistsError,
    ChannelNotEmptyError,
    ChannelNotFoundError,
    DrainingError,
    EventTooLargeError,
)
from tests.channel_events import append, begin, begin_with_takes, limits_of


@pytest.fixture
def registry() -> ChannelRegistry:
    return ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=10)


async def test_create_of_a_new_name_makes_a_channel(registry: ChannelRegistry) -> None:
    """The channel is found by its name, and listed in the order of names."""
    channels = {name: registry.create(name, limits_of()).channel for name in ("orders", "bills", "a")}
    assert registry.get("bills") is channels["bills"]
    assert [channel.name for channel in registry.channels()] == ["a", "bills", "orders"]
    assert "orders" in registry
    assert "none" not in registry


async def test_create_of_a_known_name_is_refused(registry: ChannelRegistry) -> None:
    """The existing channel stays."""
    channel = registry.create("orders", limits_of()).channel
    with pytest.raises(ChannelExistsError, match="'orders' already exists") as refused:
        registry.create("orders", limits_of())
    assert refused.value.metadata == {"channel": "orders"}
    assert registry.get("orders") is channel


@pytest.mark.parametrize("name", ["", "../x", "a\0", "x" * 300, "Orders"])
async def test_names_that_are_not_allowed_are_refused(registry: ChannelRegistry, name: str) -> None:
    """Such a channel can neither be created nor exist."""
    with pytest.raises(BadNameError):
        registry.create(name, limits_of())
    with pytest.raises(BadNameError):
        registry.get(name)
    assert registry.channels() == []


async def test_get_of_an_unknown_name_finds_none(registry: ChannelRegistry) -> None:
    """Channels are never created by accident."""
    with pytest.raises(ChannelNotFoundError, match="'orders' does not exist; create it") as refused:
        registry.get("orders")
    assert refused.value.metadata == {"channel": "orders"}
    with pytest.raises(ChannelNotFoundError):
        await registry.delete("orders")


async def test_mark_of_a_channel_in_memory_has_nothing_to_mark(registry: ChannelRegistry) -> None:
    """The channel does not outlive the process anyway."""
    registry.create("orders", limits_of())
    await registry.mark_deleted("orders")
    await registry.delete("orders")
    await registry.close()


async def test_delete_of_a_channel_ends_it(registry: ChannelRegistry) -> None:
    """A channel created again under the name is another one, which begins at 1."""
    former = registry.create("orders", limits_of()).channel
    await append(former, b"a")
    txn_id = begin(former, "mine")
    await registry.delete("orders")
    assert "orders" not in registry
    assert registry.transactions.limit.open_count == 0
    channel = registry.create("orders", limits_of()).channel
    assert channel.channel_id != former.channel_id
    assert begin(channel, txn_id) == "mine"
    assert (await append(channel, b"b")).first_sequence == 1


async def test_refuse_undeletable_with_something_in_it_asks_for_force(registry: ChannelRegistry) -> None:
    """This holds for queued events, taken events, and open transactions."""
    channel = registry.create("orders", limits_of()).channel
    registry.refuse_undeletable("orders", force=False)
    await append(channel, b"a")
    with pytest.raises(ChannelNotEmptyError, match="'orders' holds 1 events and 0 open transactions; empty it first"):
        registry.refuse_undeletable("orders", force=False)
    registry.refuse_undeletable("orders", force=True)
    txn_id = await begin_with_takes(channel, 1)
    with pytest.raises(ChannelNotEmptyError, match="holds 1 events and 1 open transactions"):
        registry.refuse_undeletable("orders", force=False)
    await channel.transactions.commit([txn_id], None)
    registry.refuse_undeletable("orders", force=False)
    begin(channel)
    with pytest.raises(ChannelNotEmptyError, match="holds 0 events and 1 open transactions"):
        registry.refuse_undeletable("orders", force=False)


async def test_watch_is_notified_of_each_change(registry: ChannelRegistry) -> None:
    """Watchers are called after the change."""
    changes = list[tuple[str, bool]]()
    registry.watch(lambda name: changes.append((name, name in registry)))
    registry.create("a", limits_of())
    registry.create("b", limits_of())
    await registry.delete("a")
    assert changes == [("a", True), ("b", True), ("a", False)]


async def test_drain_holds_for_channels_that_are_made_later(registry: ChannelRegistry) -> None:
    """A server that stops begins nothing in any channel."""
    channels: list[Channel] = [registry.create("a", limits_of()).channel]
    registry.drain()
    channels.append(registry.create("b", limits_of()).channel)
    for channel in channels:
        with pytest.raises(DrainingError):
            channel.transactions.begin(None, None)


async def test_message_limit_of_the_server_bounds_what_is_stored(registry: ChannelRegistry) -> None:
    """Every stored event can be fetched in one message."""
    channel = registry.create("orders", limits_of()).channel
    with pytest.raises(EventTooLargeError, match="would not fit into a response"):
        await append(channel, b"x" * ((1 << 20) - 1024))
    await append(channel, b"x" * ((1 << 20) - 2048))
