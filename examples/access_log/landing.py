"""Lands what a channel holds as Parquet, each event once."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it
from rich.table import Table

from examples.access_log.account import Tally
from examples.access_log.agents import CHANNEL

READER_ID = "access-log-job"


class LogKind(Protocol):
    """A module that knows one kind of lines."""

    NAME: str

    def parse(self, lines: DataFrame) -> DataFrame:
        """Turns `(sequence: bigint, line: string)` into the columns that are written; one row a line."""

    def tables(self, rows: DataFrame) -> Iterator[Table]:
        """Shows what written rows say."""


@dataclass(frozen=True)
class Landing:
    """A folder of Parquet files that grows by what comes into a channel.

    A streaming query writes them, and its checkpoint lies beside them: where it is killed, the next one goes on, and
    Spark leaves out what files the killed one had not finished.
    """

    spark: SparkSession
    folder: Path
    kind: LogKind

    @property
    def parquet(self) -> Path:
        """Where the rows are."""
        return self.folder / "parquet"

    def land(self, endpoint: str, batch_events_max: int) -> None:
        """Lands all that the channel holds now, and acknowledges what is landed.

        Args:
            endpoint: The channel's server.
            batch_events_max: The most events that one batch of the query takes.
        """
        events = (
            self.spark.readStream.format("millrace")
            .option("endpoints", endpoint)
            .option("channels", CHANNEL)
            .option("readerId", READER_ID)
            .option("maxEventsPerTrigger", batch_events_max)
            .schema("sequence bigint, body binary")
            .load()
        )
        # What is no UTF-8 is shown as such, and stops nothing.
        lines = events.select("sequence", F.make_valid_utf8(F.col("body").cast("string")).alias("line"))
        query = (
            self.kind.parse(lines)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(self.parquet))
        )
        query.awaitTermination()

    def rows(self) -> DataFrame:
        """All rows that are landed."""
        return self.spark.read.parquet(str(self.parquet))

    def tally(self) -> Tally:
        """The rows that are landed, read again; counted as `account.tally` counts the lines of the file."""
        numbered = F.concat(F.col("sequence").cast("string"), F.lit(" "), "line")
        checksum = F.coalesce(F.sum(F.crc32(numbered)), F.lit(0))
        (row,) = self.rows().agg(F.count("*").alias("count"), checksum.alias("checksum")).collect()
        return Tally(**row.asDict())


@dataclass
class Replacement:
    """A folder that was begun anew."""

    earlier: Path
    """What was there before, if anything was."""
    is_whole: bool = True
    """Whether the new one has all that it should, so that nobody needs the one before."""


@contextmanager
def replaced(folder: Path) -> Iterator[Replacement]:
    """Begins a folder anew; what was there is gone when the block succeeds, and is back when it fails.

    Where the block says that what it made is not whole, both stay: what was made shows what is wrong, and the next call
    begins it anew.
    """
    earlier = folder.with_name(f"{folder.name}.earlier")
    replacement = Replacement(earlier)
    if earlier.exists():
        # A run that was killed left it, and what it had made itself is not whole.
        shutil.rmtree(folder, ignore_errors=True)
    elif folder.exists():
        folder.rename(earlier)
    try:
        yield replacement
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        if earlier.exists():
            earlier.rename(folder)
        raise
    if replacement.is_whole:
        shutil.rmtree(earlier, ignore_errors=True)
