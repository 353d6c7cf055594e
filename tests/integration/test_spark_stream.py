"""`spark.readStream.format("millrace")` on real servers with real Spark; each query checks several promises."""

import itertools
import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it
from pyspark.sql.streaming.query import StreamingQuery

import millrace_client as millrace
from tests.conftest import StartMillraced
from tests.millraced import Millraced

pytestmark = pytest.mark.spark

_WAIT_SECONDS_MAX = 250.0
# A claim that was not released would last longer: its lease is 30 s, and it is renewed each second.
_FREE_SECONDS_MAX = 15.0
_names = (f"stream-{number}" for number in itertools.count(1))


@pytest.fixture
def channel(client: millrace.Client) -> millrace.Channel:
    """Returns an empty channel for the test."""
    return make_channel(client)


def make_channel(client: millrace.Client, name: str | None = None, **config: Any) -> millrace.Channel:
    name = name or next(_names)
    client.admin.create_channel(name, millrace.ChannelConfig(capacity=100_000, transaction_capacity=10_000, **config))
    return client.channel(name)


def fill(channel: millrace.Channel, count: int, first: int = 1) -> list[bytes]:
    """Appends numbered events; returns their bodies."""
    bodies = [f"{channel.name} {number}".encode() for number in range(first, first + count)]
    for start in range(0, count, 100):
        channel.append(bodies[start : start + 100])
    return bodies


class Pipeline:
    """A query from channels into Parquet with a checkpoint, which can be restarted."""

    def __init__(self, spark: SparkSession, folder: Path, endpoints: str, channels: str) -> None:
        self.spark = spark
        self.folder = folder
        self.options: dict[str, str | int] = {"endpoints": endpoints, "channels": channels}

    def events(self, **options: str | int) -> DataFrame:
        return self.spark.readStream.format("millrace").options(**(self.options | options)).load()

    def start(self, *, is_draining: bool = False, **options: str | int) -> StreamingQuery:
        """Starts the query; with availableNow, it ends at the current end of the channels."""
        writer = self.events(**options).writeStream.format("parquet").option("path", str(self.folder / "out"))
        writer = writer.option("checkpointLocation", str(self.folder / "checkpoint"))
        return (
            writer.trigger(availableNow=True) if is_draining else writer.trigger(processingTime="0 seconds")
        ).start()

    def run_once(self, **options: str | int) -> None:
        """Runs one micro-batch."""
        writer = self.events(**options).writeStream.format("parquet").option("path", str(self.folder / "out"))
        query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).trigger(once=True).start()
        assert query.awaitTermination(int(_WAIT_SECONDS_MAX))

    def drain(self, **options: str | int) -> StreamingQuery:
        """Runs the query until all current events are landed."""
        query = self.start(is_draining=True, **options)
        assert query.awaitTermination(int(_WAIT_SECONDS_MAX))
        return query

    def landed(self) -> list[bytes]:
        """Returns the rows in the Parquet files, in no particular order."""
        rows = self.spark.read.schema("body binary").parquet(str(self.folder / "out")).collect()
        return [bytes(row.body) for row in rows]

    def forget_last_commit(self) -> dict[str, dict[str, int]]:
        """Removes the last batch from Spark's commit log, as if Spark had been killed before; returns its ranges."""
        number = max(int(path.name) for path in (self.folder / "checkpoint/commits").iterdir() if path.name.isdigit())
        # The sink's log would recognise the micro-batch, and not read it again.
        for log in ("checkpoint/commits", "out/_spark_metadata"):
            for name in (f"{number}", f".{number}.crc"):
                (self.folder / log / name).unlink(missing_ok=True)
        ranges: dict[str, dict[str, int]] = json.loads(
            (self.folder / f"checkpoint/offsets/{number}").read_text().splitlines()[-1]
        )
        return ranges


def queued_count(client: millrace.Client, channel: str) -> int:
    return client.admin.get_channel(channel).gauges.queued_events


