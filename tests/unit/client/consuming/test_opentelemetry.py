from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from millrace_client.consuming.metrics import METRICS
from millrace_client.consuming.opentelemetry import observe
from tests.opentelemetry_figures import observed
from tests.unit.client.consuming.parts import World, answer_of


async def test_observe_tells_opentelemetry_all_figures() -> None:
    """Each figure is read when the meter asks, with its name, kind, unit and the attributes that were given."""
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("tests")
    world = World()
    observe(world.engine, meter, {"consumer": "orders"})
    assert await world.engine.take(0.1) is None
    world.streams[0].deliver(answer_of(1, b"a", b"b"))
    assert await (await world.take()).ack()
    told = observed(reader)
    assert len(told) == len(METRICS)
    assert told["millrace.consumer.acked_events"] == ("{events}", True, 2, {"consumer": "orders"})
    assert told["millrace.consumer.queued_bytes"] == ("By", False, 0, {"consumer": "orders"})
    await world.engine.close(1.0)
