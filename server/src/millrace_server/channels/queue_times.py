"""How long events were in a channel, from their commit until they were consumed."""

from collections.abc import Sequence

from millrace_server.channels.batches import StoredBatch
from millrace_server.histograms import Histogram

_MICROSECONDS = 1_000_000


class QueueTimes:
    """Counts consumed events by the time that they were in their channel.

    The events of a batch are counted together, those of a run with a few searches for all of them.
    """

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._bounds = [round(bound * _MICROSECONDS) for bound in histogram.bounds]

    def observe(self, batches: Sequence[StoredBatch], now: int) -> None:
        """Counts the events of batches that were consumed `now`, in microseconds since 1970.

        Those that a release without commit times has stored are left out. Where the clock was set back, the time is 0.
        """
        for batch in batches:
            window = batch.window
            if not batch.commit_time:
                continue
            if window.stored.offsets is None:
                seconds = max(now - batch.commit_time, 0) / _MICROSECONDS
                self._histogram.observe(seconds, window.stop - window.start)
            else:
                self._observe_run(batch, now)

    def _observe_run(self, batch: StoredBatch, now: int) -> None:
        # Its times ascend, so the events up to an age are those from an index on.
        counts, stop = self._histogram.counts, batch.count
        for index, bound in enumerate(self._bounds):
            start = min(batch.index_since(now - bound), stop)
            counts[index] += stop - start
            stop = start
        counts[-1] += stop
        window, offsets = batch.window, batch.window.stored.offsets
        assert offsets is not None, "the commits of a run have times of their own"
        microseconds = batch.count * (now - batch.commit_time) - sum(offsets[window.start : window.stop])
        self._histogram.total += max(microseconds, 0) / _MICROSECONDS
