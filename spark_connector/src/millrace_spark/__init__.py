"""Reads Millrace channels in Spark, and writes to them.

As a stream, exactly once:

    events = (
        spark.readStream.format("millrace")
        .option("endpoints", "mill-1:7070,mill-2:7070")
        .option("channels", "orders")
        .option("readerId", "landing")
        .load()
    )
    writer = events.writeStream.format("parquet").option("path", "landed").option("checkpointLocation", "checkpoint")
    query = writer.trigger(availableNow=True).start()

One row per event: `(channel: string, endpoint: string, sequence: bigint, headers: map<string, string>, body: binary,
commit_time: timestamp)`.
A schema such as `.schema("sequence bigint, body binary")` selects or reorders columns. `OPTIONS` lists all options.
While the query runs it holds a claim on each channel, so that no other reader consumes from it. Events are removed once
Spark has committed their micro-batch, and a restart with the same checkpoint reads exactly the others. Stopping the
query releases the channels. Progress is in `query.lastProgress["sources"][0]["latestOffset"]`, described in
`millrace_spark.reading.offsets`. Triggers: processing time, availableNow, once; Spark supports continuous triggers for
sources in Java only.

As a batch, without consuming:

    events = spark.read.format("millrace").option("endpoints", "127.0.0.1:7070").option("channels", "orders").load()

When Spark plans the read, which may be once for all actions on a DataFrame, the range is fixed, from the oldest event
to the newest or by `startingSequences` and `endingSequences`, and the channel is claimed on each endpoint, so that no
other reader consumes events that tasks are reading. The claim ends automatically a few seconds after the last read
(`leaseSeconds`); other readers get an error until then. If others have consumed the oldest events between two actions,
the second one fails; events that they took from the middle are missing silently.

As a batch, consuming exactly the events that were read:

    with millrace_spark.claim_ranges("127.0.0.1:7070", "orders", reader_id="nightly") as claimed:
        claimed.load(spark).write.mode("append").parquet("orders")
        claimed.acknowledge()

`claim_ranges` claims the channels and fixes the range on each endpoint. Every action on the result of `load` reads
exactly that range, however often Spark plans or repeats it, and whatever arrives in the channel in the meantime. So the
acknowledged events are those that were written, and later events wait for the next claim. The claim is renewed while
the block runs, however long the job takes, and released at its end. A job that fails leaves the block before the
acknowledgement: nothing is consumed, and the next run reads the same events again. If the claim is lost (another reader
took it over, this reader started elsewhere, or the server was unreachable for longer than the lease), reading and
acknowledging fail.

Acknowledge after the write is done, never before: a write that is only planned has read nothing. With
`ack="onSuccess"`, the end of the block acknowledges unless it raises. Several endpoints are acknowledged separately; if
one is unreachable, repeat `acknowledge`.

Writing, as a batch or a stream:

    rows.write.format("millrace").options(endpoints="127.0.0.1:7070", channel="orders").mode("append").save()
    rows.writeStream.format("millrace").options(endpoints=..., channel=..., checkpointLocation=...).start()

The columns are `body` (binary or string) and optionally `headers` (`map<string, string>`), `key` (chooses one of
several servers) and `channel` (if the option of that name is not set). `WRITE_OPTIONS` lists all options. A batch is
written to a channel as a whole or not at all, and a batch of a stream once, however often Spark repeats it.

Spark finds `format("millrace")` itself if this package is installed; otherwise call `register(spark)`.
"""

from millrace_spark.errors import DataLossError, MillraceSparkError, OptionError
from millrace_spark.java import ensure_java
from millrace_spark.listener import PrometheusListener
from millrace_spark.reading.claims import ClaimedRanges, claim_ranges
from millrace_spark.reading.options import OPTIONS
from millrace_spark.reading.ranges import ClaimedRange
from millrace_spark.source import MillraceDataSource, register, ship
from millrace_spark.writing.options import WRITE_OPTIONS


def __dir__() -> list[str]:
    """Returns the public names only, for tab completion."""
    return list(__all__)


__all__ = [
    "OPTIONS",
    "WRITE_OPTIONS",
    "ClaimedRange",
    "ClaimedRanges",
    "DataLossError",
    "MillraceDataSource",
    "MillraceSparkError",
    "OptionError",
    "PrometheusListener",
    "claim_ranges",
    "ensure_java",
    "register",
    "ship",
]
