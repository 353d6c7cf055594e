import threading

from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest

from millrace_server.histograms import Histogram, HistogramFamily, Histograms, SharedHistogram
from millrace_server.http_service.server_metrics import HistogramCollector


def test_observe_counts_a_bound_in_its_bucket() -> None:
    """A bucket has what is at most its bound, and the last one has the rest."""
    histogram = Histogram((1, 10))
    for value in (0, 1, 1.5, 10, 11):
        histogram.observe(value)
    histogram.observe(2, count=3)
    assert histogram.counts == [2, 5, 1]
    assert histogram.total == 29.5


def test_observe_of_several_threads_loses_none() -> None:
    """A shared histogram counts all observations."""
    histogram = SharedHistogram((1,))

    def observe() -> None:
        for _ in range(10_000):
            histogram.observe(0.5)

    threads = [threading.Thread(target=observe) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (histogram.counts, histogram.total) == ([40_000, 0], 20_000.0)


def test_of_returns_one_histogram_for_the_same_labels() -> None:
    """A caller may keep it."""
    family = HistogramFamily("durations", "Durations.", (1,), ("method",))
    family.of("Append").observe(0.5)
    assert family.of("Append").counts == [1, 0]
    assert [labels for labels, _ in family] == [("Append",)]


def test_exemplars_are_in_openmetrics_with_their_trace() -> None:
    """The newest traced observation of a bucket is shown with it, and buckets without one have none."""
    histograms = Histograms()
    histogram = histograms.rpcs.of("Append", "OK")
    histogram.observe_traced(0.0002, "a" * 32)
    histogram.observe_traced(0.00021, "b" * 32)
    histogram.observe(3)
    registry = CollectorRegistry()
    registry.register(HistogramCollector(histograms))
    text = generate_latest(registry).decode()  # type: ignore[no-untyped-call] # the library's
    [line] = [line for line in text.splitlines() if "#" in line[1:]]
    assert line.startswith('millrace_rpc_duration_seconds_bucket{code="OK",le="0.00025",method="Append"} 2.0 # ')
    assert f'{{trace_id="{"b" * 32}"}} 0.00021 ' in line
