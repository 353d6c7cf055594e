from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from millrace_client.consuming.metrics import METRICS
from millrace_client.consuming.opentelemetry import observe
from tests.opentelemetry_figures import observed
from tests.unit.client.consuming.fakes import EngineHarness, answer_of


async def test_observe_gives_opentelemetry_all_figures() -> None:
    """Each figure is read when the meter asks, with its name, kind, unit and the given attributes."""
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("tests")
    harness = EngineHarness()
    observe(harness.engine, meter, {"consumer": "orders"})
    assert await harness.engine.take(0.1) is None
    harness.streams[0].deliver(answer_of(1, b"a", b"b"))
    assert await (await harness.take()).ack()
    reported = observed(reader)
    assert len(reported) == len(METRICS)
    assert reported["millrace.consumer.acked_events"] == ("{events}", True, 2, {"consumer": "orders"})
    assert reported["millrace.consumer.queued_bytes"] == ("By", False, 0, {"consumer": "orders"})
    await harness.engine.close(1.0)
