"""Events that a sink rejects."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from millrace.columns import HEADER_KEYS_MAX
from millrace.dead_letters import own_headers
from millrace_server.agent.channel_reader import ChannelReader, EventsRejectedError, ReaderLimits
from millrace_server.agent.components import Component, ComponentKind
from millrace_server.agent.events import EventTable
from millrace_server.agent.runners import SinkRunner
from millrace_server.agent.sinks.sink import BatchSink
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import ChannelFullError
from tests.channel_events import append
from tests.source_writers import held, memory, outcomes_of, registry_of, rows_in
from tests.virtual_clock import at_once
from tests.waiting import until

HAS_VIRTUAL_CLOCK = True

NO = EventsRejectedError("no thanks")


@pytest.fixture(autouse=True)
def on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sinks are created on the loop's thread, since the virtual clock advances while another thread works."""
    monkeypatch.setattr(asyncio, "to_thread", at_once)


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


async def test_reject_when_the_dead_letter_channel_can_never_take_the_event_keeps_it_and_says_why() -> None:
    """It was committed, so it is not dropped: an operator can give the dead-letter channel more space."""
    scene = Scene(registry_of(orders=memory(), dead=memory(body_bytes_max=10)))
    await append(scene.registry.get("orders"), bytes(11), b"next")
    with pytest.raises(ComponentError, match="no thanks; and channel dead cannot hold it: events: a body has 11"):
        await scene.reject_next()
    assert held(scene.registry, "orders", "dead") == {"orders": [bytes(11), b"next"], "dead": []}
    assert outcomes_of(scene.component) == {}
    scene.registry.get("dead").enforce(memory(body_bytes_max=15))
    for _ in range(2):
        await scene.reject_next()
    assert held(scene.registry, "orders", "dead") == {"orders": [], "dead": [bytes(11), b"next"]}
    assert outcomes_of(scene.component) == {"dead_lettered": 2}


async def test_reject_of_an_event_with_as_many_headers_as_possible_keeps_them_all() -> None:
    """Those for which the headers about the rejection leave no space are put together in one of them."""
    scene = Scene(registry_of(orders=memory(), dead=memory()))
    own = {f"h{number}": "\u00fc" * (number % 3) for number in range(HEADER_KEYS_MAX)}
    await scene.registry.get("orders").appends.append(EventTable.of_rows([(own, b"1")]).stored(), None)
    await scene.reject_next()
    [(headers, body)] = rows_in(scene.registry, "dead")
    assert (len(headers), body) == (HEADER_KEYS_MAX, b"1")
    assert headers["millrace.dead_letter.reason"] == "no thanks"
    assert own_headers(headers) == own


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


class PickySink(BatchSink):
    """Rejects some events as often as it is told to, and notes when it wrote the others."""

    def __init__(self, rejections: dict[bytes, float]) -> None:
        self.rejections = rejections
        self.written: dict[bytes, float] = {}

    async def write(self, batches: Sequence[StoredBatch]) -> None:
        bodies = [body for batch in batches for _, body in batch.window.rows()]
        for body in bodies:
            if self.rejections.get(body, 0) > 0:
                self.rejections[body] -= 1 if len(bodies) == 1 else 0
                raise NO
        self.written |= dict.fromkeys(bodies, asyncio.get_running_loop().time())


@asynccontextmanager
async def running(
    sink: PickySink, *bodies: bytes, deliveries_max: int = 5
) -> AsyncIterator[tuple[ChannelRegistry, ChannelReader]]:
    """Runs a sink that takes these events, until the end of the block."""
    registry = registry_of(orders=memory(), dead=memory())
    component = Component(ComponentKind.SINK, "out", "test", lambda _component: None)
    reader = ChannelReader(registry, "orders", ReaderLimits(100, deliveries_max, "dead"), component)
    await append(registry.get("orders"), *bodies)
    runner = SinkRunner(component, (), reader, lambda: sink)
    try:
        yield registry, reader
    finally:
        await runner.stop(10.0)


async def test_rejected_event_holds_up_the_others_for_a_bounded_time() -> None:
    """As documented: four pauses of at most 0.5, 1, 2 and 4 seconds, and from 0.5 again for the next such event."""
    sink = PickySink({b"bad": math.inf, b"worse": math.inf})
    began = asyncio.get_running_loop().time()
    async with running(sink, b"1", b"bad", b"2", b"worse", b"3") as (registry, _):
        await until(lambda: b"3" in sink.written)
        assert held(registry, "dead") == {"dead": [b"bad", b"worse"]}
    assert sink.written[b"2"] - began < 7.5 + 1
    assert 3.75 <= sink.written[b"3"] - sink.written[b"2"] < 7.5 + 1


async def test_rejections_of_an_event_that_was_accepted_later_are_forgotten() -> None:
    """A receiver that refuses now and then must not use more and more memory."""
    sink = PickySink({b"%d" % number: 1 for number in range(10)})
    async with running(sink, *sink.rejections) as (registry, reader):
        await until(lambda: len(sink.written) == 10)
        assert len(reader._rejection_counts) == 1
        assert held(registry, "dead") == {"dead": []}
