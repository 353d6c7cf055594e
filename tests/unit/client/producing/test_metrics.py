import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from millrace_client import ProducerMetrics
from millrace_client.opentelemetry import observe_producer
from millrace_client.producing.metrics import LATENCY_BOUNDS_SECONDS, METRICS, Latencies, ProducerCounters
from millrace_client.producing.prometheus import ProducerCollector
from tests.unit.client.opentelemetry_figures import observed
from tests.unit.client.producing.conftest import FakeChannels, MakeProducer


def latencies(*seconds: float) -> Latencies:
    counters = ProducerCounters()
    for second in seconds:
        counters.note_latency(second, 1)
    return Latencies(tuple(counters.latency_counts), counters.latency_seconds)


def test_percentiles_are_bounds_that_were_not_passed() -> None:
    """The percentiles are as exact as the classes."""
    measured = latencies(*[0.0009] * 98, 0.7, 500.0)
    assert measured.percentile(50) == 0.001
    assert measured.percentile(99) == 0.75
    assert measured.percentile(100) is None
    assert latencies().percentile(50) is None


def test_rates_compare_two_looks(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Rates are events per second since the earlier sample."""
    producer = producer_of(channels)
    before = producer.metrics()
    for _ in range(10):
        producer.send(b"a")
    producer.flush(60)
    after = producer.metrics()
    rates = after.rates_since(before)
    assert rates.events_per_second == pytest.approx(10 / (after.time - before.time))
    assert after.rates_since(after).events_per_second == 0


def test_figures_cover_the_numbers_of_the_metrics() -> None:
    """Every number of the metrics is exported to monitoring systems."""
    numbers = set(ProducerMetrics.__dataclass_fields__) - {"time", "latencies", "servers"}
    assert {metric.name for metric in METRICS} == numbers


def test_collector_gives_prometheus_all_figures(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Counters, gauges, the histogram and the servers, each with the producer's name."""
    producer = producer_of(channels)
    for _ in range(3):
        producer.send(b"a")
    producer.flush(60)
    registry = CollectorRegistry()
    registry.register(ProducerCollector({"main": producer}))
    lines = generate_latest(registry).decode().splitlines()
    assert 'millrace_producer_events_stored_total{producer="main"} 3.0' in lines
    assert 'millrace_producer_open_events{producer="main"} 0.0' in lines
    assert 'millrace_producer_latency_seconds_bucket{le="+Inf",producer="main"} 3.0' in lines
    assert 'millrace_producer_latency_seconds_count{producer="main"} 3.0' in lines
    connected = f'millrace_producer_server_connected{{producer="main",server="{channels.address}"}} 1.0'
    assert connected in lines
    assert len(LATENCY_BOUNDS_SECONDS) == len(producer.metrics().latencies.counts) - 1


def test_observe_gives_opentelemetry_all_figures(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """The figures have OpenTelemetry's names, kinds, units and attributes; each observation gives the latest values."""
    reader = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[reader]).get_meter("tests")
    producer = producer_of(channels)
    observe_producer(producer, meter, {"producer": "main"})
    producer.send(b"a").result(60)
    assert observed(reader)["millrace.producer.events_stored"] == ("{events}", True, 1, {"producer": "main"})
    producer.send(b"b").result(60)
    reported = observed(reader)
    assert len(reported) == len(METRICS)
    assert reported["millrace.producer.events_stored"].value == 2
    assert reported["millrace.producer.buffer_bytes_max"] == ("By", False, 64 << 20, {"producer": "main"})
    assert reported["millrace.producer.blocked_seconds"][:2] == ("s", True)
