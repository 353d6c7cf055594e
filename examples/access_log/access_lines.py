"""Lines of a web server's access log, in the common or the combined format."""

import re
from collections.abc import Iterable, Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it
from rich.table import Table

from examples.access_log.tables import bar, table

NAME = "a web server's access log"

# Written so that both Python's and Java's engine read it. Quoted parts may hold quotes behind a backslash.
_QUOTED = r'"([^"\\]*(?:\\.[^"\\]*)*)"'
_PATTERN = rf"^(\S+) \S+ (\S+) \[([^\]]+)\] {_QUOTED} (\d{{3}}) (\d+|-)(?: {_QUOTED} {_QUOTED})?\s*$"
_GROUP_COUNT = 8
_SEPARATOR = "\x01"
_TIME_FORMAT = "dd/MMM/yyyy:HH:mm:ss Z"
_TOP = 10


def matches(sample: Iterable[bytes]) -> bool:
    """Tells whether most of the lines are of this kind."""
    pattern = re.compile(_PATTERN)
    hits = [bool(pattern.match(line.decode(errors="replace"))) for line in sample if line]
    return sum(hits) * 2 > len(hits)


def parse(lines: DataFrame) -> DataFrame:
    """Adds what the lines say to `(sequence, line)`; all of it is null where a line is of another kind.

    Returns:
        `(sequence: bigint, client: string, user: string, time: timestamp, method: string, path: string,
        status: int, bytes: bigint, referrer: string, agent: string, line: string)`.
    """
    # Matched once for each line: a regexp_extract for each group would match as often as there are groups.
    groups = _SEPARATOR.join(f"${group}" for group in range(1, _GROUP_COUNT + 1))
    part = F.split(F.regexp_replace("line", _PATTERN, groups), _SEPARATOR)
    matched = lines.withColumn("part", F.when(F.size(part) == _GROUP_COUNT, part))
    request = F.split(F.col("part")[3], " ")
    return matched.select(
        "sequence",
        F.col("part")[0].alias("client"),
        _unless_dash(F.col("part")[1]).alias("user"),
        F.try_to_timestamp(F.col("part")[2], F.lit(_TIME_FORMAT)).alias("time"),
        request[0].alias("method"),
        F.split(F.get(request, F.lit(1)), r"\?")[0].alias("path"),
        F.col("part")[4].cast("int").alias("status"),
        F.col("part")[5].try_cast("bigint").alias("bytes"),
        _unless_dash(F.col("part")[6]).alias("referrer"),
        _unless_dash(F.col("part")[7]).alias("agent"),
        "line",
    )


def tables(rows: DataFrame) -> Iterator[Table]:
    """What the written rows say: status codes, the paths asked for most, and the hours of the day."""
    statuses = rows.groupBy("status").count().orderBy(F.asc_nulls_last("status")).collect()
    count = sum(requests for _, requests in statuses)
    yield table(
        "Status codes",
        ["status", "requests", "share %"],
        [(status or "other lines", requests, 100 * requests / count) for status, requests in statuses],
    )
    paths = rows.where(F.col("path").isNotNull()).groupBy("path").agg(F.count("*").alias("requests"), F.sum("bytes"))
    yield table(
        "Top paths", ["path", "requests", "bytes"], paths.orderBy(F.desc("requests"), "path").limit(_TOP).collect()
    )
    hours = (
        rows.where(F.col("time").isNotNull()).groupBy(F.hour("time").alias("hour")).count().orderBy("hour").collect()
    )
    most = max((requests for _, requests in hours), default=0)
    yield table(
        "Requests by hour of the day (UTC)",
        ["hour", "requests", ""],
        [(f"{hour:02}:00", requests, bar(requests, most)) for hour, requests in hours],
    )


def _unless_dash(column: Column) -> Column:
    return F.when(~column.isin("-", ""), column)
