"""The columns of `format("millrace")`, for reading and for writing."""

from dataclasses import replace

from pyspark.sql.types import BinaryType, DataType, LongType, MapType, StringType, StructField, StructType

from millrace_spark.errors import OptionError
from millrace_spark.writing.options import WriteOptions, WriteRouting

EVENT_SCHEMA = StructType(
    [
        StructField("channel", StringType()),
        StructField("endpoint", StringType()),
        StructField("sequence", LongType()),
        StructField("headers", MapType(StringType(), StringType())),
        StructField("body", BinaryType()),
    ]
)
"""One row an event."""

_DDL = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in EVENT_SCHEMA)
_TYPES: dict[str, DataType] = {field.name: field.dataType for field in EVENT_SCHEMA}


def check_schema(schema: StructType) -> None:
    """Makes sure that a user's own schema asks for columns that events have, with the types that they have.

    Raises:
        OptionError: A column is unknown, comes twice, or has another type.
    """
    seen = set()
    for field in schema:
        name = field.name.lower()
        if name not in _TYPES:
            raise OptionError(f"schema: has the column {field.name!r}; the columns of events are {_DDL}")
        if name in seen:
            raise OptionError(f"schema: has the column {field.name!r} twice; once is allowed")
        seen.add(name)
        # Only a map's nullability of values may differ: it promises more than is needed.
        if field.dataType.simpleString() != _TYPES[name].simpleString():
            raise OptionError(
                f"schema: {field.name} is {field.dataType.simpleString()}; it must be {_TYPES[name].simpleString()}. "
                "Read it as that, then cast it"
            )


_WRITE_TYPES = {
    "body": ("binary", "string"),
    "headers": ("map<string,string>",),
    "key": ("string", "binary"),
    "channel": ("string",),
}
_DROPPED = {"endpoint", "sequence"}
_ADVICE = {
    "body": "cast it, or make text of it with to_json",
    "headers": "build it with map('name', value, ...), each value cast to string",
    "key": "cast it to string",
    "channel": "cast it to string",
}


def options_for(schema: StructType, options: WriteOptions) -> WriteOptions:
    """Makes sure that rows with these columns can be written.

    Returns:
        The options, with the routing that these columns lead to.

    Raises:
        OptionError: A column is missing, unknown, comes twice, or has another type.
    """
    types = {}
    for field in schema:
        name = field.name.lower()
        if name in types:
            raise OptionError(
                f"column {field.name}: comes twice, since the case of its name says nothing; once is allowed"
            )
        types[name] = field.dataType.simpleString()
        if name not in _WRITE_TYPES and name not in _DROPPED:
            raise OptionError(
                f"column {field.name}: has no place in an event; leave it out with drop, or put it into body or "
                "headers. The columns are body, and optionally headers, key, channel"
            )
        if name in _WRITE_TYPES and types[name] not in _WRITE_TYPES[name]:
            raise OptionError(
                f"column {field.name}: is {types[name]}; it must be {' or '.join(_WRITE_TYPES[name])}; {_ADVICE[name]}"
            )
    if "body" not in types:
        raise OptionError("column body: is missing; name what is to be stored with alias('body')")
    if not options.channel and "channel" not in types:
        raise OptionError("option channel: is missing, and so is a column channel; give one of them")
    if options.routing is WriteRouting.KEY and "key" not in types:
        raise OptionError("option routing: is key, but there is no column key; add it, or take roundRobin")
    routing = options.routing or (WriteRouting.KEY if "key" in types else WriteRouting.ROUND_ROBIN)
    return replace(options, routing=routing)
