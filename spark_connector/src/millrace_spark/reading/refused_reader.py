"""What becomes of a stream whose options or schema are wrong."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from millrace_spark.errors import OptionError

if TYPE_CHECKING:
    import pyarrow as pa


class RefusedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Says what is wrong as soon as Spark asks it for an offset, with which every query begins.

    Where a source has raised it instead of giving Spark a reader, Spark ends with an error of its own, that there is
    no reader which it could stop.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        # Where this fails Spark stops none of the query's sources.
        pass

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        self._refuse()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        del start, limit
        self._refuse()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        del start, end
        self._refuse()

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        del partition
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise self._error
