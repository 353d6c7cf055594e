"""`format("millrace")` and claims, on a real server with real Spark."""

import itertools
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - how every Spark program names it

import millrace_client as millrace
from millrace_spark import MillraceSparkError, claim_ranges
from tests.conftest import StartMillraced
from tests.fenced_blocks import blocks_of

pytestmark = pytest.mark.spark

_WAIT_SECONDS_MAX = 60.0
_names = (f"spark-{number}" for number in itertools.count(1))


@pytest.fixture
def channel(client: millrace.Client) -> millrace.Channel:
    """Returns an empty channel for the test."""
    return make_channel(client)


def make_channel(client: millrace.Client, name: str | None = None) -> millrace.Channel:
    name = name or next(_names)
    client.admin.create_channel(name, millrace.ChannelConfig(capacity=100_000, transaction_capacity=10_000))
    return client.channel(name)


def fill(channel: millrace.Channel, count: int, batch_size: int = 100) -> list[bytes]:
    """Appends numbered events; returns their bodies."""
    bodies = [f"event {number}".encode() for number in range(1, count + 1)]
    for start in range(0, count, batch_size):
        channel.append(bodies[start : start + batch_size])
    return bodies


def read(spark: SparkSession, endpoint: str, channel: str, **options: str | int) -> DataFrame:
    reader = spark.read.format("millrace").option("endpoints", endpoint).option("channels", channel)
    return reader.options(**options).load()


def bodies_of(events: DataFrame) -> list[bytes]:
    return [bytes(row.body) for row in events.select("sequence", "body").orderBy("sequence").collect()]


def queued_count(client: millrace.Client, channel: millrace.Channel) -> int:
    return client.admin.get_channel(channel.name).gauges.queued_events


def format_error(refused: "pytest.ExceptionInfo[PySparkException]") -> str:
    """Returns the connector's message in an error of Spark."""
    said = [line for line in str(refused.value).splitlines() if "millrace_spark.errors." in line]
    assert said, str(refused.value)
    return said[0].partition("Error: ")[2]


def wait_until_unclaimed(client: millrace.Client, channel: millrace.Channel) -> None:
    give_up = time.monotonic() + _WAIT_SECONDS_MAX
    while client.admin.get_channel(channel.name).claim is not None:
        assert time.monotonic() < give_up
        time.sleep(0.01)


def wait_until_it_rises(measure: Callable[[], float]) -> None:
    give_up = time.monotonic() + _WAIT_SECONDS_MAX
    before = measure()
    while (now := measure()) <= before:
        assert time.monotonic() < give_up
        before = now
        time.sleep(0.01)


# Batch reads.


def test_load_gives_one_row_an_event(spark: SparkSession, client: millrace.Client, channel: millrace.Channel) -> None:
    """The columns hold the values of the event, in any alphabet, and nothing is consumed."""
    events = [
        millrace.Event(b"plain", {"host": "web-1", "größe": "7"}),
        millrace.Event(bytes(range(256)) * 4_000, {"host": "web-2", "": ""}),
        millrace.Event(b""),
    ]
    channel.append(events)
    rows = read(spark, client.endpoint, channel.name).drop("commit_time").orderBy("sequence").collect()
    assert [row.asDict() for row in rows] == [
        {
            "channel": channel.name,
            "endpoint": client.endpoint,
            "sequence": sequence,
            "headers": event.headers,
            "body": event.body,
        }
        for sequence, event in enumerate(events, start=1)
    ]
    assert queued_count(client, channel) == 3


