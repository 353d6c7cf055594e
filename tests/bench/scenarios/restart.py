"""A file channel with many events: their memory, and the time until it is open after a stop or a kill."""

import asyncio
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from grpc import aio

from millrace.v1 import channel_service_pb2 as pb
from tests.bench.calls import Method, connect, consume_many, stream_many
from tests.bench.findings import Line, Section
from tests.bench.payloads import BATCH_EVENTS, FILE_CHANNEL, append_columns
from tests.bench.world import CHANNELS
from tests.millraced import Millraced
from tests.process_figures import resident_bytes

_MEMORY_MIB_MAX = 100
_CLEAN_SECONDS_MAX = 0.3
_KILLED_SECONDS_MAX = 1.0
_REPLAY_SHARE_MIN = 0.5

_IN_FLIGHT = 8
_READ_BYTES = 8 << 20
_MIB = 1 << 20

_CONFIG_TOML = f"""
[server]
shutdown_grace_seconds = 0.0
[channels.{FILE_CHANNEL}]
type = "file"
capacity = 2000000
"""
# Checkpoints are only made at a stop, so that the log after the last one has the intended size.
_SELDOM_TOML = """
checkpoint_interval_seconds = 3600.0
segment_bytes_max = 8589934592
"""


@dataclass(frozen=True, kw_only=True)
class RestartPlan:
    """The extent of the measurements."""

    batches: int = 1_000
    """The queued events, in batches of 1,000."""
    settling_seconds: float = 5.5
    """The time for a server to return memory before it is measured; it does so every five seconds."""
    openings: int = 3
    """The number of repetitions of an opening, for the median."""
    tails: Sequence[int] = (0, 64, 128, 256)
    """The sizes of the log after its checkpoint, in MiB."""
    backlog_shares: Sequence[float] = (1.0, 0.5, 0.0)
    """The remaining shares of the queued events."""
    backlog_tail: int = 64
    """The size of the log after its checkpoint meanwhile, in MiB."""

    @property
    def step_count(self) -> int:
        """The number of steps."""
        return 4 + len(self.tails) + len(self.backlog_shares)


QUICK_PLAN = RestartPlan(
    batches=20, settling_seconds=0.1, openings=1, tails=(2,), backlog_shares=(1.0,), backlog_tail=2
)


@dataclass(frozen=True)
class _Opening:
    """The times of a channel's opening."""

    seconds: float
    """From the start of the opening to its end, as the server's log says."""
    outside_seconds: float
    """From the start of the process, measured from outside."""
    replayed_bytes: int


class _Backlog:
    """A file channel with events, used by several servers.

    Args:
        scratch: An empty directory on the disk that is measured.
    """

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._data_dir = scratch / "data"
        self._request = append_columns(BATCH_EVENTS, FILE_CHANNEL)
        self.is_seldom_checkpointed = False
        self.batches = 0

    @property
    def batch_bytes(self) -> int:
        """The approximate bytes of a batch in the log."""
        return len(self._request)

    @contextmanager
    def server(self) -> Iterator[tuple[Millraced, _Opening]]:
        """A server, once the channel is open; killed in the end unless it was stopped."""
        config = self._scratch / "millrace.toml"
        config.write_text(_CONFIG_TOML + (_SELDOM_TOML if self.is_seldom_checkpointed else ""))
        started = time.perf_counter()
        free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
        arguments = ("--config", str(config), "--data-dir", str(self._data_dir), *free_ports)
        # A process of its own: a forked one would already have imported everything.
        server = Millraced(arguments, self._data_dir, python=sys.executable)
        try:
            opened = server.wait_for("channel opened", 120)
            outside_seconds = time.perf_counter() - started
            assert opened["events"] == self.batches * BATCH_EVENTS
            yield server, _Opening(opened["seconds"], outside_seconds, opened["replayed_bytes"])
        finally:
            server.kill()

    async def put(self, connection: aio.Channel, batches: int) -> None:
        """Appends batches."""
        await stream_many(Method(connection, CHANNELS.format("AppendStream"), self._request), batches, _IN_FLIGHT)
        self.batches += batches

    async def take(self, connection: aio.Channel, batches: int) -> None:
        """Takes batches."""
        if not batches:
            return
        start = pb.ConsumeRequest.Start(channel=FILE_CHANNEL, max_events=BATCH_EVENTS, prefetch=8, columns=True)
        await consume_many(connection, start, batches)
        self.batches -= batches

    async def reopened(self) -> _Opening:
        """Opens the channel after the end of the last server; the new server is stopped cleanly."""
        with self.server() as (server, opening):
            await asyncio.to_thread(server.stop)
        return opening

    async def killed_behind(self, tail_bytes: int) -> _Opening:
        """Opens the channel with this many bytes in the log after its checkpoint, with the same backlog."""
        batches = tail_bytes // self.batch_bytes
        with self.server() as (server, _):
            async with connect(server.grpc) as connection:
                await self.put(connection, batches)
                await self.take(connection, batches)
        return await self.reopened()

    async def shrink_to(self, batches: int) -> None:
        """Takes batches until this many are left; the server is stopped cleanly."""
        with self.server() as (server, _):
            async with connect(server.grpc) as connection:
                await self.take(connection, self.batches - batches)
            await asyncio.to_thread(server.stop)

    def remove_checkpoints(self) -> None:
        """Removes the checkpoints, so that only the log is left."""
        for path in self._data_dir.rglob("checkpoint*"):
            path.unlink()

    def segments(self) -> list[Path]:
        """The log's files."""
        return sorted(self._data_dir.rglob("segment-*.log"))


