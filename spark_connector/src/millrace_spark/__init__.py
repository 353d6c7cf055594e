"""Spark reads Millrace's channels, and writes into them.

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

One row an event: `(channel: string, endpoint: string, sequence: bigint, headers: map<string, string>, body: binary)`.
A schema of your own, `.schema("sequence bigint, body binary")`, leaves columns out or orders them anew. `OPTIONS` tells
all options. While the query runs it holds a claim on each channel, so that nobody else consumes from it; events are
removed once Spark has logged their micro-batch as done, and a restart with the same checkpoint reads exactly what was
not. Stopping the query frees the channels. Progress is in `query.lastProgress["sources"][0]["latestOffset"]`, as
`millrace_spark.reading.offsets` tells. Triggers: processing time, availableNow, once; continuous ones Spark has for
sources in Java only.

Looking, without consuming anything:

    events = spark.read.format("millrace").option("endpoints", "127.0.0.1:7070").option("channels", "orders").load()

When Spark plans the read, which may be once for all actions on a DataFrame, the range is fixed, from the oldest event
to the newest or as `startingSequences` and `endingSequences` say, and the channel is claimed on each endpoint, so that
nobody consumes what the tasks are reading in parallel. A few seconds after the last read (`leaseSeconds`) the claim
ends by itself; whoever takes from the channel before that is told who holds it. Where others have consumed the oldest
events between two actions, the second one says so; what they took out of the middle is left out without a word.

Consuming in a batch: events are acknowledged, which removes them, only when you say so, and then exactly those that you
have read:

    with millrace_spark.claim_ranges("127.0.0.1:7070", "orders", reader_id="nightly") as claimed:
        claimed.load(spark).write.mode("append").parquet("orders")
        claimed.acknowledge()

`claim_ranges` claims the channels and fixes the range on each endpoint. Every action on what `load` returns reads
exactly that range, however often Spark plans or repeats it and whatever comes into the channel meanwhile: so what is
acknowledged is what was written, and events that come later wait for the next claim. The claim is kept alive while the
block runs, however long the job takes, and released at its end. A job that fails leaves the block before anything is
acknowledged: nothing is consumed, and the next run reads the same again. If the claim is lost all the same (another
reader took it over, this one began anew elsewhere, or the server could not be reached for longer than the lease),
reading and acknowledging are refused.

Acknowledge after the write is done, never before: a write that is only planned has read nothing. With `ack="onSuccess"`
the end of the block does it, where it is reached without an exception. With several endpoints each is acknowledged by
itself; where one cannot be reached, repeat `acknowledge`.

Writing, in a batch or as a stream:

    rows.write.format("millrace").options(endpoints="127.0.0.1:7070", channel="orders").mode("append").save()
    rows.writeStream.format("millrace").options(endpoints=..., channel=..., checkpointLocation=...).start()

The columns are `body` (binary or string) and, where there are any, `headers` (map<string, string>), `key` (says to
which of several servers a row goes) and `channel` (where the option of that name is not given). `WRITE_OPTIONS` tells
all options. A batch is in a channel wholly or not at all, and a stream's once, however often Spark repeats it.

Spark finds `format("millrace")` by itself where this package is installed; `register(spark)` makes it known elsewhere.
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
    """What tab completion offers: not the modules that all this is made of."""
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
