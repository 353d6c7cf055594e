from millrace_client._metrics import LATENCY_BOUNDS_SECONDS, LatencyHistogram


def test_summary_of_nothing_is_zero() -> None:
    """Before the first observation all values are zero."""
    summary = LatencyHistogram().summary()
    assert (summary.count, summary.sum_seconds, summary.max_seconds, summary.quantile(0.99)) == (0, 0.0, 0.0, 0.0)


def test_quantile_is_a_bound_at_most_twice_too_high() -> None:
    """A fraction of the observations took no longer than the quantile says."""
    latency = LatencyHistogram()
    seconds = [0.001 * number for number in range(1, 1001)]
    for each in seconds:
        latency.observe(each)
    summary = latency.summary()
    assert (summary.count, round(summary.sum_seconds, 6), summary.max_seconds) == (1000, 500.5, 1.0)
    for fraction in (0.1, 0.5, 0.9, 0.99, 1.0):
        exact = seconds[round(fraction * 1000) - 1]
        assert exact <= summary.quantile(fraction) <= 2 * exact


def test_what_is_beyond_all_bounds_counts_as_the_longest() -> None:
    """The last bucket has no bound, so the maximum stands for it."""
    latency = LatencyHistogram()
    latency.observe(LATENCY_BOUNDS_SECONDS[-1] * 10)
    summary = latency.summary()
    assert summary.bucket_counts[-1] == 1
    assert summary.quantile(0.5) == LATENCY_BOUNDS_SECONDS[-1] * 10
