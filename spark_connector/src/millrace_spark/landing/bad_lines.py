"""Writers of bad lines: to a dead-letter channel, or to a folder."""

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
"""Writes the bad lines of a batch: `(reason, channel, endpoint, sequence, headers, body, commit_time)`, the batch
number, and a folder for staged files. A batch may be written several times, of which one counts."""

ENDPOINT_HEADER = DEAD_LETTER_PREFIX + "endpoint"
"""The server of a bad line, since each server numbers its events separately."""

_DIGEST_LENGTH = 12


def channel_writer(config: LandingConfig, query_id: str) -> BadLineWriter:
    """Returns a writer to the dead-letter channel, which stores each batch once: see `dead_letter_options`."""

    def write(bad: DataFrame, batch_id: int, _staged: str) -> None:
        writer = dead_letters(bad, config.landing_name).write.format("millrace").mode("append")
        writer.options(**dead_letter_options(config, query_id, batch_id)).save()

    return write


def dead_letter_options(config: LandingConfig, query_id: str, batch_id: int) -> dict[str, str]:
    """Returns the write options for a batch of dead letters, with the stamp by which the channel recognizes a repeat.

    Dead letters are stored before their batch is committed. So the stamp also contains a digest of the settings that
    decide which lines are bad: if they change after a crash between the two, the letters of the next attempt are all
    stored. Some may be stored twice then, but none is lost.
    """
    assert config.bad_lines.channel is not None
    return {
        "endpoints": ",".join(config.bad_lines.endpoints or config.source.endpoints),
        "channel": config.bad_lines.channel,
        "producerId": f"millrace-land-{query_id}-{_parse_digest(config)}",
        "batchNumber": str(batch_id),
        # Most batches have no bad lines, and Spark repeats only the last batch; without this, a server would remember
        # every gap in the numbers.
        "batchNumbersRise": "true",
        "routing": "roundRobin",
        **config.source.security_options,
    }


def _parse_digest(config: LandingConfig) -> str:
    settings = config.model_dump(mode="json", include={"parse", "partitions"})
    # Settings such as `spark.sql.legacy.timeParserPolicy` affect how times are parsed.
    settings["spark"] = {name: value for name, value in config.spark.conf.items() if name.startswith("spark.sql.")}
    if isinstance(config.parse, JsonFormat) and config.parse.columns_file:
        settings["columns"] = Path(config.parse.columns_file).read_text(encoding="utf-8")
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:_DIGEST_LENGTH]


def folder_writer(config: LandingConfig) -> BadLineWriter:
    """Returns a writer of Parquet files, which are published together with those of the good rows."""

    def write(bad: DataFrame, _batch_id: int, staged: str) -> None:
        landed = bad.withColumn("landed_at", F.current_timestamp()).coalesce(1)
        landed.write.option("compression", config.target.compression).parquet(as_uri(staged))

    return write


def dead_letters(bad: DataFrame, landing: str) -> DataFrame:
    """Returns bad lines as events `(headers, body)`, with the reason in headers like an agent's dead letters.

    Args:
        bad: The result of `Rows.bad`.
        landing: The name of the landing, which the letters name as the sink that rejected them.
    """
    reasons = {
        DeadLetterField.REASON.header: F.col("reason"),
        DeadLetterField.TIME.header: F.date_format(F.current_timestamp(), "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"),
        DeadLetterField.SINK.header: F.lit(landing),
        DeadLetterField.CHANNEL.header: F.col("channel"),
        DeadLetterField.SEQUENCE.header: F.col("sequence").cast("string"),
        ENDPOINT_HEADER: F.col("endpoint"),
    }
    pairs = [part for name, value in reasons.items() for part in (F.lit(name), value)]
    # A replayed dead letter that is bad again gets new headers.
    own = F.map_filter("headers", lambda name, _: ~name.isin(*reasons))
    return bad.select(F.map_concat(F.coalesce(own, F.create_map()), F.create_map(*pairs)).alias("headers"), "body")
