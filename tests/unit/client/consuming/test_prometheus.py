from prometheus_client import CollectorRegistry, generate_latest

from millrace_client.consuming.prometheus import ConsumerCollector
from tests.unit.client.consuming.fakes import EngineHarness, response_of


async def test_figures_are_exported_to_prometheus() -> None:
    """Counters, gauges, the streams' states and the work times are exported with the consumer's name."""
    worlds = [EngineHarness("one two"), EngineHarness()]
    registry = CollectorRegistry()
    registry.register(ConsumerCollector({"first": worlds[0].engine, "second": worlds[1].engine}))
    assert await worlds[0].engine.take(0) is None
    while len(worlds[0].streams) < 2:
        await worlds[0].engine.take(0.1)
    worlds[0].streams[0].deliver(response_of(1, b"a", b"b"), response_of(2))
    assert await (await worlds[0].take()).ack()
    text = generate_latest(registry).decode()
    for line in (
        'millrace_consumer_delivered_events_total{consumer="first"} 3.0',
        'millrace_consumer_acked_events_total{consumer="first"} 2.0',
        'millrace_consumer_queued_deliveries{consumer="first"} 1.0',
        'millrace_consumer_acked_events_total{consumer="second"} 0.0',
        'millrace_consumer_reading{channel="orders",consumer="first",endpoint="two"} 1.0',
        'millrace_consumer_reading{channel="orders",consumer="second",endpoint="one"} 0.0',
        'millrace_consumer_work_seconds_bucket{consumer="first",le="+Inf"} 1.0',
        'millrace_consumer_work_seconds_count{consumer="first"} 1.0',
    ):
        assert line in text.splitlines(), text
    for harness in worlds:
        await harness.engine.close(0.0)
