from millrace.event_context import TRACEPARENT
from millrace_server.agent.channel_reader import ChannelReader, ReaderLimits
from millrace_server.agent.components import Component, ComponentKind
from millrace_server.channels.registry import ChannelRegistry
from tests.recorded_spans import attributes_of, is_child, linked, recording, traceparent_of
from tests.source_writers import held, memory, registry_of, rows_in, table_of, writer_of

PRODUCERS = [f"00-{number:032x}-{number:016x}-01" for number in (1, 2)]


def reader_of(registry: ChannelRegistry) -> ChannelReader:
    component = Component(ComponentKind.SINK, "out", "test", lambda _component: None)
    return ChannelReader(registry, "orders", ReaderLimits(100, 5, None), component)


async def test_events_from_source_to_sink_are_in_one_trace() -> None:
    """The source's batch gives its events its context, and the sink's delivery is its child."""
    registry = registry_of(orders=memory())
    with recording(event_context=True) as recorded:
        writer = writer_of(registry, ["orders"])
        table = table_of(b"1", b"2", k=["v", None])
        await writer.deliver(table, writer.next_stamp(2))
        delivery = await reader_of(registry).take()
        assert delivery is not None
        await delivery.settle()
    batch, taken = recorded.named("append orders"), recorded.named("process orders")
    assert is_child(taken, batch)
    assert attributes_of(batch)["millrace.component"] == "app"
    assert attributes_of(taken)["millrace.component"] == "out"
    assert attributes_of(taken)["messaging.batch.message_count"] == 2
    assert attributes_of(taken)["millrace.outcome"] == "acked"
    # A source may deliver its table again.
    assert TRACEPARENT not in table.headers


async def test_source_keeps_the_context_that_events_have() -> None:
    """Such as that of an HTTP request; the others get that of the batch."""
    registry = registry_of(orders=memory())
    with recording(event_context=True) as recorded:
        writer = writer_of(registry, ["orders"])
        await writer.deliver(table_of(b"1", b"2", traceparent=[PRODUCERS[0], None]), writer.next_stamp(2))
    batch = recorded.named("append orders")
    assert batch.parent is not None
    assert batch.parent.span_id == 1
    assert [headers[TRACEPARENT] for headers, _ in rows_in(registry, "orders")] == [PRODUCERS[0], traceparent_of(batch)]


async def test_source_without_event_context_changes_no_event() -> None:
    """The events are stored as they came."""
    registry = registry_of(orders=memory())
    with recording() as recorded:
        writer = writer_of(registry, ["orders"])
        await writer.try_deliver(table_of(b"1"), writer.next_stamp(1))
    assert rows_in(registry, "orders") == [({}, b"1")]
    assert recorded.names() == ["append orders"]


async def test_delivery_of_several_producers_is_linked_to_them_and_ends_once() -> None:
    """Also if it is returned, and returned again."""
    registry = registry_of(orders=memory())
    writer = writer_of(registry, ["orders"])
    await writer.deliver(table_of(b"1", b"2", traceparent=PRODUCERS), writer.next_stamp(2))
    with recording() as recorded:
        delivery = await reader_of(registry).take()
        assert delivery is not None
        delivery.nack()
        delivery.nack()
    taken = recorded.named("process orders")
    assert linked(taken) == {each.split("-")[2] for each in PRODUCERS}
    assert attributes_of(taken)["millrace.outcome"] == "nacked"
    assert held(registry, "orders") == {"orders": [b"1", b"2"]}


async def test_deliveries_that_are_joined_end_their_spans() -> None:
    """A sink that holds many deliveries settles them as one."""
    registry = registry_of(orders=memory())
    writer = writer_of(registry, ["orders"])
    with recording() as recorded:
        reader, deliveries = reader_of(registry), []
        for body in (b"1", b"2"):
            await writer.deliver(table_of(body), writer.next_stamp(1))
            delivery = await reader.take()
            assert delivery is not None
            deliveries.append(delivery)
        first, second = deliveries
        first.join(second)
        await first.settle()
    assert recorded.names().count("process orders") == 2
