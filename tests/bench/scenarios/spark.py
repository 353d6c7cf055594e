"""Spark: reading channels as batches and as streams, compared with Spark's own formats and with a source in memory."""

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

import millrace_client as millrace
from millrace.arrow import record_batches
from millrace.columns import CommitTimes
from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from millrace_spark.reading.stream_reader import arrow_schema
from millrace_spark.source import EVENT_SCHEMA
from tests.bench.bare_server import bare_server
from tests.bench.findings import Line, Section
from tests.bench.payloads import BATCH_EVENTS, BODY_BYTES, columns
from tests.bench.spark_world import SparkWorld, rate_of, spark_world

_SHARE_MIN = 0.5
_SMALL_BATCH_RATIO_MAX = 2.0
_SMALL_BATCH_EVENTS = 10
_LOOK_SECONDS = 0.02
_PRODUCED_AT_ONCE = 1_000
_WAIT_SECONDS_MAX = 300.0


@dataclass(frozen=True, kw_only=True)
class SparkPlan:
    """The extent of the measurements."""

    events: int = 2_000_000
    """The number of events in the channel that is read as a batch."""
    rounds: int = 5
    stream_events: int = 1_000_000
    stream_batch_events: int = 200_000
    small_batches: int = 100
    produced_events: int = 1_000_000

    @property
    def step_count(self) -> int:
        """The number of steps."""
        return 2 * self.rounds + 3


QUICK_SPARK_PLAN = SparkPlan(
    events=200_000,
    rounds=2,
    stream_events=120_000,
    stream_batch_events=20_000,
    small_batches=15,
    produced_events=60_000,
)


def measure_spark(scratch: Path, plan: SparkPlan, on_step: Callable[[], None]) -> list[Section]:
    """Measures Spark's reads of file channels.

    Args:
        scratch: An empty directory on the disk that is measured.
        plan: The extent.
        on_step: Called after each step.
    """
    with spark_world(scratch) as world, bare_server() as bare:
        sections = [
            _batch_reads(world, bare.address, plan, on_step),
            _streams(world, plan, on_step),
            _small_batches(world, plan),
        ]
        on_step()
        sections.append(_conversion(plan))
        on_step()
        sections.append(_end_to_end(world, plan))
        on_step()
    return sections


def _batch_reads(world: SparkWorld, bare_server: str, plan: SparkPlan, on_step: Callable[[], None]) -> Section:
    channel, parquet = world.make_channel(plan.events), str(world.scratch / "parquet")
    world.fill(channel, plan.events)
    events = world.spark.read.format("millrace").options(endpoints=world.server.grpc, channels=channel).load()
    # The first run warms up both, and does not count.
    events.write.parquet(parquet)
    native = world.spark.read.parquet(parquet)
    ready = world.spark.read.format("millrace-bench-memory").options(events=plan.events)
    sources = (events, native, ready.load(), ready.option("bareServer", bare_server).load())
    for rows in sources[1:]:
        _read_all(rows)
    rates = []
    for _ in range(plan.rounds):
        rates.append([plan.events / _read_all(rows) for rows in sources])
        on_step()
    world.client.admin.delete_channel(channel, force=True)
    ours, theirs, bound, received = map(statistics.median, zip(*rates, strict=True))
    _, share, bound_share, received_share = (
        statistics.median(one[0] / one[source] for one in rates) for source in range(len(sources))
    )
    return Section(
        f"Spark: batch read of {plan.events:,} events of {BODY_BYTES} bytes",
        [
            Line(what="from a file channel", value=ours, unit="events/s"),
            Line(what="the same rows natively from Parquet", value=theirs, unit="rows/s"),
            Line(what="share of it", value=share, unit="", least=_SHARE_MIN),
            Line(what="from a source in Python that has them ready in Arrow", value=bound, unit="events/s"),
            Line(what="share of it", value=bound_share, unit=""),
            Line(
                what="from that source, once the bytes have come from a bare gRPC server",
                value=received,
                unit="events/s",
            ),
            Line(what="share of it", value=received_share, unit=""),
        ],
    )


def _read_all(rows: DataFrame) -> float:
    began = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def _streams(world: SparkWorld, plan: SparkPlan, on_step: Callable[[], None]) -> Section:
    channel = world.make_channel(plan.stream_events)
    world.fill(channel, plan.stream_events)
    memory = world.spark.readStream.format("millrace-bench-memory").option("events", plan.stream_events)
    memory = memory.option("maxEventsPerTrigger", plan.stream_batch_events)
    ours, theirs = [], []
    for _ in range(plan.rounds):
        stream = world.stream(channel, maxEventsPerTrigger=plan.stream_batch_events)
        ours.append(rate_of(world.batch_seconds(stream)))
        theirs.append(rate_of(world.batch_seconds(memory.load())))
        on_step()
    world.client.admin.delete_channel(channel, force=True)
    share = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
    return Section(
        f"Spark: a stream, {plan.stream_batch_events:,} events a micro-batch",
        [
            Line(what="from a file channel", value=statistics.median(ours), unit="events/s"),
            Line(what="the same source fed from memory", value=statistics.median(theirs), unit="events/s"),
            Line(what="share of it", value=share, unit="", least=_SHARE_MIN),
        ],
    )


