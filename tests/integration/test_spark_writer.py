"""Saves and streams into channels, on real servers and a real Spark."""

import itertools
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it

import millrace_client as millrace
from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of
from tests.integration.span_collector import Collector

pytestmark = pytest.mark.spark

_QUERY_SECONDS_MAX = 90
_names = (f"spark-write-{number}" for number in itertools.count(1))


@pytest.fixture
def channel(client: millrace.Client) -> millrace.Channel:
    """Returns an empty channel for the test."""
    return make_channel(client)


def make_channel(client: millrace.Client, name: str | None = None, **limits: Any) -> millrace.Channel:
    """Creates a file channel with a capacity of 100,000 events and 1,000 per transaction."""
    name = name or next(_names)
    config = {"capacity": 100_000, "transaction_capacity": 1_000, "keep_alive_seconds": 0.2} | limits
    client.admin.create_channel(name, millrace.ChannelConfig(type=millrace.ChannelType.FILE, **config))
    return client.channel(name)


def stored(client: millrace.Client, channel: str) -> list[tuple[bytes, dict[str, str]]]:
    """Returns all events in order, after checking that no transaction is open."""
    info = client.admin.get_channel(channel)
    assert info.gauges.open_transactions == 0
    batches = client.channel(channel).peek(max_events=max(info.gauges.queued_events, 1))
    return [(event.body, dict(event.headers)) for batch in batches for event in batch]


def bodies(client: millrace.Client, channel: str) -> list[bytes]:
    return [body for body, _ in stored(client, channel)]


def writer_to(rows: DataFrame, to: millrace.Channel, client: millrace.Client, **options: Any) -> Any:
    defaults: dict[str, Any] = {"endpoints": client.endpoint, "channel": to.name, "retrySeconds": 5}
    return rows.write.format("millrace").mode("append").options(**(defaults | options))


def format_error(refused: pytest.ExceptionInfo[PySparkException]) -> str:
    """Returns the connector's message in an error of Spark."""
    found = re.findall(r"(?:MillraceSparkError|OptionError): (.*)", str(refused.value))
    return str(found[0]) if found else str(refused.value)


# Batch saves.


