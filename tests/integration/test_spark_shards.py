"""A query over three channels on two servers: parallel reads, limits and progress."""

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it

import millrace_client as millrace
from millrace_spark import PrometheusListener
from tests.conftest import StartMillraced
from tests.waiting import wait_until

pytestmark = pytest.mark.spark

_CHANNELS = [f"load-{number}" for number in range(3)]
_BUSY = _CHANNELS[0]
_BUSY_EVENTS, _EVENTS = 150, 40
_SERVERS = 2
_TOTAL = _SERVERS * (_BUSY_EVENTS + (len(_CHANNELS) - 1) * _EVENTS)
_LIMIT = 220
_WAIT_SECONDS_MAX = 60.0
_MEETING_SECONDS_MAX = 30.0


def fill(endpoint: str) -> None:
    with millrace.connect(endpoint) as client:
        for name in _CHANNELS:
            config = millrace.ChannelConfig(capacity=_BUSY_EVENTS, transaction_capacity=_BUSY_EVENTS)
            client.admin.create_channel(name, config)
            count = _BUSY_EVENTS if name == _BUSY else _EVENTS
            client.channel(name).append([b"%d" % number for number in range(count)])


def meet(folder: str, partition: int, sequence: int) -> float:
    """Records the time of a task's first event; the first two tasks wait for each other."""
    came = time.time()
    here = f"{folder}/{partition}"
    if not os.path.exists(here) and len(os.listdir(folder)) < 2:  # noqa: PTH110, PTH208 - once for each event
        open(here, "w").close()  # noqa: PTH123 - likewise
        give_up = time.monotonic() + _MEETING_SECONDS_MAX
        while len(os.listdir(folder)) < 2 and time.monotonic() < give_up:  # noqa: PTH208 - likewise
            time.sleep(0.005)
    return came


@contextmanager
def listening(spark: SparkSession) -> Iterator[PrometheusListener]:
    listener = PrometheusListener()
    spark.streams.addListener(listener)
    with ExitStack() as ending:
        ending.callback(spark.streams.removeListener, listener)
        yield listener


def event_counts(end_offset: str) -> Mapping[str, int]:
    """Returns the number of events of each shard in a micro-batch."""
    return {shard: offset["to"] - offset["from"] for shard, offset in json.loads(end_offset).items()}


def test_query_over_many_shards_is_fair_exact_and_parallel(
    spark: SparkSession, start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """All batches except the last have the maximum size and a share of each shard, and tasks run in parallel."""
    endpoints = [start_millraced().grpc for _ in range(_SERVERS)]
    for endpoint in endpoints:
        fill(endpoint)
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    stream = spark.readStream.format("millrace").option("endpoints", ",".join(endpoints)).option("channels", "load-*")
    events = stream.option("maxEventsPerTrigger", _LIMIT).load()
    came = F.udf(partial(meet, str(meeting)), "double", useArrow=False)
    seen = events.select("channel", "endpoint", "sequence", F.spark_partition_id().alias("partition"))
    seen = seen.withColumn("came", came("partition", "sequence"))
    with listening(spark) as listener:
        writer = seen.writeStream.format("memory").queryName("many_shards").option("numRows", _TOTAL)
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        try:
            query.processAllAvailable()
            batches = [progress for progress in query.recentProgress if progress["numInputRows"]]
            figure = partial(_figure, listener)
            wait_until(lambda: figure("rows_total") == _TOTAL)
            figures = {shard: [figure(name, *shard) for name in _FIGURES] for shard in _shards(endpoints)}
        finally:
            query.stop()
        wait_until(lambda: figure("lag_events", _BUSY, endpoints[0]) is None)

    # No event is missing or duplicated.
    rows = spark.sql("select * from many_shards").collect()
    spark.catalog.dropTempView("many_shards")
    assert len({(row.channel, row.endpoint, row.sequence) for row in rows}) == len(rows) == _TOTAL

    # Batches respect the limit exactly.
    full, rest = divmod(_TOTAL, _LIMIT)
    assert [progress["numInputRows"] for progress in batches] == [_LIMIT] * full + [rest]

    # No shard waits for a busier one.
    counts = [event_counts(progress["sources"][0]["endOffset"]) for progress in batches]
    assert len(counts[0]) == _SERVERS * len(_CHANNELS)
    share = _LIMIT // len(counts[0])
    assert all(count >= min(share, _EVENTS) for count in counts[0].values()), counts[0]
    assert all(counts[0][shard] + counts[1][shard] == _EVENTS for shard in counts[0] if not shard.startswith(_BUSY))

    # Two tasks ran at the same time on different shards: each saw the other before its second event.
    first_ends = {shard: offset["to"] for shard, offset in json.loads(batches[0]["sources"][0]["endOffset"]).items()}
    times = defaultdict(list)
    for row in rows:
        if row.sequence < first_ends[f"{row.channel}@{row.endpoint}"]:
            times[row.partition].append(row.came)
    one, other = (times[int(path.name)] for path in meeting.iterdir())
    assert max(min(one), min(other)) <= min(max(one), max(other)), (one, other)

    # The listener has published the progress.
    ends = {channel: (_BUSY_EVENTS if channel == _BUSY else _EVENTS) + 1 for channel in _CHANNELS}
    assert figures == {shard: [0, ends[shard[0]], ends[shard[0]], 1] for shard in _shards(endpoints)}


def test_query_with_a_server_more_goes_on_where_it_was(
    spark: SparkSession, start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """A restarted query reads an additional server from its oldest event, and the others from its checkpoint."""
    endpoints = [start_millraced().grpc for _ in range(2)]
    for endpoint in endpoints:
        append(endpoint, "grown", [b"before"] * 3, is_new=True)
    landed = str(tmp_path / "landed")
    assert land(spark, endpoints[:1], "grown", landed) == 3
    append(endpoints[0], "grown", [b"after"] * 2)
    assert land(spark, endpoints, "grown", landed) == 5
    assert land(spark, endpoints, "grown", landed) == 0
    rows = spark.read.parquet(landed).collect()
    sequences = sorted((endpoints.index(row.endpoint), row.sequence) for row in rows)
    assert sequences == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (1, 1), (1, 2), (1, 3)]


def append(endpoint: str, name: str, bodies: list[bytes], *, is_new: bool = False) -> None:
    with millrace.connect(endpoint) as client:
        if is_new:
            client.admin.create_channel(name)
        client.channel(name).append(bodies)


def land(spark: SparkSession, endpoints: list[str], channel: str, folder: str) -> int:
    """Lands all events; returns the number of rows."""
    stream = spark.readStream.format("millrace").option("endpoints", ",".join(endpoints)).option("channels", channel)
    writer = stream.option("readerId", "grown").load().writeStream.format("parquet").option("path", folder)
    query = writer.option("checkpointLocation", f"{folder}-checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)


_FIGURES = ("lag_events", "position_sequence", "next_sequence", "shard_reachable")


def _shards(endpoints: list[str]) -> list[tuple[str, str]]:
    return [(channel, endpoint) for channel in _CHANNELS for endpoint in endpoints]


def _figure(listener: PrometheusListener, name: str, *shard: str) -> float | None:
    labels = {"query": "many_shards"} | dict(zip(("channel", "endpoint"), shard, strict=False))
    return listener.registry.get_sample_value(f"millrace_spark_{name}", labels)
