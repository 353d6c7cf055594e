import asyncio

import pytest

from millrace.columns import columns_from_events
from millrace.tracing import current_trace_id
from millrace.v1 import channel_service_pb2 as pb
from millrace_client import UnavailableError
from millrace_client.aio.consumer_tasks import ConsumerDelivery, HandlerTasks
from tests.recorded_spans import attributes_of, linked, recording
from tests.unit.client.consuming.fakes import EngineHarness, response_of

HAS_VIRTUAL_CLOCK = True

PRODUCERS = [f"00-{number:032x}-{number:016x}-01" for number in (1, 2)]


def response_from(*traceparents: str) -> pb.ConsumeResponse:
    [columns] = columns_from_events([({"traceparent": each}, b"x") for each in traceparents])
    return pb.ConsumeResponse(delivery_id=1, batches=[{"first_sequence": 1, "columns": columns}])


async def test_handler_runs_in_the_span_of_its_delivery() -> None:
    """It is linked to the producers, and ends with the ack."""
    harness = EngineHarness("one:7070")
    traced: list[str | None] = []

    async def handle(_delivery: ConsumerDelivery) -> None:
        traced.append(current_trace_id())
        harness.engine.stop()

    with recording() as recorded:
        running = asyncio.ensure_future(HandlerTasks(harness.engine, handle, ordered=False).run(1))
        await asyncio.sleep(0.01)
        harness.streams[0].deliver(response_from(*PRODUCERS))
        await running
        await harness.engine.close(1.0)
    span = recorded.named("process orders")
    assert traced == [format(span.context.trace_id, "032x")]
    assert linked(span) == {each.split("-")[2] for each in PRODUCERS}
    assert attributes_of(span) == {
        "messaging.system": "millrace",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.batch.message_count": 2,
        "server.address": "one",
        "server.port": 7070,
        "millrace.outcome": "acked",
    }


async def test_delivery_of_one_producer_is_a_child_of_its_span() -> None:
    """So that one trace shows the way of the events."""
    harness = EngineHarness()
    with recording() as recorded:
        taking = asyncio.ensure_future(harness.take())
        await asyncio.sleep(0.01)
        harness.streams[0].deliver(response_from(PRODUCERS[0]))
        async with await taking:
            assert current_trace_id() == f"{1:032x}"
        assert current_trace_id() is None
        await harness.engine.close(1.0)
    parent = recorded.named("process orders").parent
    assert parent is not None
    assert parent.span_id == 1


async def test_delivery_whose_handler_fails_has_the_error() -> None:
    """The span ends at once, although the delivery is held back for a while."""
    harness = EngineHarness()
    with recording() as recorded:
        taking = asyncio.ensure_future(harness.take())
        await asyncio.sleep(0.01)
        harness.streams[0].deliver(response_of(1))
        with pytest.raises(ValueError, match="no"):
            async with await taking:
                raise ValueError("no")
        span = recorded.named("process orders")
        await harness.engine.close(1.0)
    assert not span.status.is_ok
    assert (attributes_of(span)["error.type"], attributes_of(span)["millrace.outcome"]) == ("ValueError", "held")


async def test_delivery_that_is_lost_ends_its_span() -> None:
    """The stream broke before the ack."""
    harness = EngineHarness()
    with recording() as recorded:
        taking = asyncio.ensure_future(harness.take())
        await asyncio.sleep(0.01)
        harness.streams[0].deliver(response_of(1))
        delivery = await taking
        harness.streams[0].break_off(UnavailableError("gone"))
        await asyncio.sleep(0.01)
        assert not await delivery.ack()
        assert attributes_of(recorded.named("process orders"))["millrace.outcome"] == "lost"
        await harness.engine.close(1.0)
