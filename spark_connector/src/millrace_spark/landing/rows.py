"""Events become rows: what was parsed, what else is wanted, and the bad ones with their reason."""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it

from millrace_spark.errors import OptionError
from millrace_spark.landing.config import EVENT_COLUMNS, LandingConfig
from millrace_spark.landing.layout import header_value, partition_columns, row_time
from millrace_spark.landing.parsers import parse_lines

REASON = "_millrace_reason"
"""Why a row is a bad line; null where it is none."""

EVENT = "_millrace_event"
"""The event of a bad line: `struct<channel, endpoint, sequence, headers, body>`; null where a row is a good one."""


@dataclass(frozen=True)
class Rows:
    """What became of events.

    Attributes:
        frame: One row an event: columns of good rows, `REASON` and `EVENT`.
        partitions: The columns that folders are named after.
    """

    frame: DataFrame
    partitions: tuple[str, ...]

    def good(self) -> DataFrame:
        """Rows that are landed."""
        return self.frame.where(F.col(REASON).isNull()).drop(REASON, EVENT)

    def bad(self) -> DataFrame:
        """Events that cannot be parsed: `(reason, channel, endpoint, sequence, headers, body)`."""
        return self.frame.where(F.col(REASON).isNotNull()).select(F.col(REASON).alias("reason"), f"{EVENT}.*")


def rows_of(events: DataFrame, config: LandingConfig) -> Rows:
    """Turns events into rows.

    Args:
        events: One row an event, with all columns of `format("millrace")`.
        config: What is wanted.

    Raises:
        OptionError: Columns are wanted that there are not, or two of one name.
    """
    parsed = parse_lines(events, config.parse)
    values = dict(parsed.fields)
    if problem := config.problem_of_columns(values):
        raise OptionError(problem)
    types = {field.name: field.dataType for field in parsed.frame.select(_named(values)).schema}
    reason = parsed.reason
    time = F.lit(None).cast("timestamp")
    if config.partitions.needs_time:
        time = row_time(config.partitions, types, values)
        if config.partitions.no_time == "bad":
            reason = F.coalesce(reason, F.when(time.isNull(), F.lit("has no time, see partitions.time")))
        time = F.coalesce(time, F.current_timestamp())
    partitions = partition_columns(config.partitions, time, values)
    columns = [
        *values.items(),
        *((config.target.event_column_prefix + name, F.col(name)) for name in config.target.event_columns),
        *((name, header_value(name)) for name in config.target.header_columns),
    ]
    # A partition that is a parsed column is that column; Spark leaves it out of the files.
    columns += [(name, column) for name, column in partitions.items() if name not in values]
    event = F.when(reason.isNotNull(), F.struct(*EVENT_COLUMNS))
    frame = parsed.frame.select(*_named(dict(columns)), reason.alias(REASON), event.alias(EVENT))
    return Rows(frame, tuple(partitions))


def _named(columns: dict[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]
