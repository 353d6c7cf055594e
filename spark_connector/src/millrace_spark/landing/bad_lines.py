"""Where bad lines go: a dead-letter channel, or a folder."""

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it

from millrace.dead_letters import DEAD_LETTER_PREFIX, DeadLetterField
from millrace_spark.landing.config import LandingConfig
from millrace_spark.landing.places import as_uri

BadLineWriter = Callable[[DataFrame, int, str], None]
"""Writes the bad lines of a batch: `(reason, channel, endpoint, sequence, headers, body)`, the batch's number, and a
folder for its staged files. A batch may be written several times, of which one counts."""

ENDPOINT_HEADER = DEAD_LETTER_PREFIX + "endpoint"
"""The server that a bad line came from; there are several, and each counts its sequences by itself."""


def channel_writer(config: LandingConfig, landing: str, query_id: str) -> BadLineWriter:
    """Writes to the dead-letter channel, each batch once: it is stamped with the query's id and the batch's number.

    Args:
        config: Where to.
        landing: The landing's name, which stands in the letters as the sink that rejected them.
        query_id: What Spark named the query.
    """
    endpoints = config.bad_lines.endpoints or config.source.endpoints
    assert config.bad_lines.channel is not None

    def write(bad: DataFrame, batch_id: int, _staged: str) -> None:
        writer = as_letters(bad, landing).write.format("millrace").mode("append")
        writer.options(
            endpoints=",".join(endpoints),
            channel=config.bad_lines.channel,
            producerId=f"millrace-land-{query_id}",
            batchNumber=str(batch_id),
            routing="roundRobin",
        ).save()

    return write


def folder_writer(config: LandingConfig) -> BadLineWriter:
    """Writes Parquet files, which get into place with those of the good rows."""

    def write(bad: DataFrame, _batch_id: int, staged: str) -> None:
        landed = bad.withColumn("landed_at", F.current_timestamp()).coalesce(1)
        landed.write.option("compression", config.target.compression).parquet(as_uri(staged))

    return write


def as_letters(bad: DataFrame, landing: str) -> DataFrame:
    """Bad lines as events `(headers, body)`, whose headers say why they are there, as an agent's dead letters do."""
    told = {
        DeadLetterField.REASON.header: F.col("reason"),
        DeadLetterField.TIME.header: F.date_format(F.current_timestamp(), "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"),
        DeadLetterField.SINK.header: F.lit(landing),
        DeadLetterField.CHANNEL.header: F.col("channel"),
        DeadLetterField.SEQUENCE.header: F.col("sequence").cast("string"),
        ENDPOINT_HEADER: F.col("endpoint"),
    }
    pairs = [part for name, value in told.items() for part in (F.lit(name), value)]
    # A letter that was replayed and is bad again is told anew.
    own = F.map_filter("headers", lambda name, _: ~name.isin(*told))
    return bad.select(F.map_concat(F.coalesce(own, F.create_map()), F.create_map(*pairs)).alias("headers"), "body")
