"""Runs a landing from start to end."""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millrace_spark.errors import MillraceSparkError, OptionError, format_error
from millrace_spark.landing.bad_lines import channel_writer, folder_writer
from millrace_spark.landing.batch_lander import BAD_LINES, ROWS, BatchLander, LandingTotals
from millrace_spark.landing.compaction import CompactionTotals, Compactor, spark_merger
from millrace_spark.landing.config import LandingConfig
from millrace_spark.landing.hadoop_storage import storage_for
from millrace_spark.landing.local_storage import check_same_disk
from millrace_spark.landing.paths import as_uri, is_local
from millrace_spark.landing.publication import Publisher, finish_all, sync_checkpoint
from millrace_spark.landing.rows import rows_of
from millrace_spark.landing.storage import StorageError
from millrace_spark.listener import shard_reports
from millrace_spark.source import EVENT_SCHEMA


def source_options(config: LandingConfig) -> dict[str, str]:
    """Returns the options of the streaming read."""
    source = config.source
    options: dict[str, object] = {
        "endpoints": ",".join(source.endpoints),
        "channels": ",".join(source.channels),
        "readerId": config.landing_name,
        "startingSequences": None if source.starting_timestamp else source.starting_sequences,
        "startingTimestamp": source.starting_timestamp,
        "maxEventsPerTrigger": source.events_per_batch_max,
        "maxBytesPerTrigger": source.bytes_per_batch_max,
        "minEventsPerTrigger": source.events_per_batch_min if config.run.follow else None,
        "failOnDataLoss": source.fail_on_data_loss,
        "takeover": source.takeover,
        "leaseSeconds": source.lease_seconds,
        "retrySeconds": source.retry_seconds,
        **source.security_options,
    }
    if options["minEventsPerTrigger"] is not None:
        options["maxTriggerDelay"] = f"{source.batch_delay_seconds_max}s"
    return {name: _shown(value) for name, value in options.items() if value is not None}


def lag_of(progress: Mapping[str, object] | None) -> int | None:
    """Returns the number of events in the channels that are not in a batch; None before the first progress."""
    sources = progress.get("sources") if progress else None
    if not isinstance(sources, list) or not sources:
        return None
    latest = sources[0].get("latestOffset")
    reports = list(shard_reports(latest if isinstance(latest, str) else json.dumps(latest)))
    return sum(int(report.figures["lag"]) for report in reports) if reports else None


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_POLL_SECONDS = 0.25


@dataclass
class LandingState:
    """The state of a landing, which the display reads while it runs."""

    phase: str = "starting"
    totals: LandingTotals = field(default_factory=LandingTotals)
    compaction: CompactionTotals = field(default_factory=CompactionTotals)
    lag: int | None = None
    """Events in the channels that are not landed; None if unknown."""
    swaps_finished: int = 0


def check_package(config: LandingConfig) -> None:
    """Checks that the package that writes the target's format is installed."""
    if config.target.format == "delta" and find_spec("delta") is None:
        raise OptionError(
            'target.format: is "delta", which needs the package delta-spark; run: pip install delta-spark, in the '
            'version for this Spark, or set "parquet"'
        )


