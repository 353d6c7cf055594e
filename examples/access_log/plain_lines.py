"""Lines of any log: a time in front where there is one, and words."""

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it
from rich.table import Table

from examples.access_log.tables import bar, table

NAME = "text"

_TIME = r"^\s*\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?\s*"
_LEVEL = r"\b(TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b"
_FIRST_WORD = r"^\s*([^\s:=(]+)"
_TOP = 10
_LONGEST = 3
_SHOWN_CHARACTERS = 100


def parse(lines: DataFrame) -> DataFrame:
    """Adds what the lines say to `(sequence, line)`.

    Returns:
        `(sequence: bigint, time: timestamp, level: string, first_word: string, characters: int, line: string)`.
    """
    time = F.regexp_extract("line", _TIME, 1)
    message = F.regexp_replace("line", _TIME, "")
    return lines.select(
        "sequence",
        F.try_to_timestamp(F.translate(time, "T", " "), F.lit("yyyy-MM-dd HH:mm:ss")).alias("time"),
        _unless_empty(F.regexp_extract("line", _LEVEL, 1)).alias("level"),
        _unless_empty(F.regexp_extract(message, _FIRST_WORD, 1)).alias("first_word"),
        F.char_length("line").alias("characters"),
        "line",
    )


def tables(rows: DataFrame) -> Iterator[Table]:
    """What the written rows say: levels, the first words that come most, and the longest lines."""
    levels = rows.where(F.col("level").isNotNull()).groupBy("level").count().orderBy(F.desc("count"), "level").collect()
    if levels:
        yield table("Levels", ["level", "lines"], levels)
    words = rows.where(F.col("first_word").isNotNull()).groupBy("first_word").count()
    top = words.orderBy(F.desc("count"), "first_word").limit(_TOP).collect()
    most = max((lines for _, lines in top), default=0)
    yield table("Lines begin with", ["word", "lines", ""], [(word, lines, bar(lines, most)) for word, lines in top])
    shown = F.substring(F.trim("line"), 1, _SHOWN_CHARACTERS)
    longest = rows.orderBy(F.desc("characters"), "sequence").select("sequence", "characters", shown).limit(_LONGEST)
    yield table("Longest lines", ["line", "characters", "begins"], longest.collect())


def _unless_empty(column: Column) -> Column:
    return F.when(column != "", column)
