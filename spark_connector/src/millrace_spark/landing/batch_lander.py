"""Lands one batch: parses it once, writes it, and publishes its files."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it

from millrace_spark.landing.bad_lines import BadLineWriter
from millrace_spark.landing.config import LandingConfig
from millrace_spark.landing.paths import as_uri
from millrace_spark.landing.publication import BatchCounts, Publisher
from millrace_spark.landing.rows import REASON, Rows, rows_of
from millrace_spark.landing.storage import joined

ROWS = "rows"
"""The staging folder of good rows."""

BAD_LINES = "bad"
"""The staging folder of bad lines, if they go to a folder."""


_ROWS_PER_TASK = 50_000
"""Fewer rows are written by one task: a second task would cost more than it saves, and write more files."""


class StoppedError(Exception):
    """Raised for a batch that begins while the program is stopping; the next start lands it."""


@dataclass
class LandingTotals:
    """Counts of what this run has landed."""

    batches: int = 0
    events: int = 0
    rows: int = 0
    bad_lines: int = 0
    files: int = 0
    files_bytes: int = 0
    decided_before: int = 0
    """Batches that an earlier run had committed already; the other counts include them."""
    partitions: int = 0


class BatchLander:
    """Lands batches, one after the other. Spark calls it in its own thread.

    The lock `folder_in_use` is held while files are published. `publisher` and `bad_line_writer` are called for the
    first time when the query has its id.
    """

    def __init__(
        self,
        config: LandingConfig,
        publisher: Callable[[], Publisher],
        bad_line_writer: Callable[[], BadLineWriter],
        is_stopping: threading.Event,
    ) -> None:
        self.totals = LandingTotals()
        self.failure: Exception | None = None
        self.folder_in_use = threading.Lock()
        self.is_busy = False
        self._config = config
        self._make_publisher = publisher
        self._make_bad_line_writer = bad_line_writer
        self._is_stopping = is_stopping
        self._folders: set[str] = set()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Lands a batch. Once it returns, its rows are in the target, each once, and durable."""
        if self._is_stopping.is_set():
            raise StoppedError
        self.is_busy = True
        try:
            with self.folder_in_use:
                self._land(batch, batch_id)
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.is_busy = False

    def _land(self, batch: DataFrame, batch_id: int) -> None:
        publisher = self._make_publisher()
        record, is_new = publisher.publish(batch_id, lambda staged: self._write(batch, batch_id, staged))
        totals = self.totals
        totals.decided_before += not is_new
        totals.events += record.written.events
        totals.rows += record.written.rows
        totals.bad_lines += record.written.bad_lines
        totals.files += len(record.moves)
        totals.files_bytes += record.files_bytes
        self._folders.update(target.rpartition("/")[0] for _, target in record.moves)
        totals.partitions = len(self._folders)
        # Last, since observers take it as the sign that the batch is complete.
        totals.batches += 1

    def _write(self, batch: DataFrame, batch_id: int, staged: str) -> BatchCounts:
        rows = rows_of(batch, self._config)
        # The count reads the channel; good and bad rows are then written from the persisted rows.
        kept = Rows(rows.frame.persist(StorageLevel.MEMORY_AND_DISK), rows.partitions)
        try:
            [counted] = kept.frame.agg(F.count("*").alias("events"), F.count(REASON).alias("bad_lines")).collect()
            written = BatchCounts(counted.events, counted.events - counted.bad_lines, counted.bad_lines)
            if written.bad_lines:
                self._make_bad_line_writer()(kept.bad(), batch_id, joined(staged, BAD_LINES))
            if written.rows:
                self._write_rows(kept, written.rows, batch_id, joined(staged, ROWS))
            return written
        finally:
            kept.frame.unpersist()

    def _write_rows(self, rows: Rows, row_count: int, batch_id: int, staged: str) -> None:
        target = self._config.target
        # One file per folder, and no more tasks than there is work for. Spark disables adaptive execution, its own
        # means to this end, in streams.
        good = rows.good()
        wanted = min(-(-row_count // _ROWS_PER_TASK), good.sparkSession.sparkContext.defaultParallelism)
        good = (
            good.repartition(wanted, *(F.col(f"`{name}`") for name in rows.partitions))
            if wanted > 1
            else good.coalesce(1)
        )
        writer = good.write.partitionBy(*rows.partitions).mode("append")
        if target.rows_per_file_max:
            writer = writer.option("maxRecordsPerFile", target.rows_per_file_max)
        if target.format == "delta":
            query_id = self._make_publisher().query_id
            # Delta records the batches it has written by these options, and skips repeated ones.
            writer = writer.option("txnAppId", query_id).option("txnVersion", batch_id)
            writer.format("delta").save(as_uri(target.path))
        else:
            writer.option("compression", target.compression).parquet(as_uri(staged))
