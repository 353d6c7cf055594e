"""A file channel with many single events: their memory, how they are taken, and the time until it is open again."""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grpc import aio

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import channel_service_pb2_grpc, event_pb2
from tests.bench.calls import Method, connect, stream_many
from tests.bench.findings import Line, Section
from tests.bench.world import CHANNELS
from tests.millraced import Millraced
from tests.process_figures import resident_bytes

_MIB = 1 << 20
_MEMORY_MIB_MAX = 64
_SHARE_MIN = 0.6
_CHECKPOINT_SECONDS_MAX = 0.5
_LOG_SECONDS_MAX = 3.0
_EXCESS_MILLISECONDS_MAX = 20.0

_BODY = bytes(100)
_AT_ONCE = 1_000
_STREAMS = 8
_IN_FLIGHT = 32
_TAKES = 10
# A stream has a deadline.
_STREAM_BATCHES_MAX = 10_000

_CONFIG_TOML = """
[server]
shutdown_grace_seconds = 0.0
[channels.single]
type = "file"
capacity = 2000000
checkpoint_interval_seconds = {interval}
segment_bytes_max = 8589934592
[channels.thousands]
type = "file"
capacity = 2000000
[channels.lone]
type = "file"
"""


@dataclass(frozen=True)
class SmallBatchesPlan:
    """The extent of the measurements."""

    events: int = 1_000_000
    rounds: int = 5
    lone_appends: int = 2_000
    """The number of lone appends while checkpoints are made."""

    @property
    def step_count(self) -> int:
        """The number of steps."""
        return 5


QUICK_SMALL_BATCHES_PLAN = SmallBatchesPlan(20_000, 2, 100)


class _Servers:
    """Servers with the same data, one after the other."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch

    @contextmanager
    def server(self, interval_seconds: float) -> Iterator[tuple[Millraced, float]]:
        """A server whose channels are open, and the seconds since its start; killed at the end."""
        config, data_dir = self._scratch / "millrace.toml", self._scratch / "data"
        config.write_text(_CONFIG_TOML.format(interval=interval_seconds))
        free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
        started = time.perf_counter()
        arguments = ("--config", str(config), "--data-dir", str(data_dir), *free_ports)
        server = Millraced(arguments, data_dir, python=sys.executable)
        try:
            while sum(entry["event"] == "channel opened" for entry in server.log) < _CONFIG_TOML.count("[channels."):
                time.sleep(0.005)
            yield server, time.perf_counter() - started
        finally:
            server.kill()

    def opening_seconds(self) -> float:
        """The seconds from the start of a server, which is killed, until its channels are open."""
        with self.server(3_600) as (_, seconds):
            return seconds


async def measure_small_batches(scratch: Path, plan: SmallBatchesPlan, on_step: Callable[[], None]) -> list[Section]:
    """Appends events one by one, and measures what they cost.

    Args:
        scratch: An empty directory on the disk that is measured.
        plan: The extent.
        on_step: Called after each step.
    """
    servers = _Servers(scratch)
    empty_seconds = statistics.median(servers.opening_seconds() for _ in range(plan.rounds))
    with servers.server(3_600) as (server, _):
        before = resident_bytes(server.process.pid)
        async with connect(server.grpc) as connection:
            await asyncio.gather(*[_append(connection, "single", plan.events // _STREAMS, 1) for _ in range(_STREAMS)])
        memory = resident_bytes(server.process.pid) - before
    on_step()
    log_seconds = statistics.median(servers.opening_seconds() for _ in range(plan.rounds)) - empty_seconds
    on_step()
    with servers.server(1.0) as (server, _):
        async with connect(server.grpc) as connection:
            latencies = await _lone_latencies(connection, plan.lone_appends)
    on_step()
    checkpoint_seconds = statistics.median(servers.opening_seconds() for _ in range(plan.rounds)) - empty_seconds
    on_step()
    with servers.server(3_600) as (server, _):
        async with connect(server.grpc) as connection:
            shares = [await _share(connection, plan) for _ in range(plan.rounds)]
    on_step()
    p50, p999 = (statistics.quantiles(latencies, n=1_000)[index] * 1_000 for index in (499, 998))
    figures = (memory / _MIB, statistics.median(shares), checkpoint_seconds, log_seconds, p999 - p50)
    lines = [
        Line(what=what, value=value, unit=unit, **limit)
        for (what, unit, limit), value in zip(_FIGURES, figures, strict=True)
    ]
    return [Section(f"File: {plan.events:,} single events of {len(_BODY)} bytes", lines)]


_FIGURES: tuple[tuple[str, str, dict[str, float]], ...] = (
    ("memory over an empty server", "MiB", {"most": _MEMORY_MIB_MAX}),
    ("taken in thousands, of the rate if they are stored in thousands", "", {"least": _SHARE_MIN}),
    ("SIGKILL with a checkpoint: start, longer than empty", "s", {"most": _CHECKPOINT_SECONDS_MAX}),
    ("SIGKILL without a checkpoint: start, longer than empty", "s", {"most": _LOG_SECONDS_MAX}),
    ("a lone append, checkpoints each second: p99.9 above p50", "ms", {"most": _EXCESS_MILLISECONDS_MAX}),
)


async def _append(connection: aio.Channel, channel: str, batches: int, events: int) -> None:
    columns = event_pb2.EventColumns(count=events, body_sizes=[len(_BODY)] * events, bodies=_BODY * events)
    request = pb.AppendStreamRequest(channel=channel, columns=columns).SerializeToString()
    method = Method(connection, CHANNELS.format("AppendStream"), request)
    for first in range(0, batches, _STREAM_BATCHES_MAX):
        await stream_many(method, min(_STREAM_BATCHES_MAX, batches - first), _IN_FLIGHT)


async def _lone_latencies(connection: aio.Channel, count: int) -> list[float]:
    latencies = []
    for _ in range(count):
        started = time.perf_counter()
        # To the channel of the single events too, since a checkpoint is made of what has changed.
        await _append(connection, "single", 1, 1)
        await _append(connection, "lone", 1, 1)
        latencies.append(time.perf_counter() - started)
    return latencies


async def _share(connection: aio.Channel, plan: SmallBatchesPlan) -> float:
    batches = plan.events // plan.rounds // _AT_ONCE
    await _append(connection, "thousands", batches, _AT_ONCE)
    single = await _take_rate(connection, "single", batches)
    return single / await _take_rate(connection, "thousands", batches)


async def _take_rate(connection: aio.Channel, channel: str, batches: int) -> float:
    """Takes events in thousands, ten times in each transaction; returns the events per second."""
    stub = channel_service_pb2_grpc.ChannelServiceStub(connection)
    started, taken = time.perf_counter(), 0
    while taken < batches * _AT_ONCE:
        txn_id = (await stub.BeginTxn(pb.BeginTxnRequest(channel=channel))).txn_id
        # No more than was stored in this round: the next one would lack them, and wait.
        for _ in range(min(_TAKES, batches - taken // _AT_ONCE)):
            response = await stub.Take(pb.TakeRequest(txn_id=txn_id, max_events=_AT_ONCE, columns=True))
            taken += sum(batch.columns.count for batch in response.batches)
        await stub.Commit(pb.CommitRequest(txn_ids=[txn_id]))
    return taken / (time.perf_counter() - started)
