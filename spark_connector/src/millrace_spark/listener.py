"""What streaming queries do, told to Prometheus."""

import json
from collections.abc import Callable, Iterator
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
    "lag": ("millrace_spark_lag_events", "Events in the channel that no micro-batch holds yet."),
    "position": ("millrace_spark_position_sequence", "The sequence after the last that a micro-batch holds."),
    "first": ("millrace_spark_first_sequence", "The oldest sequence that is not acknowledged."),
    "next": ("millrace_spark_next_sequence", "The sequence that the next event will get."),
    "rate": ("millrace_spark_arriving_events_per_second", "Events that come into the channel, a second."),
    "reachable": ("millrace_spark_shard_reachable", "1 while the server answers, else 0."),
}
"""What the source reports of each shard, and as what it is published."""

_QUERY_FIGURES = {
    "inputRowsPerSecond": ("millrace_spark_input_rows_per_second", "Rows that came in, all sources of the query."),
    "processedRowsPerSecond": ("millrace_spark_processed_rows_per_second", "Rows that were processed."),
    "batchId": ("millrace_spark_batch_id", "The number of the last micro-batch."),
}
_SHARD_LABELS = ("query", "channel", "endpoint")


@dataclass(frozen=True)
class ShardReport:
    """What a query's progress tells of one shard."""

    shard: Shard
    figures: dict[str, float]
    """By the names in `_SHARD_FIGURES`."""


class PrometheusListener(StreamingQueryListener):
    """Publishes lag, rates and sequences of each shard, for every query that reads Millrace, and what a batch takes.

        listener = PrometheusListener(port=9400)
        spark.streams.addListener(listener)

    Figures are those of the last progress that Spark told, one for each micro-batch, and one every 10 s while there is
    nothing to do. Those of a query that has ended go. The label `query` is the query's name, or its id without one.

    Args:
        port: Where to serve `/metrics`; None where `registry` is served by somebody else.
        address: The interface to serve on; loopback where nothing else is said.
        registry: Where figures are kept; one of its own if None.

    Raises:
        MillraceSparkError: There is no prometheus-client, or the port is taken.
    """

    def __init__(
        self, port: int | None = None, *, address: str = "127.0.0.1", registry: "CollectorRegistry | None" = None
    ) -> None:
        try:
            import prometheus_client
        except ImportError:
            raise MillraceSparkError(
                'figures for Prometheus need prometheus-client; run: pip install "millrace-spark[prometheus]"'
            ) from None
        self.registry = registry or prometheus_client.CollectorRegistry()
        self._shard_gauges = {
            figure: prometheus_client.Gauge(name, told, _SHARD_LABELS, registry=self.registry)
            for figure, (name, told) in _SHARD_FIGURES.items()
        }
        self._query_gauges = {
            figure: prometheus_client.Gauge(name, told, ("query",), registry=self.registry)
            for figure, (name, told) in _QUERY_FIGURES.items()
        }
        self._rows = prometheus_client.Counter(
            "millrace_spark_rows", "Rows that the query's micro-batches had.", ("query",), registry=self.registry
        )
        self._batch_seconds = prometheus_client.Histogram(
            "millrace_spark_batch_seconds", "How long a micro-batch took.", ("query",), registry=self.registry
        )
        self._names: dict[str, str] = {}
        self._shards: dict[str, set[Shard]] = {}
        self._close: Callable[[], None] = _nothing
        self.address: str | None = None
        """Where `/metrics` is served, `host:port`; None where it is not."""
        if port is not None:
            self._serve(port, address)

    def close(self) -> None:
        """Ends serving `/metrics`. Take the listener from the session before that."""
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
        """What was told last holds on."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        run = str(event.runId)
        query = self._names.pop(run, str(event.id))
        # A query that was started again at once may have told of itself before the end of its last run is known.
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
    """What a source's `latestOffset` in a query's progress tells of each shard; nothing where it is not Millrace's."""
    try:
        told: Any = json.loads(latest_offset or "")
    except ValueError:
        return
    for name, figures in told.items() if isinstance(told, dict) else ():
        if not isinstance(figures, dict) or not _SHARD_FIGURES.keys() <= figures.keys():
            return
        try:
            shard = Shard.parse(name)
        except ValueError:
            return
        yield ShardReport(shard, {figure: float(figures[figure]) for figure in _SHARD_FIGURES})


def _nothing() -> None:
    pass


def _remove(metric: "MetricWrapperBase", *labels: str) -> None:
    try:
        metric.remove(*labels)
    except KeyError:
        # A query that ended before its first progress has none.
        return