class Landing:
    """Lands channels until all events that were there at the start are landed, or until it is stopped."""

    def __init__(
        self,
        config: LandingConfig,
        spark: SparkSession,
        is_stopping: threading.Event,
        on_progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config
        self._spark = spark
        self._is_stopping = is_stopping
        self._on_progress = on_progress
        self._work = config.work
        self._storage = storage_for(spark, config.target.path, self._work.path, config.bad_lines_path)
        self._publisher: Publisher | None = None
        self._lander = BatchLander(config, self._publisher_now, self._bad_line_writer, is_stopping)
        self._compactor = Compactor(
            self._storage,
            config.target.path,
            self._work,
            config.compaction,
            spark_merger(spark, config.target.compression),
        )
        self.state = LandingState(totals=self._lander.totals, compaction=self._compactor.totals)
        self._compacted_at = time.monotonic()

    def run(self) -> None:
        """Runs the landing.

        Raises:
            OptionError: The configuration does not fit the data.
            MillraceSparkError: A server is unreachable or refuses, or files cannot be written. A restart continues.
        """
        try:
            # Before anything is claimed, so that a wrong schema or column does not block other readers.
            rows_of(self._spark.createDataFrame([], EVENT_SCHEMA), self._config)
            if is_local(self._work.path):
                check_same_disk(self._work.path, self._config.target.path, self._config.bad_lines_path)
            self.state.swaps_finished = self._compactor.recover()
            finish_all(self._storage, self._work)
            if self._is_stopping.is_set():
                return
            query = self._start()
            try:
                self._watch(query)
            finally:
                with suppress(Py4JError, PySparkException):
                    query.stop()
                    self._update_lag(query)
                sync_checkpoint(self._storage, self._work)
            if not self._is_stopping.is_set():
                self._compact_now()
        except StorageError as error:
            raise MillraceSparkError(str(error)) from error
        except (PySparkException, Py4JError) as error:
            raise MillraceSparkError(format_error(error)) from error

    def _start(self) -> StreamingQuery:
        self.state.phase = "connecting"
        run = self._config.run
        events = self._spark.readStream.format("millrace").options(**source_options(self._config)).load()
        writer = events.writeStream.queryName(self._config.landing_name).foreachBatch(self._lander)
        writer = writer.option("checkpointLocation", as_uri(self._work.checkpoint))
        if run.follow:
            writer = writer.trigger(processingTime=f"{round(run.trigger_seconds * 1000)} milliseconds")
        else:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def _watch(self, query: StreamingQuery) -> None:
        is_over = False
        while not is_over and not self._is_stopping.is_set():
            is_over = self._poll(query)
            if not is_over and self._is_compaction_due():
                self._compact_now()
        if self._is_stopping.is_set():
            self._end()
        if (failure := self._failure(query)) and not self._is_stopping.is_set():
            raise failure

    def _poll(self, query: StreamingQuery) -> bool:
        """Waits for one interval; returns whether the query has ended."""
        self._is_stopping.wait(_POLL_SECONDS)
        is_over = not query.isActive
        self._update_lag(query)
        waits = "waiting for events" if self.state.totals.batches or self.state.lag is not None else "connecting"
        self.state.phase = "landing a batch" if self._lander.is_busy else waits
        self._on_progress()
        return is_over

    def _update_lag(self, query: StreamingQuery) -> None:
        lag = lag_of(query.lastProgress)
        self.state.lag = self.state.lag if lag is None else lag

    def _end(self) -> None:
        """Waits for the current batch; no further one begins."""
        is_busy = self._lander.is_busy
        self.state.phase = "stopping after this batch, Ctrl-C stops at once" if is_busy else "stopping"
        give_up = time.monotonic() + self._config.run.grace_seconds
        while self._lander.is_busy and time.monotonic() < give_up:
            time.sleep(_POLL_SECONDS)
            self._on_progress()
        # Spark commits the batch once foreachBatch returns; after a short wait, the next start need not repeat it.
        time.sleep(_POLL_SECONDS)

    def _failure(self, query: StreamingQuery) -> Exception | None:
        if self._lander.failure is not None:
            failure = self._lander.failure
            return failure if isinstance(failure, MillraceSparkError) else MillraceSparkError(format_error(failure))
        error = query.exception()
        return MillraceSparkError(format_error(error)) if error is not None else None

    def _is_compaction_due(self) -> bool:
        settings = self._config.compaction
        pause_seconds = max(settings.quiet_seconds, self._config.run.trigger_seconds)
        return settings.enabled and time.monotonic() - self._compacted_at >= pause_seconds

    def _compact_now(self) -> None:
        if not self._config.compaction.enabled or self._config.target.format == "delta":
            return
        with self._lander.folder_in_use:
            self.state.phase = "compacting"
            self._on_progress()
            self._compactor.compact(self._is_stopping.is_set)
            self._compacted_at = time.monotonic()

    def _publisher_now(self) -> Publisher:
        if self._publisher is None:
            # Spark writes it before the first batch. An id of our own would outlive a removed checkpoint.
            stored = json.loads(self._storage.read(f"{self._work.checkpoint}/metadata"))
            self._publisher = Publisher(
                storage=self._storage,
                work=self._work,
                query_id=stored["id"],
                targets={ROWS: self._config.target.path, BAD_LINES: self._config.bad_lines_path},
                prefix=self._config.target.file_prefix,
            )
        return self._publisher

    def _bad_line_writer(self) -> Callable[..., None]:
        if self._config.bad_lines.channel is None:
            return folder_writer(self._config)
        return channel_writer(self._config, self._publisher_now().query_id)
