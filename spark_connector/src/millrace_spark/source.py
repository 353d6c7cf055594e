"""`format("millrace")`: the data source that Spark instantiates."""

import os
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType, TimestampType

from millrace_spark.errors import MillraceSparkError, OptionError
from millrace_spark.reading.bounds import Bounds, cut_ranges
from millrace_spark.reading.options import (
    BatchOptions,
    ClaimOptions,
    check_options,
    parse_batch_options,
    parse_stream_options,
    reader_id_of,
)
from millrace_spark.reading.ranges import split_among_tasks
from millrace_spark.reading.stream_reader import InvalidStreamReader, MillraceStreamReader, read_rows
from millrace_spark.workers import check_worker_python, is_local, pack
from millrace_spark.writing.sink import MillraceStreamWriter, MillraceWriter

if TYPE_CHECKING:
    import pyarrow as pa

EVENT_SCHEMA = StructType(
    [
        StructField("channel", StringType()),
        StructField("endpoint", StringType()),
        StructField("sequence", LongType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("body", BinaryType()),
        StructField("commit_time", TimestampType()),
    ]
)

_TYPES = {field.name: field.dataType.simpleString() for field in EVENT_SCHEMA}
_DDL = ", ".join(f"{name} {data_type}" for name, data_type in _TYPES.items())


def register(spark: SparkSession) -> None:
    """Registers `format("millrace")` with a session.

    Only sessions that started before millrace-spark was installed with pip need this, and Spark Connect.

    Raises:
        MillraceSparkError: Spark's workers run another Python version, or a Python without this package.
    """
    check_worker_python(spark)
    # Spark warns of a registration that replaces another. One that Spark found automatically suits only its own
    # machine: it would be started on others without the files that were sent to them.
    if not (is_local(spark) and _has_format(spark)):
        spark.dataSource.register(MillraceDataSource)


def _has_format(spark: SparkSession) -> bool:
    """Whether a local session knows the format already."""
    # PySpark has no public name for any of this.
    state: Any = spark._jsparkSession.sessionState()  # noqa: SLF001 - see above
    return bool(state.dataSourceManager().dataSourceExists(MillraceDataSource.name()))


def ship(spark: SparkSession) -> None:
    """Sends this package and the client to all executors of a session, and registers `format("millrace")` with it.

    Call it before the first read or write. The Python of the executors still needs pyarrow, grpcio and protobuf.
    """
    # Spark copies the file now, and reads it again from its path for executors that join later.
    folder = Path(tempfile.mkdtemp(prefix="millrace-spark-"))
    spark.sparkContext.addPyFile(str(pack(folder / "millrace_spark.zip")))
    # Spark would look up a format registered by name only where it is installed, not among the files sent.
    register(spark)


class MillraceDataSource(DataSource):
    """Events of channels, one row per event; `millrace_spark` describes how they are read and acknowledged."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        if find_spec("pyarrow") is None:
            raise MillraceSparkError(
                'format("millrace") needs pyarrow, and this Python has none; run: pip install "pyarrow>=18"'
            )
        # Computed in the process of load(), then pickled. Its parent lives as long as the application, so that all its
        # reads renew one claim, and reads of another application are refused.
        self._reader_id = reader_id_of(os.getppid())

    @classmethod
    def name(cls) -> str:
        return "millrace"

    def schema(self) -> StructType:
        # load() calls this, so that a mistyped option is reported there and not by the first action.
        check_options(self.options)
        return EVENT_SCHEMA

    def reader(self, schema: StructType) -> "MillraceReader":
        check_schema(schema)
        return MillraceReader(parse_batch_options(self.options, self._reader_id), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        try:
            check_schema(schema)
            return MillraceStreamReader(parse_stream_options(self.options), schema)
        except OptionError as error:
            return InvalidStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> MillraceWriter:  # noqa: FBT001 - Spark's signature
        return MillraceWriter.planned(self.options, schema, is_overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's signature
    ) -> MillraceStreamWriter:
        return MillraceStreamWriter.planned(self.options, schema, is_overwrite=overwrite)


def check_schema(schema: StructType) -> None:
    """Checks that the columns of a user's schema are columns of events, with their types."""
    seen = set()
    for field in schema:
        name = field.name.lower()
        if name not in _TYPES:
            raise OptionError(f"schema: has the column {field.name!r}; the columns of events are {_DDL}")
        if name in seen:
            raise OptionError(f"schema: has the column {field.name!r} twice; once is allowed")
        seen.add(name)
        # The nullability of a map's values may differ.
        if (data_type := field.dataType.simpleString()) != _TYPES[name]:
            raise OptionError(
                f"schema: {field.name} is {data_type}; it must be {_TYPES[name]}. Read it with that type, then cast it"
            )


class MillraceReader(DataSourceReader):
    """Claims the channels when Spark plans the read; each task then reads one partition."""

    def __init__(self, options: BatchOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        options, tasks = self._options, self._options.tasks
        ranges = options.source
        if isinstance(ranges, ClaimOptions):
            from millrace_spark.reading.tasks import bounds_since, claim_all

            ranges = claim_all(ranges)
            starting = options.starting
            if not isinstance(starting, Bounds):
                starting = bounds_since(starting, ranges, tasks.security)
            ranges = cut_ranges(ranges, starting, options.ending, fail_on_data_loss=tasks.fail_on_data_loss)
        return split_among_tasks(ranges, options.partitions.events_max, options.partitions.count_min)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return read_rows(partition, self._schema, self._options.tasks)
