"""Metrics of streaming queries for Prometheus."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from millrace_spark.errors import MillraceSparkError
from millrace_spark.shards import Shard

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics import MetricWrapperBase

_SHARD_FIGURES = {
    "lag": ("millrace_spark_lag_events", "Events in the channel that are not in a micro-batch yet."),
    "position": ("millrace_spark_position_sequence", "The sequence after the last one in a micro-batch."),
    "first": ("millrace_spark_first_sequence", "The oldest sequence that is not acknowledged."),
    "next": ("millrace_spark_next_sequence", "The sequence of the next event."),
    "rate": ("millrace_spark_arriving_events_per_second", "Events that arrive in the channel per second."),
    "reachable": ("millrace_spark_shard_reachable", "1 while the server responds, else 0."),
}
"""The metric of each figure that the source reports for a shard."""

_QUERY_FIGURES = {
    "inputRowsPerSecond": ("millrace_spark_input_rows_per_second", "Rows that arrived, from all sources of the query."),
    "processedRowsPerSecond": ("millrace_spark_processed_rows_per_second", "Rows that the query processed."),
    "batchId": ("millrace_spark_batch_id", "The number of the last micro-batch."),
}
_SHARD_LABELS = ("query", "channel", "endpoint")


@dataclass(frozen=True)
class ShardReport:
    """The figures of one shard in a query's progress."""

    shard: Shard
    figures: dict[str, float]
    """By the names in `_SHARD_FIGURES`."""


class PrometheusListener(StreamingQueryListener):
    """Publishes lag, rates and sequences of each shard, and batch durations, for queries that read Millrace.

        listener = PrometheusListener(port=9400)
        spark.streams.addListener(listener)

    The figures are those of the last progress event, which Spark sends after each micro-batch, and every 10 s while
    idle. They are removed when the query ends. The label `query` is the name of the query, or its id.

    Args:
        port: The port of `/metrics`; None if the program serves `registry` itself.
        address: The interface of `/metrics`; loopback by default.
        registry: The registry of the metrics; a new one if None.

    Raises:
        MillraceSparkError: prometheus-client is not installed, or the port is in use.
    """

    def __init__(
        self, port: int | None = None, *, address: str = "127.0.0.1", registry: "CollectorRegistry | None" = None
    ) -> None:
        try:
            import prometheus_client
        except ImportError:
            raise MillraceSparkError(
                'metrics for Prometheus need prometheus-client; run: pip install "millrace-spark[prometheus]"'
            ) from None
        self.registry = registry or prometheus_client.CollectorRegistry()
        self._shard_gauges = {
            figure: prometheus_client.Gauge(name, description, _SHARD_LABELS, registry=self.registry)
            for figure, (name, description) in _SHARD_FIGURES.items()
        }
        self._query_gauges = {
            figure: prometheus_client.Gauge(name, description, ("query",), registry=self.registry)
            for figure, (name, description) in _QUERY_FIGURES.items()
        }
        self._rows = prometheus_client.Counter(
            "millrace_spark_rows", "Rows in the micro-batches of the query.", ("query",), registry=self.registry
        )
        self._batch_seconds = prometheus_client.Histogram(
            "millrace_spark_batch_seconds", "The duration of a micro-batch.", ("query",), registry=self.registry
        )
        self._names: dict[str, str] = {}
        self._shards: dict[str, set[Shard]] = {}
        self._close: Callable[[], None] = lambda: None
        self.address: str | None = None
        """The address of `/metrics`, `host:port`; None if the listener does not serve it."""
        if port is not None:
            self._serve(port, address)

    def close(self) -> None:
        """Stops serving `/metrics`. Remove the listener from the session first."""
        self._close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        self._names[str(event.runId)] = event.name or str(event.id)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        progress = event.progress
        reports = [report for source in progress.sources for report in shard_reports(source.latestOffset)]
        if not reports:
            return
        run, query = str(progress.runId), progress.name or str(progress.id)
        self._names[run] = query
        for report in reports:
            labels = (query, report.shard.channel, report.shard.endpoint)
            for figure, value in report.figures.items():
                self._shard_gauges[figure].labels(*labels).set(value)
        self._shards.setdefault(run, set()).update(report.shard for report in reports)
        for figure, gauge in self._query_gauges.items():
            gauge.labels(query).set(getattr(progress, figure))
        self._rows.labels(query).inc(progress.numInputRows)
        if progress.numInputRows:
            self._batch_seconds.labels(query).observe(progress.batchDuration / 1_000)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Keeps the last figures."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        run = str(event.runId)
        query = self._names.pop(run, str(event.id))
        # A query that restarted quickly may have reported progress before the end of its last run is reported.
        others = [other for other, name in self._names.items() if name == query]
        kept = {shard for other in others for shard in self._shards.get(other, ())}
        for shard in self._shards.pop(run, set()) - kept:
            for gauge in self._shard_gauges.values():
                _remove(gauge, query, shard.channel, shard.endpoint)
        if not others:
            for metric in (*self._query_gauges.values(), self._rows, self._batch_seconds):
                _remove(metric, query)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, port: int, address: str) -> None:
        import prometheus_client

        try:
            server, thread = prometheus_client.start_http_server(port, address, self.registry)
        except OSError as error:
            raise MillraceSparkError(
                f"cannot serve /metrics at {address}:{port}: {error.strerror}; choose another port, or 0 for a free one"
            ) from None
        self.address = f"{address}:{server.server_port}"

        def close() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._close = close


def shard_reports(latest_offset: str | None) -> Iterator[ShardReport]:
    """Yields the figures in a source's `latestOffset`, for each shard; nothing if the source is not Millrace."""
    try:
        progress: Any = json.loads(latest_offset or "")
    except ValueError:
        return
    for name, figures in progress.items() if isinstance(progress, dict) else ():
        if not isinstance(figures, dict) or not _SHARD_FIGURES.keys() <= figures.keys():
            return
        try:
            shard = Shard.parse(name)
        except ValueError:
            return
        yield ShardReport(shard, {figure: float(figures[figure]) for figure in _SHARD_FIGURES})


def _remove(metric: "MetricWrapperBase", *labels: str) -> None:
    # A query that ends before its first progress event has no metrics.
    with suppress(KeyError):
        metric.remove(*labels)
