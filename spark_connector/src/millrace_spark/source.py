"""`spark.read.format("millrace")`."""

import os
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from millrace_spark.errors import MillraceSparkError
from millrace_spark.options import ClaimOptions, ReadOptions, parse_options
from millrace_spark.ranges import RangePartition
from millrace_spark.reader_id import reader_id_of
from millrace_spark.schema import EVENT_SCHEMA, check_schema

if TYPE_CHECKING:
    import pyarrow as pa


def register(spark: SparkSession) -> None:
    """Makes `format("millrace")` known to a session.

    Where millrace-spark is installed with pip, Spark finds it by itself. This is for a session that was begun before it
    was installed, and for Spark Connect.
    """
    spark.dataSource.register(MillraceDataSource)


class MillraceDataSource(DataSource):
    """Events of a channel, one row an event; see `millrace_spark` for how they are read and acknowledged."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        if find_spec("pyarrow") is None:
            raise MillraceSparkError(
                'format("millrace") needs pyarrow, and this Python has none; run: pip install "pyarrow>=18"'
            )
        # Made once, where load() is called, then shipped. There the parent process lives as long as the application,
        # so that all its reads renew one claim and those of another application are refused.
        self._options = parse_options(options, default_reader_id=reader_id_of(os.getppid()))

    @classmethod
    def name(cls) -> str:
        return "millrace"

    def schema(self) -> StructType:
        return EVENT_SCHEMA

    def reader(self, schema: StructType) -> "MillraceReader":
        check_schema(schema)
        return MillraceReader(self._options, schema)


class MillraceReader(DataSourceReader):
    """Claims when Spark plans, then reads each part in a task of its own."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        source = self._options.source
        if isinstance(source, ClaimOptions):
            from millrace_spark.reading import claim_all

            source = claim_all(source)
        return [part for claimed in source for part in claimed.split(self._options.events_per_partition_max)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        # Where there are no parts Spark makes one of its own, and wants no rows for it.
        if not isinstance(partition, RangePartition):
            return iter(())
        from pyspark.sql.pandas.types import to_arrow_schema

        from millrace_spark.reading import read_partition

        return read_partition(partition, to_arrow_schema(self._schema))