async def measure_restart(scratch: Path, plan: RestartPlan, on_step: Callable[[], None]) -> list[Section]:
    """Queues events, and measures openings after servers that ended in all ways.

    Args:
        scratch: An empty directory on the disk that is measured.
        plan: The extent.
        on_step: Called after each step.
    """
    backlog = _Backlog(scratch)
    memory = await _measure_memory(backlog, plan)
    on_step()
    # By default everything queued since the last checkpoint is after it.
    killed = [await backlog.reopened()]
    on_step()
    clean = [await backlog.reopened() for _ in range(plan.openings)]
    on_step()
    backlog.is_seldom_checkpointed = True
    by_tail, by_backlog = [], []
    for tail in plan.tails:
        opening = await backlog.killed_behind(tail * _MIB)
        by_tail += _lines(f"{tail} MiB behind it", [opening], _KILLED_SECONDS_MAX)
        on_step()
    whole = await _measure_whole_log(backlog, plan.openings)
    on_step()
    for share in plan.backlog_shares:
        await backlog.shrink_to(round(plan.batches * share))
        opening = await backlog.killed_behind(plan.backlog_tail * _MIB)
        what = f"{backlog.batches * BATCH_EVENTS:,} queued, {plan.backlog_tail} MiB behind"
        by_backlog += _lines(what, [opening], _KILLED_SECONDS_MAX)
        on_step()
    return [
        Section(
            f"File: {plan.batches * BATCH_EVENTS:,} events queued in batches of {BATCH_EVENTS:,}",
            [
                Line(what="memory over an empty server", value=memory / _MIB, unit="MiB", most=_MEMORY_MIB_MAX),
                *_lines("clean stop", clean, _CLEAN_SECONDS_MAX),
                *_lines("SIGKILL, default settings", killed, _KILLED_SECONDS_MAX),
            ],
        ),
        Section("File: after SIGKILL, by what came after the checkpoint", by_tail),
        Section("File: after SIGKILL, by the events that are queued", by_backlog),
        Section("File: replay of the whole log, without a checkpoint", whole),
    ]


def _lines(what: str, openings: Sequence[_Opening], seconds_max: float) -> list[Line]:
    replayed = statistics.median(opening.replayed_bytes for opening in openings)
    seconds = statistics.median(opening.seconds for opening in openings)
    outside_seconds = statistics.median(opening.outside_seconds for opening in openings)
    return [
        Line(what=f"{what}: opening, {replayed / _MIB:,.0f} MiB replayed", value=seconds, unit="s", most=seconds_max),
        Line(what=f"{what}: from the process's start", value=outside_seconds, unit="s"),
    ]


async def _measure_memory(backlog: _Backlog, plan: RestartPlan) -> int:
    """Fills the channel of a server without earlier calls, and kills the server; returns the growth of its memory."""
    with backlog.server() as (server, _):
        async with connect(server.grpc) as connection:
            await asyncio.sleep(plan.settling_seconds)
            before = resident_bytes(server.process.pid)
            await backlog.put(connection, plan.batches)
            await asyncio.sleep(plan.settling_seconds)
            return resident_bytes(server.process.pid) - before


async def _measure_whole_log(backlog: _Backlog, openings: int) -> list[Line]:
    lines = []
    for where, is_cached in (("the page cache", True), ("the disk", False)):
        rates: dict[str, list[float]] = {"read": [], "replayed": []}
        for _ in range(openings):
            backlog.remove_checkpoints()
            if not is_cached:
                _drop_from_cache(backlog.segments())
            rates["read"].append(await asyncio.to_thread(_read_rate, backlog.segments()))
            if not is_cached:
                _drop_from_cache(backlog.segments())
            opening = await backlog.reopened()
            rates["replayed"].append(opening.replayed_bytes / opening.seconds)
        read, replayed = (statistics.median(some) for some in rates.values())
        least = None if is_cached else _REPLAY_SHARE_MIN
        lines += [
            Line(what=f"sequential read from {where}", value=read / 1e6, unit="MB/s"),
            Line(what=f"replay from {where}", value=replayed / 1e6, unit="MB/s"),
            Line(what="  share", value=replayed / read, unit="", least=least),
        ]
    return lines


def _read_rate(paths: Sequence[Path]) -> float:
    """The bytes per second of sequential reads of the files."""
    started, byte_count = time.perf_counter(), 0
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while some := file.read(_READ_BYTES):
                byte_count += len(some)
    return byte_count / (time.perf_counter() - started)


def _drop_from_cache(paths: Sequence[Path]) -> None:
    """Drops these files from the kernel's cache; other files stay."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