@pytest.mark.parametrize(("events_max", "partition_count"), [(50_000, 1), (300, 4), (1_000, 1)])
def test_load_splits_the_range_among_tasks(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel, events_max: int, partition_count: int
) -> None:
    """Tasks read separate ranges, which together have each event once, even within a batch."""
    bodies = fill(channel, 1_000)
    events = read(spark, client.endpoint, channel.name, maxEventsPerPartition=events_max)
    numbered = events.withColumn("partition", F.spark_partition_id()).cache()
    assert bodies_of(numbered) == bodies
    spans = numbered.groupBy("partition").agg(F.max("sequence") - F.min("sequence") + 1, F.count("*")).collect()
    assert sorted((span, count) for _, span, count in spans) == [(1_000 // partition_count,) * 2] * partition_count
    numbered.unpersist()


def test_load_of_an_empty_channel_gives_no_rows(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """An empty channel is not an error."""
    assert read(spark, client.endpoint, channel.name).collect() == []


def test_load_with_a_schema_gives_these_columns(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """A schema selects and reorders columns, and option names are case-insensitive."""
    channel.append([b"x"])
    reader = spark.read.format("MILLRACE").option("ENDPOINTS", client.endpoint).option("Channels", channel.name)
    events = reader.schema("body binary, Sequence bigint").load()
    assert [row.asDict() for row in events.collect()] == [{"body": b"x", "Sequence": 1}]


def test_load_twice_gives_the_same(spark: SparkSession, client: millrace.Client, channel: millrace.Channel) -> None:
    """Reads do not consume, and all reads of an application renew one claim, even two in one query."""
    fill(channel, 100)
    with channel.claim("earlier") as before:
        pass
    first, second = (read(spark, client.endpoint, channel.name, takeover="true") for _ in range(2))
    assert first.union(second).groupBy("sequence").count().where("count = 2").count() == 100
    assert queued_count(client, channel) == 100
    claim = client.admin.get_channel(channel.name).claim
    assert claim is not None
    assert claim.epoch == before.epoch + 1


def test_load_of_several_servers_reads_them_all(spark: SparkSession, start_millraced: StartMillraced) -> None:
    """A channel on several servers is one DataFrame with the server in each row, and all are acknowledged."""
    endpoints = [start_millraced().grpc for _ in range(2)]
    with millrace.connect(endpoints[0]) as first, millrace.connect(endpoints[1]) as second:
        fill(make_channel(first, "orders"), 10)
        fill(make_channel(second, "orders"), 20)
        with claim_ranges(endpoints, "orders") as claimed:
            counts = {row.endpoint: row["count"] for row in claimed.load(spark).groupBy("endpoint").count().collect()}
            claimed.acknowledge()
        assert counts == {endpoints[0]: 10, endpoints[1]: 20}
        assert [queued_count(client, client.channel("orders")) for client in (first, second)] == [0, 0]


def test_load_after_its_lease_reads_again(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """A DataFrame can be read until others have consumed its events; then reading fails."""
    bodies = fill(channel, 10)
    events = read(spark, client.endpoint, channel.name, leaseSeconds="0.2")
    assert bodies_of(events) == bodies
    wait_until_unclaimed(client, channel)
    assert bodies_of(events) == bodies
    wait_until_unclaimed(client, channel)
    with channel.transaction() as txn:
        txn.take(max_events=1)
    with pytest.raises(PySparkException) as refused:
        events.collect()
    assert "events that this read was planned for are gone: consumed, purged or expired; load again" in format_error(
        refused
    )


# Claimed ranges.


def test_acknowledge_removes_exactly_what_was_read(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """Events that arrive after the claim stay for the next claim."""
    bodies = fill(channel, 100)
    with claim_ranges(client.endpoint, channel.name) as claimed:
        channel.append([b"after the claim"])
        events = claimed.load(spark, max_events_per_partition=30)
        assert events.count() == 100
        channel.append([b"after the first action"])
        assert bodies_of(events) == bodies
        assert claimed.load(spark).count() == 100
        claimed.acknowledge()
        claimed.acknowledge()
    with claim_ranges(client.endpoint, channel.name) as claimed:
        assert bodies_of(claimed.load(spark)) == [b"after the claim", b"after the first action"]
    assert queued_count(client, channel) == 2


def test_a_job_that_fails_half_way_consumes_nothing(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel, tmp_path: Path
) -> None:
    """If one of four tasks fails, all events stay, no claim is left, and the next run reads them all."""
    bodies = fill(channel, 100)
    failing = F.when(F.col("sequence") == 60, F.raise_error(F.lit("bad line"))).otherwise(F.col("sequence"))

    def run_job() -> None:
        with claim_ranges(client.endpoint, channel.name) as claimed:
            events = claimed.load(spark, max_events_per_partition=25)
            events.select(failing.alias("sequence")).write.parquet(str(tmp_path / "failed"))
            claimed.acknowledge()

    with pytest.raises(PySparkException, match="bad line"):
        run_job()
    assert queued_count(client, channel) == 100
    assert client.admin.get_channel(channel.name).claim is None
    with claim_ranges(client.endpoint, channel.name) as claimed:
        assert bodies_of(claimed.load(spark)) == bodies


def test_a_claim_outlives_its_lease_while_it_is_held(client: millrace.Client, channel: millrace.Channel) -> None:
    """The claim is renewed in the background while the block runs, and ends with the block."""

    def remaining_seconds() -> float:
        claim = client.admin.get_channel(channel.name).claim
        assert claim is not None
        return claim.remaining_seconds

    fill(channel, 10)
    with claim_ranges(client.endpoint, channel.name, lease_seconds=2.0):
        for _ in range(4):
            wait_until_it_rises(remaining_seconds)
    assert client.admin.get_channel(channel.name).claim is None
    assert queued_count(client, channel) == 10


def test_claim_ranges_when_another_reads_is_refused(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """The error names channel, server and holder, and says what to do, also for a plain read."""
    channel.claim("nightly", lease_seconds=60)
    with pytest.raises(MillraceSparkError) as refused:
        claim_ranges(client.endpoint, channel.name, reader_id="other")
    with pytest.raises(PySparkException) as refused_plan:
        read(spark, client.endpoint, channel.name).collect()
    begin = f"channel {channel.name} at {client.endpoint}: reader 'nightly' has claimed the channel, for "
    for sentence in (str(refused.value), format_error(refused_plan)):
        assert sentence.startswith(begin)
        assert "or take the claim over; in Spark, set the option takeover; if the reader is in this" in sentence
        assert sentence.endswith("call release() on the result of claim_ranges(), or stop() on the query")


def test_claim_ranges_of_what_this_program_holds_says_so(client: millrace.Client, channel: millrace.Channel) -> None:
    """The error names the call that releases the claim, unless the claim has ended."""
    with claim_ranges(client.endpoint, channel.name, reader_id="nightly") as held:
        with pytest.raises(MillraceSparkError) as refused:
            claim_ranges(client.endpoint, channel.name, reader_id="other")
        assert str(refused.value) == (
            f"channel {channel.name} at {client.endpoint}: this program holds the claim itself, as reader 'nightly'; "
            "call release() on the result of claim_ranges(), leave its with block, or claim with the same "
            "reader_id, which ends it"
        )
        held.release()
        claim_ranges(client.endpoint, channel.name, reader_id="other").release()
    with claim_ranges(client.endpoint, channel.name, reader_id="nightly"):
        channel.claim("third", lease_seconds=60, takeover=True)
        with pytest.raises(MillraceSparkError, match="reader 'third' has claimed the channel"):
            claim_ranges(client.endpoint, channel.name, reader_id="other")


def test_claim_ranges_with_takeover_fences_the_other_off(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """The former reader can neither read nor acknowledge, and the new range stays complete."""
    bodies = fill(channel, 10)
    with (
        claim_ranges(client.endpoint, channel.name, reader_id="nightly") as lost,
        claim_ranges(client.endpoint, channel.name, reader_id="other", takeover=True) as claimed,
    ):
        with pytest.raises(MillraceSparkError, match="the claim of this read was taken over"):
            lost.acknowledge()
        with pytest.raises(PySparkException, match="the claim of this read was taken over"):
            lost.load(spark).collect()
        assert bodies_of(claimed.load(spark)) == bodies


def test_claim_ranges_by_the_same_reader_fences_its_former_self_off(
    client: millrace.Client, channel: millrace.Channel
) -> None:
    """A restarted pipeline claims at once, and its former process cannot acknowledge."""
    fill(channel, 10)
    with (
        claim_ranges(client.endpoint, channel.name, reader_id="nightly") as former,
        claim_ranges(client.endpoint, channel.name, reader_id="nightly") as claimed,
    ):
        with pytest.raises(MillraceSparkError, match="the claim of this read was taken over"):
            former.acknowledge()
        assert queued_count(client, channel) == 10
        claimed.acknowledge()
    assert queued_count(client, channel) == 0


def test_claim_ranges_after_a_look_waits_for_its_end(client: millrace.Client, channel: millrace.Channel) -> None:
    """A claim waits for the end of a batch read's lease."""
    fill(channel, 10)
    channel.claim("a-look", lease_seconds=0.5)
    with claim_ranges(client.endpoint, channel.name) as claimed:
        claimed.acknowledge()
    assert queued_count(client, channel) == 0


def test_ranges_after_release_are_refused(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """After the block, its ranges can be neither read nor acknowledged."""
    fill(channel, 10)
    with claim_ranges(client.endpoint, channel.name) as claimed:
        events = claimed.load(spark)
    with pytest.raises(PySparkException) as refused:
        events.collect()
    assert "this read has lost its claim; load again" in format_error(refused)
    with pytest.raises(MillraceSparkError, match="the claims were released, so nothing was acknowledged"):
        claimed.acknowledge()
    assert queued_count(client, channel) == 10


def test_ranges_after_acknowledging_are_gone(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """Reading acknowledged ranges fails instead of returning fewer rows."""
    fill(channel, 10)
    with claim_ranges(client.endpoint, channel.name) as claimed:
        claimed.acknowledge()
        with pytest.raises(PySparkException, match="purged or expired; load again"):
            claimed.load(spark).collect()


def test_claim_ranges_with_ack_on_success_acknowledges(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """With ack="onSuccess", channels of a pattern are acknowledged, unless the block raises."""
    other = make_channel(client, f"{channel.name}-b")
    fill(channel, 10)
    fill(other, 5)

    def run_job(error: Exception | None) -> None:
        with claim_ranges(client.endpoint, f"{channel.name}*", ack="onSuccess") as claimed:
            assert claimed.load(spark).count() == 15
            if error is not None:
                raise error

    with pytest.raises(KeyError):
        run_job(KeyError("a job that fails"))
    assert (queued_count(client, channel), queued_count(client, other)) == (10, 5)
    run_job(None)
    assert (queued_count(client, channel), queued_count(client, other)) == (0, 0)


def test_load_of_an_exact_range_gives_it(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """A range has an inclusive start, an exclusive end, and as many partitions as requested."""
    bodies = fill(channel, 20)
    bounds = {"startingSequences": f'{{"{channel.name}": 5}}', "endingSequences": f'{{"{channel.name}": 11}}'}
    events = read(spark, client.endpoint, channel.name, minPartitions=3, **bounds)
    assert bodies_of(events) == bodies[4:10]
    assert events.rdd.getNumPartitions() == 3


def test_load_since_a_time_gives_the_commits_since_then(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """The column is exact to the microsecond, and the option starts at the first commit that is late enough."""
    receipts = [channel.append([b"a", b"b"]), channel.append([b"c"]), channel.append([b"d"])]
    micros = [round(receipt.commit_time.timestamp() * 1e6) for receipt in receipts if receipt.commit_time]
    events = read(spark, client.endpoint, channel.name).select("body", F.unix_micros("commit_time").alias("micros"))
    assert [tuple(row) for row in events.orderBy("sequence").collect()] == list(
        zip([b"a", b"b", b"c", b"d"], [micros[0], *micros], strict=True)
    )
    assert receipts[1].commit_time is not None
    since = {"startingTimestamp": receipts[1].commit_time.isoformat()}
    assert bodies_of(read(spark, client.endpoint, channel.name, **since)) == [b"c", b"d"]
    later = {"startingTimestamp": (datetime.now(UTC) + timedelta(minutes=1)).isoformat()}
    assert bodies_of(read(spark, client.endpoint, channel.name, **later)) == []


def test_claim_ranges_that_fails_leaves_no_claim(client: millrace.Client, channel: millrace.Channel) -> None:
    """If the second endpoint refuses, the claim on the first is released."""
    with pytest.raises(MillraceSparkError, match=r"channel .* at 127\.0\.0\.1:1: cannot reach"):
        claim_ranges([client.endpoint, "127.0.0.1:1"], channel.name)
    assert client.admin.get_channel(channel.name).claim is None


def test_readme_programs_do_what_it_says(
    spark: SparkSession,
    client: millrace.Client,
    channel: millrace.Channel,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The programs in the connector's README read as documented."""
    fill(channel, 7)
    readme = Path(__file__).parents[2] / "spark_connector" / "README.md"

    def run(kind: str) -> None:
        [program] = blocks_of(readme, kind)
        here = program.replace("mill-1:7070,mill-2:7070", client.endpoint)
        here = here.replace('parquet("orders")', f'parquet("{tmp_path}/orders")').replace(
            '"landed', f'"{tmp_path}/landed'
        )
        exec(here.replace('"orders"', f'"{channel.name}"'), {"spark": spark})  # noqa: S102 - the README's own program

    run("consume")
    assert spark.read.parquet(f"{tmp_path}/orders").count() == 7
    assert queued_count(client, channel) == 0
    fill(channel, 5)
    run("stream")
    assert spark.read.parquet(f"{tmp_path}/landed").count() == 5
    assert queued_count(client, channel) == 0
    # Last, since its claim lasts until its lease ends.
    fill(channel, 9)
    run("batch")
    assert re.search(r"\|\s*9\|", capsys.readouterr().out)


# Errors.


@pytest.mark.parametrize(
    ("options", "sentences"),
    [
        ({"endpoints": "127.0.0.1:1"}, ["at 127.0.0.1:1: cannot reach", "is millraced running there?"]),
        ({"channels": "no-such"}, ["channel no-such at ", "'no-such' does not exist"]),
        ({"channels": "../x"}, ["channel ../x at ", "is '../x'; it must match"]),
        ({"readerId": "r" * 129}, ["reader_id: is 'r", "it must have 1 to 128 printable ASCII characters"]),
        ({"channel": "x"}, ["option channel: is unknown; did you mean channels?"]),
        ({"takeover": "perhaps"}, ["option takeover: is 'perhaps'; it must be true or false"]),
    ],
)
def test_load_that_cannot_work_says_why(
    spark: SparkSession,
    client: millrace.Client,
    channel: millrace.Channel,
    options: dict[str, str],
    sentences: Sequence[str],
) -> None:
    """The error is one sentence with the cause."""
    defaults = {"endpoints": client.endpoint, "channels": channel.name}
    with pytest.raises(PySparkException) as refused:
        spark.read.format("millrace").options(**(defaults | options)).load().collect()
    for sentence in sentences:
        assert sentence in format_error(refused)


def test_load_with_a_wrong_schema_says_why(
    spark: SparkSession, client: millrace.Client, channel: millrace.Channel
) -> None:
    """The error names the column and its required type."""
    reader = spark.read.format("millrace").option("endpoints", client.endpoint).option("channels", channel.name)
    with pytest.raises(PySparkException) as refused:
        reader.schema("body string").load().collect()
    assert format_error(refused) == "schema: body is string; it must be binary. Read it with that type, then cast it"
