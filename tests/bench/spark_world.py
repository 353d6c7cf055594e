"""The setup for measuring Spark: a session, a server, and channels with incompressible events."""

import asyncio
import os
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import millrace_client as millrace
from millrace.columns import columns_from_events
from millrace.v1 import channel_service_pb2 as pb
from millrace_spark import ensure_java, register
from tests.bench.calls import Method, connect, stream_many
from tests.bench.memory_source import MemorySource
from tests.bench.payloads import BATCH_EVENTS, BODY_BYTES
from tests.millraced import Millraced
from tests.spark_session import java_started_without_fork

_VARIANTS = 20
"""The number of different batches. With fewer, Parquet would store each body once, and read next to nothing."""

_IN_FLIGHT = 8
_SEED = 17
_CONFIG_TOML = """
[server]
shutdown_grace_seconds = 0.0
"""


@dataclass
class SparkWorld:
    """One session on all cores, and one server."""

    spark: SparkSession
    server: Millraced
    client: millrace.Client
    scratch: Path
    _number: int = field(default=0)

    def make_channel(self, capacity: int) -> str:
        """An empty file channel."""
        self._number += 1
        name = f"bench-{self._number}"
        config = millrace.ChannelConfig(
            type=millrace.ChannelType.FILE,
            capacity=capacity,
            transaction_capacity=min(10_000, capacity),
            byte_capacity=2 * capacity * BODY_BYTES + (64 << 20),
        )
        self.client.admin.create_channel(name, config)
        return name

    def fill(self, channel: str, event_count: int) -> None:
        """Appends this many events, a multiple of `BATCH_EVENTS`."""
        asyncio.run(_fill(self.server.grpc, channel, event_count // BATCH_EVENTS))

    def stream(self, channel: str, **options: str | int) -> DataFrame:
        """A channel as a stream, from which nothing is removed."""
        reader = self.spark.readStream.format("millrace").option("endpoints", self.server.grpc)
        return reader.options(channels=channel, ackMode="never", **options).load()

    def batch_seconds(self, stream: DataFrame) -> Sequence[tuple[int, float]]:
        """Runs a query into the no-op sink until its end; returns the rows and the duration of each micro-batch."""
        self._number += 1
        checkpoint = self.scratch / f"checkpoint-{self._number}"
        query = stream.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
        running = query.trigger(availableNow=True).start()
        running.awaitTermination()
        return [
            (progress["numInputRows"], progress["durationMs"]["triggerExecution"] / 1_000)
            for progress in running.recentProgress
            if progress["numInputRows"]
        ]


def rate_of(batches: Sequence[tuple[int, float]]) -> float:
    """Rows per second, median of the batches; the first one, which starts everything, does not count."""
    return statistics.median(rows / seconds for rows, seconds in batches[1:] or batches)


@contextmanager
def spark_world(scratch: Path) -> Iterator[SparkWorld]:
    """Starts a session and a server, and ends them.

    Args:
        scratch: An empty directory on the disk that is measured.
    """
    with ExitStack() as ending:
        config, data_dir = scratch / "millrace.toml", scratch / "data"
        config.write_text(_CONFIG_TOML)
        places = ("--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
        server = Millraced(("--config", str(config), *places), data_dir, python=sys.executable)
        ending.callback(server.kill)
        client = ending.enter_context(millrace.connect(server.grpc))
        spark = _session(scratch)
        ending.callback(spark.stop)
        yield SparkWorld(spark, server, client, scratch)


def _session(scratch: Path) -> SparkSession:
    ensure_java()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("millrace-bench")
    for name, value in (
        ("spark.driver.bindAddress", "127.0.0.1"),
        ("spark.driver.host", "127.0.0.1"),
        ("spark.driver.memory", "2g"),
        ("spark.local.dir", str(scratch / "spark")),
        ("spark.sql.shuffle.partitions", "2"),
        ("spark.sql.streaming.numRecentProgressUpdates", "1000"),
        ("spark.ui.enabled", "false"),
        ("spark.ui.showConsoleProgress", "false"),
    ):
        builder = builder.config(name, value)
    with java_started_without_fork():
        spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    spark.dataSource.register(MemorySource)
    return spark


async def _fill(endpoint: str, channel: str, batch_count: int) -> None:
    chance = random.Random(_SEED)
    async with connect(endpoint) as connection:
        for variant in range(_VARIANTS):
            count = len(range(variant, batch_count, _VARIANTS))
            if count:
                [columns] = columns_from_events(
                    ({"host": "web-1.example.org", "timestamp": str(number)}, chance.randbytes(BODY_BYTES))
                    for number in range(variant * BATCH_EVENTS, (variant + 1) * BATCH_EVENTS)
                )
                request = pb.AppendStreamRequest(channel=channel, columns=columns).SerializeToString()
                method = Method(connection, "/millrace.v1.ChannelService/AppendStream", request)
                await stream_many(method, count, _IN_FLIGHT)
