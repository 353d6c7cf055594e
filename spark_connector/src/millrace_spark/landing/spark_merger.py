"""Merges files with Spark."""

from collections.abc import Sequence

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from millrace_spark.landing.compaction import MergeError, Merger
from millrace_spark.landing.failures import sentence_of
from millrace_spark.landing.places import as_uri


def spark_merger(spark: SparkSession, compression: str) -> Merger:
    """What merges Parquet files: their rows in one file, which has the columns of all of them.

    Args:
        spark: Who reads and writes.
        compression: How the merged file is compressed.
    """

    def merge(files: Sequence[str], staged: str) -> None:
        try:
            merged = _read(spark, files)
            # One task, so one file.
            merged.coalesce(1).write.option("compression", compression).parquet(as_uri(staged))
            counts = [_read(spark, paths).count() for paths in (files, [staged])]
        except (PySparkException, Py4JError) as error:
            # Such as a column that is text in one file and a number in another.
            raise MergeError(sentence_of(error)) from error
        if counts[0] != counts[1]:
            raise MergeError(f"they hold {counts[0]:,} rows, and one file of them {counts[1]:,}")

    return merge


def _read(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    # Columns that came or went with a change of the configuration are kept.
    return spark.read.option("mergeSchema", value=True).parquet(*map(as_uri, paths))
