"""Metrics of producers for Prometheus; needs the extra `prometheus`.

from prometheus_client import REGISTRY
from millrace_client.producing.prometheus import ProducerCollector

REGISTRY.register(ProducerCollector({"orders": producer}))
"""

from collections.abc import Iterable, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from millrace_client._metrics import cumulative_buckets
from millrace_client.producing.metrics import LATENCY_BOUNDS_SECONDS, METRICS, ProducerMetrics, ReportsMetrics

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
            buckets = cumulative_buckets(LATENCY_BOUNDS_SECONDS, measured.latencies.counts)
            latencies.add_metric([name], buckets, measured.latencies.total_seconds)
        yield latencies
        yield from _server_families(metrics)


def _server_families(metrics: Mapping[str, ProducerMetrics]) -> Iterable[Metric]:
    labels = ["producer", "server"]
    connected = GaugeMetricFamily(_PREFIX + "server_connected", "Whether a server can be reached.", labels=labels)
    sick = GaugeMetricFamily(_PREFIX + "server_sick", "Whether a server is paused after failures.", labels=labels)
    for name, measured in metrics.items():
        for server in measured.servers:
            connected.add_metric([name, server.server], server.is_connected)
            sick.add_metric([name, server.server], server.is_sick)
    return [connected, sick]
