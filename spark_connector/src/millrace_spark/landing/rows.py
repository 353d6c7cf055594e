"""Converts events to rows: parsed columns, partition columns, and bad lines with their reason."""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it
from pyspark.sql.types import DataType, DateType, NumericType, StringType, TimestampNTZType, TimestampType

from millrace_spark.errors import OptionError
from millrace_spark.landing.config import EVENT_COLUMNS, HEADER, LANDING_TIME, LandingConfig, PartitionConfig
from millrace_spark.landing.parsers import parse_lines

_DIGITS = r"\A-?[0-9]{1,18}\z"
_PATTERNS = {"year": "yyyy", "month": "MM", "day": "dd", "date": "yyyy-MM-dd", "hour": "HH", "minute": "mm"}


def header_value(name: str) -> Column:
    """Returns a header of an event; null if it is missing."""
    return F.col("headers")[name]


def row_time(partitions: PartitionConfig, types: dict[str, DataType], values: dict[str, Column]) -> Column:
    """Returns the time of a row, from its column or header; null if that is not a time."""
    name = partitions.time or "time"
    if name == LANDING_TIME:
        return F.current_timestamp()
    if name.startswith(HEADER):
        return _time_of(header_value(name.removeprefix(HEADER)), StringType(), partitions)
    if name not in types:
        raise OptionError(
            f"partitions.time: {name!r} is not a parsed column; the columns are {', '.join(types)}. "
            f"Name one of them, headers.NAME, or {LANDING_TIME}"
        )
    return _time_of(values[name], types[name], partitions)


def _time_of(value: Column, kind: DataType, partitions: PartitionConfig) -> Column:
    text = value.cast("string")
    if partitions.time_format == "epoch_seconds":
        return F.timestamp_seconds(text.try_cast("double"))
    if partitions.time_format == "epoch_milliseconds":
        return F.timestamp_millis(text.try_cast("bigint"))
    if isinstance(kind, TimestampType | TimestampNTZType | DateType):
        return value.cast("timestamp")
    if partitions.time_format != "auto":
        return F.try_to_timestamp(text, F.lit(partitions.time_format))
    if isinstance(kind, NumericType):
        return F.timestamp_millis(value.try_cast("bigint"))
    if isinstance(kind, StringType):
        is_number = text.rlike(_DIGITS)
        return F.when(is_number, F.timestamp_millis(text.try_cast("bigint"))).otherwise(F.try_to_timestamp(text))
    raise OptionError(
        f"partitions.time: {partitions.time or 'time'} is {kind.simpleString()}; it must be a timestamp, text or number"
    )


def partition_columns(partitions: PartitionConfig, time: Column, values: dict[str, Column]) -> dict[str, Column]:
    """Returns the partition columns, outermost first; `find_column_problem` has checked them."""
    local = _rounded(F.from_utc_timestamp(time, partitions.time_zone), partitions.round_minutes)
    found = {}
    for name in partitions.by:
        if name.startswith(HEADER):
            found[name.removeprefix(HEADER)] = header_value(name.removeprefix(HEADER))
        else:
            found[name] = values[name] if name in values else _part(name, local)
    return found


def _part(name: str, local: Column) -> Column:
    if name == "week":
        year, week = F.extract(F.lit("YEAROFWEEK"), local), F.weekofyear(local)
        return F.format_string("%04d-W%02d", year, week)
    return F.date_format(local, _PATTERNS[name])


def _rounded(local: Column, minutes: int) -> Column:
    if minutes == 1:
        return local
    since_midnight = F.hour(local) * 60 + F.minute(local)
    midnight = F.date_trunc("day", local)
    return midnight + F.make_dt_interval(mins=F.floor(since_midnight / minutes) * minutes)


REASON = "_millrace_reason"
"""The reason why a row is a bad line; null for a good row."""

EVENT = "_millrace_event"
"""The event of a bad line: `struct<channel, endpoint, sequence, headers, body, commit_time>`; null for a good row."""


@dataclass(frozen=True)
class Rows:
    """The rows of events.

    Attributes:
        frame: One row per event, with the columns of good rows, `REASON` and `EVENT`.
        partitions: The names of the partition columns.
    """

    frame: DataFrame
    partitions: tuple[str, ...]

    def good(self) -> DataFrame:
        return self.frame.where(F.col(REASON).isNull()).drop(REASON, EVENT)

    def bad(self) -> DataFrame:
        """Returns the bad lines: `(reason, channel, endpoint, sequence, headers, body, commit_time)`."""
        return self.frame.where(F.col(REASON).isNotNull()).select(F.col(REASON).alias("reason"), f"{EVENT}.*")


def rows_of(events: DataFrame, config: LandingConfig) -> Rows:
    """Converts events to rows.

    Raises:
        OptionError: The configuration names columns that do not exist, or has duplicate names.
    """
    parsed = parse_lines(events, config.parse)
    values = dict(parsed.fields)
    if problem := config.find_column_problem(values):
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
    # A partition that is a parsed column is that column; Spark omits it from the files.
    columns += [(name, column) for name, column in partitions.items() if name not in values]
    event = F.when(reason.isNotNull(), F.struct(*EVENT_COLUMNS))
    frame = parsed.frame.select(*_named(dict(columns)), reason.alias(REASON), event.alias(EVENT))
    return Rows(frame, tuple(partitions))


def _named(columns: dict[str, Column]) -> list[Column]:
    return [column.alias(name) for name, column in columns.items()]
