"""The columns that can be written, and what follows from them."""

from dataclasses import replace

from pyspark.sql.types import StructType

from millrace_spark.errors import OptionError
from millrace_spark.writing.options import WriteOptions, WriteRouting

_WRITE_TYPES = {
    "body": ("binary", "string"),
    "headers": ("map<string,string>",),
    "key": ("string", "binary"),
    "channel": ("string",),
}
_DROPPED = {"endpoint", "sequence", "commit_time"}
_ADVICE = {
    "body": "cast it, or convert it to text with to_json",
    "headers": "build it with map('name', value, ...), each value cast to string",
    "key": "cast it to string",
    "channel": "cast it to string",
}


def options_for(schema: StructType, options: WriteOptions) -> WriteOptions:
    """Checks that rows with these columns can be written; returns the options with the routing that follows."""
    types = {}
    for field in schema:
        name = field.name.lower()
        if name in types:
            raise OptionError(
                f"column {field.name}: is duplicated, since column names are case-insensitive; once is allowed"
            )
        types[name] = field.dataType.simpleString()
        if name not in _WRITE_TYPES and name not in _DROPPED:
            raise OptionError(
                f"column {field.name}: has no place in an event; remove it with drop, or put it into body or "
                "headers. The columns are body, and optionally headers, key, channel"
            )
        if name in _WRITE_TYPES and types[name] not in _WRITE_TYPES[name]:
            raise OptionError(
                f"column {field.name}: is {types[name]}; it must be {' or '.join(_WRITE_TYPES[name])}; {_ADVICE[name]}"
            )
    if "body" not in types:
        raise OptionError("column body: is missing; name the column to store with alias('body')")
    if not options.channel and "channel" not in types:
        raise OptionError("option channel: is missing, and there is no column channel; set one of them")
    if options.routing is WriteRouting.KEY and "key" not in types:
        raise OptionError("option routing: is key, but there is no column key; add it, or set roundRobin")
    routing = options.routing or (WriteRouting.KEY if "key" in types else WriteRouting.ROUND_ROBIN)
    return replace(options, routing=routing)
