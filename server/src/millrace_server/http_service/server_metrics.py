"""The metrics of the server as a whole: its histograms, refusals, quotas, certificates and clock."""

import time
from collections.abc import Iterator
from importlib.metadata import version
from itertools import accumulate

from prometheus_client import Metric
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from millrace_server.access.control import AccessControl
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.histograms import Histogram, HistogramFamily, Histograms
from millrace_server.network.tls import expiry_times


class HistogramCollector(Collector):
    """Reads the histograms at each scrape."""

    def __init__(self, histograms: Histograms) -> None:
        self._histograms = histograms

    def collect(self) -> Iterator[Metric]:
        return map(_metric_of, self._histograms)


def _metric_of(family: HistogramFamily) -> Metric:
    metric = HistogramMetricFamily(family.name, family.description, labels=family.labels)
    for values, histogram in family:
        if any(histogram.counts):
            metric.add_metric(values, _buckets_of(histogram), histogram.total)
    return metric


def _buckets_of(histogram: Histogram) -> list[tuple[str, float] | tuple[str, float, Exemplar]]:
    """Returns each bucket's bound, the observations up to it, and its exemplar if it has one."""
    buckets: list[tuple[str, float] | tuple[str, float, Exemplar]] = []
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    # A copy, since another thread may count in the meantime.
    for index, (bound, count) in enumerate(zip(bounds, accumulate([*histogram.counts]), strict=True)):
        if (exemplar := histogram.exemplars.get(index)) is None:
            buckets.append((bound, count))
        else:
            traced = Exemplar({"trace_id": exemplar.trace_id}, exemplar.value, exemplar.time)
            buckets.append((bound, count, traced))
    return buckets


class ServerCollector(Collector):
    """Reads the other metrics of the server at each scrape.

    Attributes:
        is_draining: Whether the server is stopping.
    """

    def __init__(self, registry: ChannelRegistry, access: AccessControl | None) -> None:
        self._registry = registry
        self._access = access
        self.is_draining = False

    def collect(self) -> Iterator[Metric]:
        limit = self._registry.transactions.limit
        for name, description, value in (
            ("millrace_open_transactions", "Open transactions of all channels.", limit.open_count),
            ("millrace_open_transactions_max", "Maximum number of open transactions of all channels.", limit.maximum()),
            ("millrace_server_serving", "1, and 0 while the server stops.", not self.is_draining),
            ("millrace_server_time_seconds", "The server's clock, since 1970.", time.time()),
        ):
            yield GaugeMetricFamily(name, description, value=value)
        yield InfoMetricFamily(
            "millrace_server", "The release of the server.", value={"version": version("millrace-server")}
        )
        refusals = CounterMetricFamily("millrace_refusals", "Calls that were refused, by reason.", labels=["reason"])
        for reason, count in sorted(self._registry.refused.items()):
            refusals.add_metric([reason], count)
        yield refusals
        yield _expiry()
        if self._access is not None:
            yield from self._quotas(self._access)

    def _quotas(self, access: AccessControl) -> Iterator[Metric]:
        labels = ["identity", "quota"]
        used = CounterMetricFamily("millrace_quota_bytes", "Bytes that counted against a quota.", labels=labels)
        rates = GaugeMetricFamily("millrace_quota_bytes_per_second_max", "The limit of a quota.", labels=labels)
        refusals = CounterMetricFamily("millrace_quota_refusals", "Calls that a quota refused.", labels=labels)
        opened = GaugeMetricFamily(
            "millrace_quota_open_transactions", "Open transactions of an identity with a quota.", labels=labels[:1]
        )
        opened_max = GaugeMetricFamily(
            "millrace_quota_open_transactions_max", "Transactions that a quota allows to be open.", labels=labels[:1]
        )
        for identity, quota in access.quotas().items():
            for bucket in quota.buckets:
                used.add_metric([identity, bucket.setting], bucket.counted_bytes)
                rates.add_metric([identity, bucket.setting], bucket.bytes_per_second)
                refusals.add_metric([identity, bucket.setting], bucket.refused_count)
            if quota.open_transactions is not None:
                opened.add_metric([identity], self._registry.transactions.open_counts[identity])
                opened_max.add_metric([identity], quota.open_transactions)
                refusals.add_metric([identity, "open_transactions"], quota.refused_transactions)
        yield from (used, rates, refusals, opened, opened_max)


def _expiry() -> Metric:
    expiry = GaugeMetricFamily(
        "millrace_tls_certificate_expiry_timestamp_seconds",
        "When the first certificate in a file expires, since 1970: a listener's, or of who signs those of clients.",
        labels=["file"],
    )
    for path, expiry_time in sorted(expiry_times().items()):
        expiry.add_metric([str(path)], expiry_time.timestamp())
    return expiry
