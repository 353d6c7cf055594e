from array import array

from millrace_server.channels.batches import StoredBatch, Window
from millrace_server.channels.queue_times import QueueTimes
from millrace_server.histograms import Histogram
from tests.channel_events import window

MICROSECONDS = 1_000_000
NOW = 1_000 * MICROSECONDS


def run_of(*ages_seconds: float) -> StoredBatch:
    """A run whose events were committed so long ago, the oldest first."""
    merged = window(*[b"x" for _ in ages_seconds])
    first = max(ages_seconds)
    merged.stored.offsets = array("I", [round((first - age) * MICROSECONDS) for age in ages_seconds])
    return StoredBatch(1, merged, NOW - round(first * MICROSECONDS))


def test_observe_counts_the_events_of_a_batch_together() -> None:
    """Its events have the time of their commit."""
    histogram = Histogram((1, 10))
    QueueTimes(histogram).observe([StoredBatch(1, window(b"a", b"b"), NOW - 5 * MICROSECONDS)], NOW)
    assert (histogram.counts, histogram.total) == ([0, 2, 0], 10.0)


def test_observe_counts_each_event_of_a_run_by_its_own_time() -> None:
    """A bound belongs to its bucket, as for a single event."""
    ages = [100, 10.000001, 10, 9, 1.5, 1, 0.5, 0]
    histogram, one_by_one = Histogram((1, 10)), Histogram((1, 10))
    QueueTimes(histogram).observe([run_of(*ages)], NOW)
    for age in ages:
        one_by_one.observe(age)
    assert histogram.counts == one_by_one.counts == [3, 3, 2]
    assert round(histogram.total, 6) == round(one_by_one.total, 6)


def test_observe_counts_the_part_of_a_run_that_was_consumed() -> None:
    """The others stay."""
    histogram = Histogram((1, 10))
    whole = run_of(100, 5, 0.5)
    QueueTimes(histogram).observe([StoredBatch(2, Window(whole.window.stored, 1, 3, 2), whole.commit_time)], NOW)
    assert (histogram.counts, round(histogram.total, 6)) == ([1, 1, 0], 5.5)


def test_observe_without_a_time_or_from_the_future_counts_no_nonsense() -> None:
    """Events of earlier releases have no time; a clock that was set back makes no time negative."""
    histogram = Histogram((1, 10))
    future = StoredBatch(1, window(b"a"), NOW + MICROSECONDS)
    QueueTimes(histogram).observe([StoredBatch(1, window(b"a"), 0), future, run_of(-1, -2)], NOW)
    assert (histogram.counts, histogram.total) == ([3, 0, 0], 0.0)
