from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from millrace.columns import columns_from_events
from millrace_client.consuming.metrics import METRICS
from millrace_client.events import Batch
from millrace_client.opentelemetry import observe_consumer, process_span
from tests.recorded_spans import attributes_of, linked, recording
from tests.unit.client.consuming.fakes import EngineHarness, response_of
from tests.unit.client.opentelemetry_figures import observed

PRODUCERS = [f"00-{number:032x}-{number:016x}-01" for number in range(1, 101)]


async def test_observe_gives_opentelemetry_all_figures_of_a_consumer() -> None:
    """Each figure is read when the meter asks, with its name, kind, unit and the given attributes."""
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("tests")
    harness = EngineHarness()
    observe_consumer(harness.engine, meter, {"consumer": "orders"})
    assert await harness.engine.take(0.1) is None
    harness.streams[0].deliver(response_of(1, b"a", b"b"))
    assert await (await harness.take()).ack()
    reported = observed(reader)
    assert len(reported) == len(METRICS)
    assert reported["millrace.consumer.acked_events"] == ("{events}", True, 2, {"consumer": "orders"})
    assert reported["millrace.consumer.queued_bytes"] == ("By", False, 0, {"consumer": "orders"})
    await harness.engine.close(1.0)


def test_process_span_is_linked_to_a_bounded_number_of_producers() -> None:
    """A batch may have as many producers as events."""
    [columns] = columns_from_events([({"traceparent": each}, b"") for each in ["not a context", *PRODUCERS]])
    with recording() as recorded:
        with process_span("orders", [Batch(1, columns)]) as span:
            assert span is not None
        with process_span("orders", []):
            pass
    first, second = recorded.all()
    assert linked(first) == {each.split("-")[2] for each in PRODUCERS[:32]}
    assert attributes_of(first)["messaging.batch.message_count"] == 101
    assert not second.links


def test_process_span_while_tracing_is_off_is_none() -> None:
    """The block runs all the same."""
    with process_span("orders", []) as span:
        assert span is None