def wait_until(is_so: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _WAIT_SECONDS_MAX
    while not is_so():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def format_error(error: BaseException) -> str:
    """Returns the connector's message in an error of Spark."""
    said = [line for line in str(error).splitlines() if "millrace_spark.errors." in line]
    assert said, str(error)
    return said[-1].partition("Error: ")[2]


def test_available_now_drains_several_servers_within_limits(
    spark: SparkSession, start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """Events land once, batches respect the limit and are shared evenly, and channels end empty and unclaimed."""
    servers = [start_millraced() for _ in range(2)]
    endpoints = ",".join(server.grpc for server in servers)
    with ExitStack() as stack:
        clients = [stack.enter_context(millrace.connect(server.grpc)) for server in servers]
        channels = [make_channel(client, name) for client in clients for name in ("orders-eu", "orders-us")]
        make_channel(clients[0], "other").append([b"not asked for"])
        counts = [500, 30, 120, 0]
        bodies = [body for channel, count in zip(channels, counts, strict=True) for body in fill(channel, count)]
        pipeline = Pipeline(spark, tmp_path, endpoints, "orders-*")
        query = pipeline.drain(maxEventsPerTrigger=200, minPartitions=4, readerId="landing")
        assert sorted(pipeline.landed()) == sorted(bodies)
        drained = [(client, name) for client in clients for name in ("orders-eu", "orders-us")]
        assert [queued_count(client, name) for client, name in drained] == [0] * len(drained)
        # Spark does not wait for the process that releases the claims.
        wait_until(lambda: all(client.admin.get_channel(name).claim is None for client, name in drained))
        assert queued_count(clients[0], "other") == 1
        batches = [progress for progress in query.recentProgress if progress.numInputRows]
        assert [batch.numInputRows for batch in batches] == [200, 200, 200, 50]
        first = json.loads(batches[0].sources[0].endOffset)
        assert sorted(part["to"] - part["from"] for part in first.values()) == [0, 30, 85, 85]
        seen = json.loads(batches[0].sources[0].latestOffset)
        largest = f"orders-eu@{servers[0].grpc}"
        assert (seen[largest]["position"], seen[largest]["next"], seen[largest]["lag"]) == (86, 501, 415)

        # Run again with an additional server.
        third = start_millraced()
        client = stack.enter_context(millrace.connect(third.grpc))
        more = fill(make_channel(client, "orders-asia"), 20) + fill(channels[0], 10, first=501)
        pipeline.drain(endpoints=f"{endpoints},{third.grpc}", readerId="landing")
        assert sorted(pipeline.landed()) == sorted(bodies + more)


def test_restart_repeats_exactly_what_was_not_committed(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel, tmp_path: Path
) -> None:
    """A restart reads the logged range again, for a first batch of `once` and for a later batch."""
    pipeline = Pipeline(spark, tmp_path, client.endpoint, channel.name)
    bodies = fill(channel, 10)
    pipeline.run_once(maxEventsPerTrigger=3)
    assert queued_count(client, channel.name) == 10
    [part] = pipeline.forget_last_commit().values()
    assert (part["from"], part["to"]) == (1, 11)
    bodies += fill(channel, 5, first=11)
    # Spark does not wait for the process that releases the claim.
    wait_until(lambda: client.admin.get_channel(channel.name).claim is None)
    query = pipeline.drain(ackMode="never")
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [10, 5]
    [part] = pipeline.forget_last_commit().values()
    assert (part["from"], part["to"]) == (11, 16)
    bodies += fill(channel, 3, first=16)
    assert queued_count(client, channel.name) == 18
    wait_until(lambda: client.admin.get_channel(channel.name).claim is None)
    query = pipeline.drain()
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [5, 3]
    assert sorted(pipeline.landed()) == sorted(bodies)
    assert queued_count(client, channel.name) == 0


class InterruptedPipeline(Pipeline):
    """A pipeline whose first task fails half-way."""

    def events(self, **options: str | int) -> DataFrame:
        passes = F.udf(partial(fails_once, str(self.folder / "failed")), "boolean", useArrow=False)
        return super().events(**options).where(passes("sequence"))


def fails_once(mark: str, sequence: int) -> bool:
    if sequence % 20 == 0:
        try:
            open(mark, "x").close()  # noqa: PTH123 - goes to the workers without its imports
        except FileExistsError:
            return True
        raise OSError("this worker is lost")
    return True


def test_task_that_fails_half_way_and_is_tried_again_lands_each_event_once(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel, tmp_path: Path
) -> None:
    """The second attempt reads the same events, and the batch is acknowledged once."""
    pipeline = InterruptedPipeline(spark, tmp_path, client.endpoint, channel.name)
    bodies = fill(channel, 90)
    pipeline.drain(maxEventsPerPartition=30)
    assert (tmp_path / "failed").exists()
    assert sorted(pipeline.landed()) == sorted(bodies)
    assert queued_count(client, channel.name) == 0


def test_start_at_latest_holds_for_a_restart_before_any_event(
    spark: SparkSession,
    client: millrace.Client,
    channel: millrace.Channel,
    shared_server: Millraced,
    tmp_path: Path,
) -> None:
    """The second run reads events that arrived after the empty first run, although its start is again latest."""
    fill(channel, 5)
    pipeline = Pipeline(spark, tmp_path, shared_server.grpc, channel.name)
    pipeline.drain(startingSequences="latest")
    bodies = fill(channel, 20, first=6)
    pipeline.drain(startingSequences="latest")
    assert sorted(pipeline.landed()) == sorted(bodies)
    assert queued_count(client, channel.name) == 0


def test_start_since_a_time_removes_what_was_before(
    spark: SparkSession,
    client: millrace.Client,
    channel: millrace.Channel,
    shared_server: Millraced,
    tmp_path: Path,
) -> None:
    """A stream starts at the first event that was committed since then; a restart goes on at its checkpoint."""
    fill(channel, 5)
    receipt = channel.append([b"since"])
    assert receipt.commit_time is not None
    pipeline = Pipeline(spark, tmp_path, shared_server.grpc, channel.name)
    pipeline.options["startingTimestamp"] = receipt.commit_time.isoformat()
    pipeline.drain()
    channel.append([b"later"])
    pipeline.drain()
    assert sorted(pipeline.landed()) == [b"later", b"since"]
    assert queued_count(client, channel.name) == 0


def test_running_query_keeps_others_out_and_frees_the_channel_when_it_is_stopped(
    spark: SparkSession, client: millrace.Client, tmp_path: Path
) -> None:
    """Landed events are removed, new channels join, a second query is refused, and a stop releases the claims."""
    prefix = next(_names)
    channel = make_channel(client, f"{prefix}.a")
    pipeline = Pipeline(spark, tmp_path, client.endpoint, f"{prefix}.*")
    bodies = fill(channel, 10)
    query = pipeline.start()
    try:
        wait_until(lambda: queued_count(client, channel.name) == 0)
        claim = client.admin.get_channel(channel.name).claim
        assert claim is not None
        second = Pipeline(spark, tmp_path / "second", client.endpoint, channel.name).start()
        with pytest.raises(StreamingQueryException) as refused:
            second.awaitTermination(int(_WAIT_SECONDS_MAX))
        reported = format_error(refused.value)
        assert reported.startswith(
            f"channel {channel.name} at {client.endpoint}: reader {claim.reader_id!r} has claimed"
        )
        assert "; in Spark, set the option takeover; if " in reported
        assert reported.endswith("or stop() on the query")
        joining = make_channel(client, f"{prefix}.b")
        bodies += fill(joining, 7) + fill(channel, 5, first=11)
        wait_until(lambda: queued_count(client, channel.name) + queued_count(client, joining.name) == 0)
        assert query.isActive
    finally:
        query.stop()
    stopped_at = time.monotonic()
    names = (channel.name, joining.name)
    wait_until(lambda: all(client.admin.get_channel(name).claim is None for name in names))
    assert time.monotonic() - stopped_at < _FREE_SECONDS_MAX
    assert sorted(pipeline.landed()) == sorted(bodies)


def test_server_that_is_killed_under_a_running_query_is_waited_for(
    spark: SparkSession, start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """The query reads the other server until this one restarts, and no event is lost or duplicated."""
    lasting, other = start_millraced(), start_millraced()
    with millrace.connect(lasting.grpc) as client, millrace.connect(other.grpc) as other_client:
        channel = make_channel(client, "orders", type=millrace.ChannelType.FILE)
        other_channel = make_channel(other_client, "orders")
        bodies = fill(channel, 50)
        pipeline = Pipeline(spark, tmp_path, f"{lasting.grpc},{other.grpc}", "orders")
        query = pipeline.start(readerId="landing")
        try:
            wait_until(lambda: queued_count(client, "orders") == 0)
            lasting.kill()
            bodies.append(b"meanwhile")
            other_channel.append([b"meanwhile"])
            wait_until(lambda: queued_count(other_client, "orders") == 0)
            lasting = start_millraced(data_dir=lasting.data_dir, arguments=("--listen", lasting.grpc))
            # Kill the server once the query has seen its events, and may be reading them.
            bodies += fill(channel, 2_000, first=51)
            lasting.kill()
            lasting = start_millraced(data_dir=lasting.data_dir, arguments=("--listen", lasting.grpc))
            wait_until(lambda: queued_count(client, "orders") == 0)
            assert query.isActive
        finally:
            query.stop()
        assert sorted(pipeline.landed()) == sorted(bodies)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endpoints": "127.0.0.1:1"}, "at 127.0.0.1:1: cannot reach"),
        ({"channels": "no-such-*"}, "channel no-such-*: the pattern matches no channel on "),
        ({"endingSequences": "latest"}, "option endingSequences: is for batch reads; leave it out, or use spark.read"),
    ],
)
def test_stream_that_cannot_work_says_why(
    spark: SparkSession, channel: millrace.Channel, tmp_path: Path, options: dict[str, str], sentence: str
) -> None:
    """The error is one sentence with the cause."""
    endpoint = repr(channel).partition(" of ")[2].rstrip(">")
    with pytest.raises(StreamingQueryException) as refused:
        Pipeline(spark, tmp_path, endpoint, channel.name).drain(**options)
    assert sentence in format_error(refused.value)
    # No error of Spark follows and hides it.
    assert "During handling of the above exception" not in str(refused.value)


def test_data_loss_is_reported_or_ignored(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel, tmp_path: Path
) -> None:
    """Events consumed between two runs end the query, unless failOnDataLoss is false."""
    pipeline = Pipeline(spark, tmp_path, client.endpoint, channel.name)
    # A restart continues from its checkpoint, whatever the start of a new query.
    pipeline.options["startingSequences"] = f'{{"{channel.name}": 1}}'
    bodies = fill(channel, 10)
    pipeline.drain()
    fill(channel, 5, first=11)
    # Spark does not wait for the process that releases the claim.
    wait_until(lambda: client.admin.get_channel(channel.name).claim is None)
    with channel.transaction() as txn:
        txn.take(max_events=5)
    bodies += fill(channel, 5, first=16)
    with pytest.raises(StreamingQueryException) as refused:
        pipeline.drain()
    assert f"channel {channel.name}@{client.endpoint}: events 11 to 15 are gone" in format_error(refused.value)
    pipeline.drain(failOnDataLoss="false")
    assert sorted(pipeline.landed()) == sorted(bodies)
    assert queued_count(client, channel.name) == 0
