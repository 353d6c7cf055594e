"""Where bad lines go: a dead-letter channel, or a folder."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it

from millrace.dead_letters import DEAD_LETTER_PREFIX, DeadLetterField
from millrace_spark.landing.config import LandingConfig
from millrace_spark.landing.formats import JsonFormat
from millrace_spark.landing.paths import as_uri

BadLineWriter = Callable[[DataFrame, int, str], None]
"""Writes the bad lines of a batch: `(reason, channel, endpoint, sequence, headers, body)`, the batch's number, and a
folder for its staged files. A batch may be written several times, of which one counts."""

ENDPOINT_HEADER = DEAD_LETTER_PREFIX + "endpoint"
"""The server that a bad line came from; there are several, and each counts its sequences by itself."""

_DIGEST_LENGTH = 12


def channel_writer(config: LandingConfig, query_id: str) -> BadLineWriter:
    """Writes to the dead-letter channel, each batch once: see `dead_letter_options`.

    Args:
        config: Where to.
        query_id: What Spark named the query.
    """

    def write(bad: DataFrame, batch_id: int, _staged: str) -> None:
        writer = dead_letters(bad, config.landing_name).write.format("millrace").mode("append")
        writer.options(**dead_letter_options(config, query_id, batch_id)).save()

    return write


def dead_letter_options(config: LandingConfig, query_id: str, batch_id: int) -> dict[str, str]:
    """The options of writing a batch's letters, with the stamp by which their channel knows a repeat.

    Letters are stored before their batch is decided. So the stamp says, too, what lines were taken for bad: where that
    was changed after a kill between the two, the next try's letters are others, and are all stored. Some may come twice
    then, but none is lost.
    """
    assert config.bad_lines.channel is not None
    return {
        "endpoints": ",".join(config.bad_lines.endpoints or config.source.endpoints),
        "channel": config.bad_lines.channel,
        "producerId": f"millrace-land-{query_id}-{_parse_digest(config)}",
        "batchNumber": str(batch_id),
        # Most batches have no bad line, and Spark repeats no earlier one: without it a server would remember each gap.
        "batchNumbersRise": "true",
        "routing": "roundRobin",
    }


def _parse_digest(config: LandingConfig) -> str:
    """A digest of all that says which lines are bad."""
    says = config.model_dump(mode="json", include={"parse", "partitions"})
    # Settings such as `spark.sql.legacy.timeParserPolicy` say what is a time.
    says["spark"] = {name: value for name, value in config.spark.conf.items() if name.startswith("spark.sql.")}
    if isinstance(config.parse, JsonFormat) and config.parse.columns_file:
        says["columns"] = Path(config.parse.columns_file).read_text(encoding="utf-8")
    return hashlib.sha256(json.dumps(says, sort_keys=True).encode()).hexdigest()[:_DIGEST_LENGTH]


def folder_writer(config: LandingConfig) -> BadLineWriter:
    """Writes Parquet files, which get into place with those of the good rows."""

    def write(bad: DataFrame, _batch_id: int, staged: str) -> None:
        landed = bad.withColumn("landed_at", F.current_timestamp()).coalesce(1)
        landed.write.option("compression", config.target.compression).parquet(as_uri(staged))

    return write


def dead_letters(bad: DataFrame, landing: str) -> DataFrame:
    """Bad lines as events `(headers, body)`, whose headers say why they are there, as an agent's dead letters do.

    Args:
        bad: What `Rows.bad` gives.
        landing: The landing's name, which stands in the letters as the sink that rejected them.
    """
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
