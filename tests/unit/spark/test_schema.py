import pytest
from pyspark.sql.types import BinaryType, DataType, LongType, MapType, StringType, StructField, StructType

from millrace_spark import OptionError
from millrace_spark.schema import EVENT_SCHEMA, check_schema


@pytest.mark.parametrize(
    "schema",
    [
        EVENT_SCHEMA,
        StructType([StructField("BODY", BinaryType(), nullable=False), StructField("sequence", LongType())]),
        StructType([StructField("headers", MapType(StringType(), StringType(), valueContainsNull=False))]),
    ],
)
def test_check_schema_of_events_columns_is_fine(schema: StructType) -> None:
    """Columns may be omitted, reordered, nullable, and in any case."""
    check_schema(schema)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"value": BinaryType()}, "schema: has the column 'value'; the columns of events are channel string, endpoint"),
        ({"body": StringType()}, "schema: body is string; it must be binary. Read it with that type, then cast it"),
        ({"headers": MapType(StringType(), BinaryType())}, "schema: headers is map<string,binary>; it must be"),
        ({"body": BinaryType(), "Body": BinaryType()}, "schema: has the column 'Body' twice"),
    ],
)
def test_check_schema_of_other_columns_is_refused(columns: dict[str, DataType], sentence: str) -> None:
    """The error names the column and the columns of events."""
    with pytest.raises(OptionError) as refused:
        check_schema(StructType([StructField(name, data_type) for name, data_type in columns.items()]))
    assert str(refused.value).startswith(sentence)
