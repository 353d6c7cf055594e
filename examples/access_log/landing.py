"""Lands what a channel holds as Parquet."""

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it
from pyspark.sql.types import StructType
from rich.table import Table

from examples.access_log.account import Tally
from millrace_spark import ClaimedRanges


class LogKind(Protocol):
    """A module that knows one kind of lines."""

    NAME: str

    def parse(self, lines: DataFrame) -> DataFrame:
        """Turns `(sequence: bigint, line: string)` into the columns that are written; one row a line."""

    def tables(self, rows: DataFrame) -> Iterator[Table]:
        """Shows what written rows say."""


class Landing:
    """A folder of Parquet files that grows by one claim's events at a time.

    Attributes:
        partition_count: In how many partitions Spark has read so far, each a task that pulls its own range.
    """

    def __init__(self, spark: SparkSession, folder: Path, kind: LogKind) -> None:
        """Begins with no rows.

        Args:
            spark: Who reads and writes.
            folder: Where the rows go.
            kind: What the lines are.
        """
        self.partition_count = 0
        self._spark = spark
        self._folder = folder
        self._kind = kind
        self._schema: StructType | None = None

    def land(self, claimed: ClaimedRanges) -> Tally:
        """Reads what was claimed, parses it and writes it; returns the rows that Spark read."""
        count = sum(found.next_sequence - found.first_sequence for found in claimed.ranges)
        share = math.ceil(count / self._spark.sparkContext.defaultParallelism)
        self.partition_count += sum(len(list(found.split(share))) for found in claimed.ranges)
        schema = "sequence bigint, body binary"
        events = claimed.load(self._spark, schema=schema, max_events_per_partition=share)
        # What is no UTF-8 is shown as such, and stops nothing.
        lines = events.select("sequence", F.make_valid_utf8(F.col("body").cast("string")).alias("line"))
        read = Observation()
        parsed = self._kind.parse(lines.observe(read, *_tally_columns()))
        parsed.write.mode("append").parquet(str(self._folder))
        self._schema = parsed.schema
        return Tally(**read.get)

    def written(self) -> Tally:
        """The rows that are on disk, read again."""
        (row,) = self.rows().agg(*_tally_columns()).collect()
        return Tally(**row.asDict())

    def rows(self) -> DataFrame:
        """All rows that are on disk."""
        reader = self._spark.read
        # Known where something was landed: it spares Spark a look into the files.
        return (reader.schema(self._schema) if self._schema else reader).parquet(str(self._folder))


def _tally_columns() -> tuple[Column, Column]:
    """The fields of a tally, as `tally` has them of the file."""
    numbered = F.concat(F.col("sequence").cast("string"), F.lit(" "), "line")
    return F.count("*").alias("count"), F.coalesce(F.sum(F.crc32(numbered)), F.lit(0)).alias("checksum")


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Gives a new folder that takes the place of an old one when the block succeeds, and vanishes when it fails."""
    fresh = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        yield fresh
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
