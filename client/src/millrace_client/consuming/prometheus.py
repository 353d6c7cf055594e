"""Metrics of consumers for Prometheus; needs the extra `prometheus`.

from prometheus_client import REGISTRY
from millrace_client.consuming.prometheus import ConsumerCollector

REGISTRY.register(ConsumerCollector({"orders": consumer}))
"""

from collections.abc import Iterator, Mapping

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from millrace_client._metrics import LATENCY_BOUNDS_SECONDS, cumulative_buckets
from millrace_client.consuming.metrics import METRICS, ReportsMetrics

_PREFIX = "millrace_consumer_"


class ConsumerCollector(Collector):
    """Collects the metrics of consumers for Prometheus.

    Args:
        consumers: The consumers, by the value of their label `consumer`. The mapping may change later.
    """

    def __init__(self, consumers: Mapping[str, ReportsMetrics]) -> None:
        self._consumers = consumers

    def describe(self) -> Iterator[Metric]:
        """Yields nothing, so that registering reads no metrics."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        states = {name: consumer.metrics() for name, consumer in self._consumers.items()}
        for metric in METRICS:
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(_PREFIX + metric.name, metric.help, labels=["consumer"])
            for name, metrics in states.items():
                family.add_metric([name], metric.read(metrics))
            yield family
        reading = GaugeMetricFamily(
            f"{_PREFIX}reading", "Whether deliveries are read.", labels=["consumer", "endpoint", "channel"]
        )
        work = HistogramMetricFamily(
            f"{_PREFIX}work_seconds", "How long deliveries were in progress.", labels=["consumer"]
        )
        for name, metrics in states.items():
            for subscription in metrics.lanes:
                reading.add_metric(
                    [name, subscription.endpoint, subscription.channel], float(subscription.state == "reading")
                )
            buckets = cumulative_buckets(LATENCY_BOUNDS_SECONDS, metrics.work.bucket_counts)
            work.add_metric([name], buckets, metrics.work.sum_seconds)
        yield reading
        yield work
