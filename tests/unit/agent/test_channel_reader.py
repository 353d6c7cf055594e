"""Events that a sink rejects."""

import pytest
from structlog.testing import capture_logs

from millrace_server.agent.channel_reader import ChannelReader, EventsRejectedError, ReaderLimits
from millrace_server.agent.components import Component, ComponentKind
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import ChannelFullError
from tests.channel_events import append
from tests.source_writers import held, memory, outcomes_of, registry_of, rows_in

HAS_VIRTUAL_CLOCK = True

NO = EventsRejectedError("no thanks")


class Scene:
    """A channel, and a server that receives its events."""

    def __init__(self, registry: ChannelRegistry) -> None:
        self.registry = registry
        self.component = Component(ComponentKind.SINK, "out", "test", lambda _component: None)
        self.reader = ChannelReader(registry, "orders", ReaderLimits(1, 1, "dead"), self.component)

    async def reject_next(self) -> None:
        delivery = await self.reader.take()
        assert delivery is not None
        try:
            await self.reader.reject(delivery, NO)
        finally:
            self.reader.nack_all()


async def test_reject_when_the_dead_letter_channel_can_never_take_the_event_drops_it_and_reports_it() -> None:
    """Delivered without end, it would block all later events; so it is counted and logged as lost."""
    scene = Scene(registry_of(orders=memory(), dead=memory(body_bytes_max=10)))
    await append(scene.registry.get("orders"), bytes(11), b"next")
    with capture_logs() as entries:
        await scene.reject_next()
        await scene.reject_next()
    assert held(scene.registry, "orders", "dead") == {"orders": [], "dead": [b"next"]}
    assert outcomes_of(scene.component) == {"dropped": 1, "dead_lettered": 1}
    [dropped] = [entry for entry in entries if entry["event"] == "events were dropped"]
    assert (dropped["log_level"], dropped["channel"], dropped["sequence"]) == ("error", "orders", "1")
    assert dropped["largest_body_bytes"] == "11"
    assert dropped["dead_letter_channel"].startswith("dead: events: a body has 11 bytes")


async def test_reject_when_the_dead_letter_channel_is_full_keeps_the_event_where_it_is() -> None:
    """That is temporary: the sink backs off, and names the full channel. All deliveries count."""
    scene = Scene(registry_of(orders=memory(), dead=memory(capacity=1, transaction_capacity=1)))
    await append(scene.registry.get("dead"), b"older")
    await append(scene.registry.get("orders"), b"1")
    with pytest.raises(ChannelFullError) as caught:
        await scene.reject_next()
    assert caught.value.metadata["channel"] == "dead"
    assert held(scene.registry, "orders") == {"orders": [b"1"]}
    assert outcomes_of(scene.component) == {}
    assert await scene.registry.get("dead").purge() == 1
    await scene.reject_next()
    [(headers, _)] = rows_in(scene.registry, "dead")
    assert headers["millrace.dead_letter.deliveries"] == "2"


async def test_reject_permanently_is_progress_but_no_delivery() -> None:
    """The count of delivered events must not include rejected ones."""
    scene = Scene(registry_of(orders=memory(), dead=memory()))
    await append(scene.registry.get("orders"), b"1")
    await scene.reject_next()
    assert (scene.component.event_count, scene.component.byte_count) == (0, 0)
    assert scene.component.progress_age_seconds is not None
    assert outcomes_of(scene.component) == {"dead_lettered": 1}


async def test_sink_is_a_consumer_while_it_runs_whose_delivery_can_be_ended() -> None:
    """What the operator ends goes back at once, and counts neither as held by the sink nor as open."""
    scene = Scene(registry_of(orders=memory(), dead=memory()))
    channel = scene.registry.get("orders")
    await append(channel, b"1")
    delivery = await scene.reader.take()
    assert delivery is not None
    [consumer], [listed] = channel.list_consumers(), channel.list_transactions()
    assert (consumer.peer, consumer.open_events, listed.peer) == ("sinks/out", 1, "sinks/out")
    channel.end_transaction(listed.txn_id)
    assert (scene.reader.unsettled_count, channel.open_transactions) == (0, 0)
    await delivery.settle()
    assert held(scene.registry, "orders") == {"orders": [b"1"]}
    scene.reader.nack_all()
    assert channel.list_consumers() == []
