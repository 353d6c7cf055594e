"""Metrics of producers for Prometheus; needs the extra `prometheus`.

from prometheus_client import REGISTRY
from millrace_client.producing.prometheus import ProducerCollector

REGISTRY.register(ProducerCollector({"orders": producer}))
"""

from collections.abc import Iterable, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from millrace_client.producing.metrics import (
    LATENCY_BOUNDS_SECONDS,
    METRICS,
    Latencies,
    ProducerMetrics,
    ReportsMetrics,
)

_PREFIX = "millrace_producer_"


class ProducerCollector(Collector):
    """Collects the metrics of producers for Prometheus.

    Args:
        producers: The producers, by the value of their label `producer`. The mapping may change later.
    """

    def __init__(self, producers: Mapping[str, ReportsMetrics]) -> None:
        self._producers = producers

    def collect(self) -> Iterable[Metric]:
        metrics = {name: producer.metrics() for name, producer in self._producers.items()}
        for metric in METRICS:
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(_PREFIX + metric.name, metric.help, labels=["producer"])
            for name, measured in metrics.items():
                family.add_metric([name], metric.read(measured))
            yield family
        latencies = HistogramMetricFamily(
            _PREFIX + "latency_seconds", "From send until an event was stored.", labels=["producer"]
        )
        for name, measured in metrics.items():
            latencies.add_metric([name], _buckets(measured.latencies), measured.latencies.total_seconds)
        yield latencies
        yield from _server_families(metrics)


def _buckets(latencies: Latencies) -> list[tuple[str, float]]:
    """Returns cumulative buckets."""
    buckets: list[tuple[str, float]] = []
    total = 0
    for bound, count in zip((*map(str, LATENCY_BOUNDS_SECONDS), "+Inf"), latencies.counts, strict=True):
        total += count
        buckets.append((bound, total))
    return buckets


def _server_families(metrics: Mapping[str, ProducerMetrics]) -> Iterable[Metric]:
    labels = ["producer", "server"]
    connected = GaugeMetricFamily(_PREFIX + "server_connected", "Whether a server can be reached.", labels=labels)
    sick = GaugeMetricFamily(_PREFIX + "server_sick", "Whether a server is left alone for a while.", labels=labels)
    for name, measured in metrics.items():
        for server in measured.servers:
            connected.add_metric([name, server.server], server.is_connected)
            sick.add_metric([name, server.server], server.is_sick)
    return [connected, sick]
