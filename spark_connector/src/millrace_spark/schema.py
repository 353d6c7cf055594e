"""The columns of `format("millrace")`."""

from pyspark.sql.types import BinaryType, DataType, LongType, MapType, StringType, StructField, StructType

from millrace_spark.errors import OptionError

EVENT_SCHEMA = StructType(
    [
        StructField("channel", StringType()),
        StructField("endpoint", StringType()),
        StructField("sequence", LongType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("body", BinaryType()),
    ]
)
"""One row per event."""

_DDL = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in EVENT_SCHEMA)
_TYPES: dict[str, DataType] = {field.name: field.dataType for field in EVENT_SCHEMA}


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
        # Only the nullability of a map's values may differ.
        if field.dataType.simpleString() != _TYPES[name].simpleString():
            raise OptionError(
                f"schema: {field.name} is {field.dataType.simpleString()}; it must be {_TYPES[name].simpleString()}. "
                "Read it with that type, then cast it"
            )