def test_save_read_again_gives_the_same_rows(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """The rows of three tasks with several transactions each are read back once and in order."""
    rows = spark.range(0, 10_000, 1, 3).select(
        F.concat(F.lit("größe "), F.col("id").cast("string")).alias("body"),
        F.when(
            F.col("id") % 3 > 0,
            F.create_map(
                F.lit("host"), F.lit("mill-1"), F.lit("id"), F.when(F.col("id") % 2 == 0, F.col("id").cast("string"))
            ),
        ).alias("headers"),
    )
    writer_to(rows, channel, client).save()
    events = stored(client, channel.name)
    assert [body.decode() for body, _ in events] == [f"größe {number}" for number in range(10_000)]
    assert [headers for _, headers in events[:5]] == [
        {},
        {"host": "mill-1"},
        {"host": "mill-1", "id": "2"},
        {},
        {"host": "mill-1", "id": "4"},
    ]
    read = spark.read.format("millrace").options(endpoints=client.endpoint, channels=channel.name).load()
    copy = make_channel(client)
    # All columns of a read can be written; the option names the channel.
    writer_to(read, copy, client).save()
    assert stored(client, copy.name) == events


def test_save_under_a_producer_id_is_stored_once(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """A save with the same id and number is stored once; another number is another save."""
    rows = spark.range(0, 100, 1, 2).select(F.col("id").cast("string").alias("body"))
    for number in (0, 0, 1, 1, 0):
        writer_to(rows, channel, client, producerId="nightly", batchNumber=number).save()
    assert len(bodies(client, channel.name)) == 200
    writer_to(rows, channel, client).save()
    writer_to(rows, channel, client).save()
    assert len(bodies(client, channel.name)) == 400


def test_save_by_key_and_channel_shares_rows_out(
    spark: SparkSession, client: millrace.Client, start_millraced: StartMillraced
) -> None:
    """Each row is stored once by its key and channel, keys stay together, and null keys are stored too."""
    other = start_millraced()
    first, second = next(_names), next(_names)
    rows = spark.range(0, 3_000, 1, 2).select(
        F.col("id").cast("string").alias("body"),
        F.when(F.col("id") % 10 > 0, (F.col("id") % 50).cast("string")).alias("key"),
        F.when(F.col("id") % 3 == 0, F.lit(first)).otherwise(F.lit(second)).alias("channel"),
    )
    with millrace.connect(other.grpc) as other_client:
        clients = (client, other_client)
        for each, name in itertools.product(clients, (first, second)):
            make_channel(each, name)
        rows.write.format("millrace").mode("append").option("endpoints", f"{client.endpoint},{other.grpc}").save()
        homes: dict[int, int] = {}
        found: list[int] = []
        for (number, each), name in itertools.product(enumerate(clients), (first, second)):
            ids = [int(body) for body in bodies(each, name)]
            assert {value % 3 == 0 for value in ids} <= {name == first}
            for value in ids:
                assert value % 10 == 0 or homes.setdefault(value % 50, number) == number
            found += ids
    assert sorted(found) == list(range(3_000))
    assert set(homes.values()) == {0, 1}


def test_save_with_a_failing_task_stores_nothing(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """If one row cannot be written, nothing is stored, and no transaction is open."""
    rows = spark.range(0, 30_000, 1, 3).select(F.when(F.col("id") != 29_999, F.col("id").cast("string")).alias("body"))
    with pytest.raises(PySparkException) as refused:
        writer_to(rows, channel, client).save()
    assert format_error(refused) == (
        "column body: is null in a row; remove such rows, or write coalesce(body, '') for an empty body"
    )
    assert stored(client, channel.name) == []


def test_save_and_load_that_are_traced_are_in_their_parents_trace(
    spark: SparkSession, spark_spans: Collector, client: millrace.Client, channel: millrace.Channel
) -> None:
    """Tasks of a save, its commit, and tasks of a load; the latter are linked to the former by the events' contexts."""
    parent = f"00-{7:032x}-{9:016x}-01"
    tracing = {"tracing": "true", "tracing.parent": parent}
    rows = spark.range(0, 10, 1, 1).select(F.col("id").cast("string").alias("body"))
    writer_to(rows, channel, client, **tracing, **{"tracing.eventContext": "true"}).save()
    options = {"endpoints": client.endpoint, "channels": channel.name, **tracing}
    assert spark.read.format("millrace").options(**options).load().count() == 10
    spans = [spark_spans.find(f"{name} {channel.name}") for name in ("append", "commit", "read")]
    assert {(span.service, span.trace_id, span.parent_id) for span in spans} == {
        ("millrace-spark", f"{7:032x}", f"{9:016x}")
    }
    append, commit, read = spans
    assert "messaging.batch.message_count" not in commit.attributes
    assert append.attributes["messaging.batch.message_count"] == read.attributes["messaging.batch.message_count"] == 10
    assert {headers["traceparent"].split("-")[2] for _, headers in stored(client, channel.name)} == {append.span_id}
    assert read.links == (append.span_id,)


def test_save_without_space_waits_and_then_says_so(spark: SparkSession, client: millrace.Client) -> None:
    """A save waits for a full channel, and fails at once if it can never fit; no transaction is left open."""
    small = make_channel(client, capacity=1_000, transaction_capacity=500)
    small.append([b"x"] * 500)
    rows = spark.range(0, 800, 1, 1).select(F.col("id").cast("string").alias("body"))
    with pytest.raises(PySparkException) as refused:
        writer_to(rows, small, client, retrySeconds=1).save()
    assert "no capacity for 800 more" in format_error(refused)
    assert "the channel was full for retrySeconds; consume events" in format_error(refused)
    with pytest.raises(PySparkException) as refused:
        writer_to(spark.range(0, 1_001, 1, 1).selectExpr("cast(id as string) body"), small, client).save()
    assert "the batch cannot fit even an empty channel; give the channel more capacity" in format_error(refused)
    assert len(bodies(client, small.name)) == 500


def test_save_that_cannot_work_says_why(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """The error is one sentence, before any task runs."""
    for columns, options, sentence in (
        ("'x' body", {"endpoints": "127.0.0.1:1"}, "at 127.0.0.1:1: cannot reach a Millrace server"),
        ("'x' body", {"channel": "no-such"}, "channel no-such at .*: 'no-such' does not exist; create it"),
        ("1 body", {}, r"column body: is int; it must be binary or string; cast it"),
        ("'x' body", {"chanel": "x"}, r"option chanel: is unknown; did you mean channel\?"),
        ("'x' body", {"startingSequences": "latest"}, "option startingSequences: is for reading; the options of"),
    ):
        with pytest.raises(PySparkException) as refused:
            writer_to(spark.range(1).selectExpr(columns), channel, client, **options).save()
        assert re.match(f".*{sentence}", format_error(refused))
    with pytest.raises(PySparkException) as refused:
        writer_to(spark.range(1).selectExpr("'x' body"), channel, client).mode("overwrite").save()
    assert format_error(refused).startswith("mode overwrite: is not supported by channels")


# Streams.


def held_back(line: str, path: str) -> Callable[[str], Column]:
    """Returns a function that waits at one line until a file exists."""

    def wait(body: str) -> str:
        give_up = time.monotonic() + 90.0
        while body == line and not os.path.exists(path) and time.monotonic() < give_up:  # noqa: PTH110 - shipped
            time.sleep(0.05)
        return body

    return F.udf(wait, useArrow=False)


class Lines:
    """A folder of text files as the input of a stream, with a checkpoint."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._input = folder / "lines"
        self._input.mkdir()
        self.checkpoint = folder / "checkpoint"
        self._count = 0

    def add(self, count: int) -> None:
        """Writes one more file, which the next batch reads."""
        lines = range(self._count, self._count + count)
        self._count += count
        part = self._input.parent / "part"
        part.write_text("".join(f"{number}\n" for number in lines))
        part.rename(self._input / f"{self._count:09}.txt")

    def run(self, endpoints: str, channel: str, hold: tuple[bytes, Path] | None = None, **options: Any) -> None:
        """Runs the query until all files are written; the task with the line `hold` waits for the file."""
        rows = self._spark.readStream.format("text").load(str(self._input)).withColumnRenamed("value", "body")
        if hold is not None:
            rows = rows.withColumn("body", held_back(hold[0].decode(), str(hold[1]))("body"))
        query = (
            rows.withColumn("key", F.col("body"))
            .writeStream.format("millrace")
            .queryName("lines")
            .options(endpoints=endpoints, channel=channel, checkpointLocation=str(self.checkpoint), **options)
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(_QUERY_SECONDS_MAX)
        finally:
            query.stop()

    def forget_last_commit(self) -> None:
        """Makes the checkpoint look as if the driver had been killed between the sink's commit and Spark's."""
        commits = self.checkpoint / "commits"
        last = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)

    @property
    def expected(self) -> list[bytes]:
        return [b"%d" % number for number in range(self._count)]


@pytest.fixture
def lines(spark: SparkSession, tmp_path: Path) -> Lines:
    return Lines(spark, tmp_path)


def test_stream_whose_batch_is_repeated_stores_it_once(
    client: millrace.Client, channel: millrace.Channel, lines: Lines
) -> None:
    """A stored batch that Spark repeats is not stored again."""
    for count in (2_500, 10):
        lines.add(count)
        lines.run(client.endpoint, channel.name)
    lines.forget_last_commit()
    lines.add(1)
    lines.run(client.endpoint, channel.name)
    assert bodies(client, channel.name) == lines.expected
    counters = client.admin.get_channel(channel.name).counters
    assert (counters.deduplicated_count, counters.event_put_success_count) == (10, 2_511)


def test_stream_to_two_servers_of_which_one_fails_goes_on_where_it_ended(
    client: millrace.Client, lines: Lines, start_millraced: StartMillraced
) -> None:
    """If one of two servers has no space, only that one stores the repeated batch."""
    other = start_millraced()
    with millrace.connect(other.grpc) as other_client:
        name = next(_names)
        make_channel(client, name)
        make_channel(other_client, name, transaction_capacity=10)
        endpoints = f"{client.endpoint},{other.grpc}"
        lines.add(200)
        lines.run(endpoints, name)
        lines.add(400)
        full = millrace.ChannelConfig(capacity=len(bodies(other_client, name)))
        assert other_client.admin.update_channel(name, full).applied
        with pytest.raises(StreamingQueryException) as refused:
            lines.run(endpoints, name, retrySeconds=1)
        assert f"The rows for {name}@{client.endpoint} are stored" in str(refused.value)
        here = bodies(client, name)
        other_client.admin.update_channel(name, millrace.ChannelConfig(capacity=1_000))
        lines.run(endpoints, name)
        assert bodies(client, name) == here
        there = bodies(other_client, name)
        assert sorted(here + there, key=int) == lines.expected
        assert min(len(here), len(there)) > 0


def test_stream_whose_server_is_killed_before_the_commit_repeats_the_batch(
    lines: Lines, start_millraced: StartMillraced, tmp_path: Path
) -> None:
    """The query fails when the server loses its transactions, and the next run stores all rows once."""
    config = '[channels.orders]\ntype = "file"\n'
    server = start_millraced(config)
    lines.add(1_000)
    lines.run(server.grpc, "orders")
    go_on = tmp_path / "go-on"
    # Two files are two tasks: one finishes, and the other waits until the server has restarted.
    lines.add(500)
    lines.add(500)

    def restart() -> None:
        try:
            with millrace.connect(server.grpc) as client:
                wait_until(lambda: client.admin.get_channel("orders").counters.event_put_attempt_count >= 1_500)
            server.kill()
            start_millraced(config, server.data_dir, ("--listen", server.grpc))
        finally:
            go_on.touch()

    with ThreadPoolExecutor() as executor:
        restarting = executor.submit(restart)
        with pytest.raises(StreamingQueryException) as refused:
            lines.run(server.grpc, "orders", hold=(b"1999", go_on))
        restarting.result()
    assert "the server restarted, or leaseSeconds ran out" in str(refused.value)
    assert "start the query again; it repeats the batch and stores nothing twice" in str(refused.value)
    lines.run(server.grpc, "orders")
    with millrace.connect(server.grpc) as client:
        assert sorted(bodies(client, "orders"), key=int) == lines.expected


def wait_until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + _QUERY_SECONDS_MAX
    while not condition():
        assert time.monotonic() < give_up, "never came"
        time.sleep(0.05)


def test_readme_programs_write_what_they_say(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel, tmp_path: Path
) -> None:
    """The programs in the connector's README write as documented."""
    readme = Path(__file__).parents[2] / "spark_connector" / "README.md"
    folder = tmp_path / "lines"
    folder.mkdir()
    (folder / "1.txt").write_text("a line\n")
    for program in (*blocks_of(readme, "write"), *blocks_of(readme, "write-stream")):
        here = program.replace("mill-1:7070,mill-2:7070", client.endpoint).replace('"orders"', f'"{channel.name}"')
        here = here.replace('"lines")', f'"{folder}")').replace("checkpoints/lines", f"{tmp_path}/checkpoint")
        exec(here, {"spark": spark})  # noqa: S102 - the README's own program
    assert sorted(stored(client, channel.name), key=itemgetter(0)) == [
        (b"a hat", {}),
        (b"a line", {"source": "lines"}),
        (b"shoes, 1 pair", {}),
    ]
