"""Consumers' figures for Prometheus; needs the extra `prometheus`.

from prometheus_client import REGISTRY
from millrace_client.consuming.prometheus import ConsumerCollector

REGISTRY.register(ConsumerCollector({"orders": consumer}))
"""

from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from millrace_client.consuming.latency import BOUNDS_SECONDS
from millrace_client.consuming.measures import MEASURES, Measured

_PREFIX = "millrace_consumer_"


class ConsumerCollector(Collector):
    """Tells consumers' figures whenever Prometheus asks.

    Args:
        consumers: The consumers, each by the name that its figures bear as the label `consumer`. It may change later.
    """

    def __init__(self, consumers: Mapping[str, Measured]) -> None:
        self._consumers = consumers

    def describe(self) -> Iterator[Metric]:
        """None in advance, so that registering reads nothing."""
        yield from ()

    def collect(self) -> Iterator[Metric]:
        """All figures now."""
        looks = {name: consumer.metrics() for name, consumer in self._consumers.items()}
        for measure in MEASURES:
            kind = CounterMetricFamily if measure.is_counter else GaugeMetricFamily
            family = kind(_PREFIX + measure.name, measure.help, labels=["consumer"])
            for name, metrics in looks.items():
                family.add_metric([name], measure.read(metrics))
            yield family
        reading = GaugeMetricFamily(
            f"{_PREFIX}reading", "Whether deliveries are read.", labels=["consumer", "endpoint", "channel"]
        )
        work = HistogramMetricFamily(f"{_PREFIX}work_seconds", "How long deliveries were in hand.", labels=["consumer"])
        for name, metrics in looks.items():
            for lane in metrics.lanes:
                reading.add_metric([name, lane.endpoint, lane.channel], float(lane.state == "reading"))
            totals = accumulate(metrics.work.bucket_counts)
            bounds = [*map(str, BOUNDS_SECONDS), "+Inf"]
            work.add_metric([name], list(zip(bounds, map(float, totals), strict=True)), metrics.work.sum_seconds)
        yield reading
        yield work
