"""Metrics of streaming queries, from artificial progress events."""

import json
import socketserver
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry

from millrace_spark import MillraceSparkError, PrometheusListener
from millrace_spark.listener import shard_reports
from millrace_spark.reading.offsets import ShardProgress
from millrace_spark.shards import Shard

ORDERS = Shard("orders", "mill-1:7070")
_ID, _RUN, _NEXT_RUN = (UUID(int=number) for number in range(3))


def offset(shard: Shard = ORDERS, *, lag: int = 0) -> str:
    """Returns the progress of one shard."""
    reported = ShardProgress(position=101, first=51, next=101 + lag, lag=lag, rate=12.5, reachable=True)
    return json.dumps({str(shard): asdict(reported)})


def progress_of(*latest_offsets: str | None, run: UUID = _RUN, rows: int = 10, name: str | None = "landing") -> Any:
    """Returns the progress of a query."""
    return SimpleNamespace(
        progress=SimpleNamespace(
            id=_ID,
            runId=run,
            name=name,
            batchId=7,
            batchDuration=250,
            numInputRows=rows,
            inputRowsPerSecond=20.0,
            processedRowsPerSecond=40.0,
            sources=[SimpleNamespace(latestOffset=latest_offset) for latest_offset in latest_offsets],
        )
    )


def ended(run: UUID = _RUN) -> Any:
    return SimpleNamespace(id=_ID, runId=run)


def figure_of(listener: PrometheusListener, name: str, **labels: str) -> float | None:
    return listener.registry.get_sample_value(f"millrace_spark_{name}", {"query": "landing"} | labels)


@pytest.fixture
def listener() -> Iterator[PrometheusListener]:
    with PrometheusListener() as made:
        yield made


def test_progress_of_a_query_is_published_by_shard(listener: PrometheusListener) -> None:
    """Lag, rate and sequences are labelled by query, channel and server."""
    listener.onQueryProgress(progress_of(offset(lag=30)))
    where = {"channel": "orders", "endpoint": "mill-1:7070"}
    names = [
        "lag_events",
        "position_sequence",
        "first_sequence",
        "next_sequence",
        "arriving_events_per_second",
        "shard_reachable",
    ]
    assert [figure_of(listener, name, **where) for name in names] == [30, 101, 51, 131, 12.5, 1]


def test_progress_of_a_query_tells_what_batches_take(listener: PrometheusListener) -> None:
    """Rows add up, and a batch without rows is not counted."""
    listener.onQueryProgress(progress_of(offset(), rows=10))
    listener.onQueryProgress(progress_of(offset(), rows=5))
    listener.onQueryProgress(progress_of(offset(), rows=0))
    names = ("rows_total", "batch_seconds_count", "batch_seconds_sum", "processed_rows_per_second", "batch_id")
    assert [figure_of(listener, name) for name in names] == [15, 2, 0.5, 40.0, 7]


def test_progress_of_a_query_without_a_name_stands_under_its_id(listener: PrometheusListener) -> None:
    """The id replaces a missing name."""
    listener.onQueryProgress(progress_of(offset(), name=None))
    assert listener.registry.get_sample_value("millrace_spark_rows_total", {"query": str(_ID)}) == 10


def test_progress_of_other_sources_is_left_out(listener: PrometheusListener) -> None:
    """Only Millrace sources are published."""
    kafka = json.dumps({"topic": {"0": 17}})
    listener.onQueryProgress(progress_of(kafka, "17", None, "no JSON", "[1]"))
    assert not any(family.samples for family in listener.registry.collect())
    listener.onQueryProgress(progress_of(kafka, offset(lag=3)))
    assert figure_of(listener, "lag_events", channel="orders", endpoint="mill-1:7070") == 3


def test_end_of_a_query_removes_its_figures(listener: PrometheusListener) -> None:
    """The metrics of a query end with it."""
    listener.onQueryProgress(progress_of(offset(lag=30)))
    listener.onQueryTerminated(ended())
    assert figure_of(listener, "lag_events", channel="orders", endpoint="mill-1:7070") is None
    assert not any(family.samples for family in listener.registry.collect())


def test_end_of_a_query_reported_after_its_next_start_removes_nothing(listener: PrometheusListener) -> None:
    """A late end event does not remove the metrics of the next run."""
    listener.onQueryProgress(progress_of(offset(lag=30)))
    listener.onQueryProgress(progress_of(offset(lag=20), run=_NEXT_RUN))
    listener.onQueryTerminated(ended())
    assert figure_of(listener, "lag_events", channel="orders", endpoint="mill-1:7070") == 20


def test_end_of_a_query_removes_shards_that_its_next_run_does_not_read(listener: PrometheusListener) -> None:
    """A late end event removes the shards that the next run does not read."""
    audit = Shard("audit", "mill-1:7070")
    listener.onQueryProgress(progress_of(offset(lag=30), offset(audit, lag=5)))
    listener.onQueryProgress(progress_of(offset(lag=20), run=_NEXT_RUN))
    listener.onQueryTerminated(ended())
    assert figure_of(listener, "lag_events", channel="audit", endpoint="mill-1:7070") is None
    assert figure_of(listener, "lag_events", channel="orders", endpoint="mill-1:7070") == 20
    listener.onQueryTerminated(ended(_NEXT_RUN))
    assert not any(family.samples for family in listener.registry.collect())


def test_end_of_a_query_without_progress_is_nothing(listener: PrometheusListener) -> None:
    """A query that failed at once has no metrics."""
    listener.onQueryStarted(SimpleNamespace(id=_ID, runId=_RUN, name="landing"))  # type: ignore[arg-type] # a fake
    listener.onQueryTerminated(ended())
    assert figure_of(listener, "batch_id") is None


def test_listener_with_a_port_serves_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """`/metrics` is served until the listener is closed."""
    # Python's HTTP server checks each half second whether it is to stop.
    monkeypatch.setattr(socketserver.BaseServer.serve_forever, "__defaults__", (0.01,))
    with PrometheusListener(port=0) as listener:
        listener.onQueryProgress(progress_of(offset(lag=30)))
        url = f"http://{listener.address}/metrics"
        with urllib.request.urlopen(url, timeout=60) as response:
            page = response.read().decode()
        with pytest.raises(MillraceSparkError, match="choose another port, or 0 for a free one"):
            PrometheusListener(port=int(str(listener.address).partition(":")[2]))
    assert 'millrace_spark_lag_events{channel="orders",endpoint="mill-1:7070",query="landing"} 30.0' in page
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=60)


def test_listener_with_a_registry_adds_to_it() -> None:
    """A program can publish the metrics with its own."""
    registry = CollectorRegistry()
    listener = PrometheusListener(registry=registry)
    listener.onQueryProgress(progress_of(offset()))
    assert listener.address is None
    assert registry.get_sample_value("millrace_spark_rows_total", {"query": "landing"}) == 10


def test_listener_without_prometheus_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the optional package."""
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(MillraceSparkError, match=r'pip install "millrace-spark\[prometheus\]"'):
        PrometheusListener()


def test_shard_reports_of_a_report_give_every_figure() -> None:
    """The source and the listener use the same names."""
    [report] = shard_reports(offset(lag=1))
    assert report.shard == ORDERS
    assert (
        report.figures.keys()
        == asdict(ShardProgress(position=1, first=1, next=1, lag=0, rate=0, reachable=False)).keys()
    )