def _small_batches(world: SparkWorld, plan: SparkPlan) -> Section:
    count = _SMALL_BATCH_EVENTS * plan.small_batches
    channel = world.make_channel(count)
    world.client.channel(channel).append([bytes(BODY_BYTES)] * count)
    ours = world.batch_seconds(world.stream(channel, maxEventsPerTrigger=_SMALL_BATCH_EVENTS))
    rate = world.spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=_SMALL_BATCH_EVENTS, numPartitions=1, startTimestamp=0, advanceMillisPerBatch=1
    )
    theirs = _endless_batches(world, rate.load(), plan.small_batches)
    # Half of the batches warm up.
    mine, other = (statistics.median(seconds[len(seconds) // 2 :]) for seconds in ([s for _, s in ours], theirs))
    return Section(
        f"Spark: micro-batches of {_SMALL_BATCH_EVENTS} events",
        [
            Line(what="from a file channel", value=1_000 * mine, unit="ms"),
            Line(what="Spark's native rate source", value=1_000 * other, unit="ms"),
            Line(what="times as long", value=mine / other, unit="", most=_SMALL_BATCH_RATIO_MAX),
        ],
    )


def _endless_batches(world: SparkWorld, stream: DataFrame, batch_count: int) -> list[float]:
    """The durations of micro-batches of a source without end."""
    query = stream.writeStream.format("noop").option("checkpointLocation", str(world.scratch / "rate")).start()
    try:
        while len(query.recentProgress) < batch_count:
            time.sleep(_LOOK_SECONDS)
    finally:
        query.stop()
    return [progress["durationMs"]["triggerExecution"] / 1_000 for progress in query.recentProgress[:batch_count]]


def _conversion(plan: SparkPlan) -> Section:
    response = pb.ReadResponse(batch=event_pb2.EventBatch(first_sequence=1, columns=columns(BATCH_EVENTS)))
    wire = response.SerializeToString()
    schema = arrow_schema(EVENT_SCHEMA)
    rates = []
    for _ in range(plan.rounds):
        began = time.perf_counter()
        rows = sum(batch.num_rows for batch in _converted(wire, plan.stream_events, schema))
        rates.append(rows / (time.perf_counter() - began))
    return Section(
        "Spark: from the wire's columns to Arrow, without Spark and without RPC",
        [Line(what="one thread", value=statistics.median(rates), unit="events/s")],
    )


def _converted(wire: bytes, event_count: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    responses = (pb.ReadResponse.FromString(wire) for _ in range(event_count // BATCH_EVENTS))
    batches = (
        (response.batch.first_sequence, response.batch.columns, CommitTimes.of(response.batch))
        for response in responses
    )
    return record_batches(batches, schema, {"channel": "bench", "endpoint": "127.0.0.1:0"})


def _end_to_end(world: SparkWorld, plan: SparkPlan) -> Section:
    produced = plan.produced_events // _PRODUCED_AT_ONCE * _PRODUCED_AT_ONCE
    alone = world.make_channel(produced)
    producing = produced / _timed(lambda: _produce(world, alone, produced))
    draining = rate_of(world.batch_seconds(world.stream(alone, maxEventsPerTrigger=max(produced // 5, 1))))
    world.client.admin.delete_channel(alone, force=True)
    together = world.make_channel(produced)
    stream = world.spark.readStream.format("millrace").options(endpoints=world.server.grpc, channels=together).load()
    checkpoint = str(world.scratch / "end-to-end")
    query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    try:
        # The first micro-batch has to start everything.
        world.client.channel(together).append([b"first"])
        _wait_until_empty(world, together, query)
        seconds = _timed(lambda: _produce_and_drain(world, together, produced, query))
    finally:
        query.stop()
    return Section(
        "Spark: from a producer in Python through a file channel with fsync to a stream's no-op sink",
        [
            Line(what="end to end, both at the same time", value=produced / seconds, unit="events/s"),
            Line(what="the producer alone, into the channel", value=producing, unit="events/s"),
            Line(what="the stream alone, out of the full channel", value=draining, unit="events/s"),
        ],
    )


def _produce_and_drain(world: SparkWorld, channel: str, event_count: int, query: StreamingQuery) -> None:
    _produce(world, channel, event_count)
    _wait_until_empty(world, channel, query)


def _produce(world: SparkWorld, channel: str, event_count: int) -> None:
    body = bytes(range(256)) * (BODY_BYTES // 256)
    with millrace.Producer(world.server.grpc, channel=channel) as producer:
        for _ in range(event_count // _PRODUCED_AT_ONCE):
            producer.send_many([body] * _PRODUCED_AT_ONCE)


def _wait_until_empty(world: SparkWorld, channel: str, query: StreamingQuery) -> None:
    give_up = time.monotonic() + _WAIT_SECONDS_MAX
    while world.client.admin.get_channel(channel).gauges.queued_events:
        assert query.isActive, query.exception()
        assert time.monotonic() < give_up, "the stream does not drain its channel"
        time.sleep(_LOOK_SECONDS)


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
