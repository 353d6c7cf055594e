"""A server with many channels: its start and stop, threads and idle processor time, and what a scrape holds up."""

import asyncio
import statistics
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millrace.v1 import channel_service_pb2 as pb
from millrace.v1 import event_pb2
from tests.bench.calls import Method, call_many, connect
from tests.bench.findings import Line, Section
from tests.bench.world import CHANNELS
from tests.millraced import Millraced
from tests.process_figures import cpu_seconds, thread_count

_OPEN_SECONDS_MAX = 3.0
_THREADS_MAX = 64
_IDLE_SHARE_MAX = 0.005
_SCRAPE_SECONDS_MAX = 0.3
_APPEND_MILLISECONDS_MAX = 30.0
_STOP_SECONDS_MAX = 3.0

_SETTLING_SECONDS = 2.0
_SCRAPE_PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class ManyChannelsPlan:
    """The extent of the measurements."""

    file_channels: int = 1_000
    memory_channels: int = 10_000
    rounds: int = 5
    idle_seconds: float = 10.0
    scrapes: int = 5

    @property
    def step_count(self) -> int:
        """The number of steps."""
        return 2 * self.rounds


QUICK_MANY_CHANNELS_PLAN = ManyChannelsPlan(100, 1_000, 1, 1.0, 2)


async def measure_many_channels(scratch: Path, plan: ManyChannelsPlan, on_step: Callable[[], None]) -> list[Section]:
    """Starts a server with new channels, uses and stops it, and starts it with the same channels again.

    Args:
        scratch: An empty directory on the disk that is measured.
        plan: The extent.
        on_step: Called after each round.
    """
    sections = []
    for kind, count in (("file", plan.file_channels), ("memory", plan.memory_channels)):
        rounds = []
        for number in range(plan.rounds):
            await asyncio.to_thread(_write_config, scratch / f"{kind}-{number}", kind, count)
            rounds.append(await _round(scratch / f"{kind}-{number}", kind, count, plan))
            on_step()
        medians = [statistics.median(each) for each in zip(*rounds, strict=True)]
        lines = [
            Line(what=what, value=value, unit=unit, most=most)
            for (what, unit, most), value in zip(_FIGURES, medians, strict=True)
        ]
        sections.append(Section(f"{count:,} channels of type {kind}", lines))
    return sections


_FIGURES = (
    ("all open, new", "s", _OPEN_SECONDS_MAX),
    ("all open, again", "s", _OPEN_SECONDS_MAX),
    ("threads once all are open", "", _THREADS_MAX),
    ("threads when idle", "", _THREADS_MAX),
    ("processor time when idle", "s/s", _IDLE_SHARE_MAX),
    ("/metrics", "s", _SCRAPE_SECONDS_MAX),
    ("longest lone append meanwhile", "ms", _APPEND_MILLISECONDS_MAX),
    ("stop", "s", _STOP_SECONDS_MAX),
)


def _write_config(scratch: Path, kind: str, count: int) -> None:
    scratch.mkdir()
    channels = (f'[channels.c{number:05}]\ntype = "{kind}"\ncapacity = 1000000\n' for number in range(count))
    (scratch / "millrace.toml").write_text("".join(channels))


async def _round(scratch: Path, kind: str, count: int, plan: ManyChannelsPlan) -> tuple[float, ...]:
    server, new_seconds = _started(scratch, kind, count)
    server.stop()
    server, again_seconds = _started(scratch, kind, count)
    try:
        threads = thread_count(server.process.pid)
        await asyncio.sleep(_SETTLING_SECONDS)
        before = cpu_seconds(server.process.pid)
        await asyncio.sleep(plan.idle_seconds)
        idle_share = (cpu_seconds(server.process.pid) - before) / plan.idle_seconds
        idle_threads = thread_count(server.process.pid)
        scrape_seconds, append_seconds = await _scraped(server, plan.scrapes)
        stopped = time.perf_counter()
        server.stop()
        stop_seconds = time.perf_counter() - stopped
    finally:
        server.kill()
    return (
        new_seconds,
        again_seconds,
        threads,
        idle_threads,
        idle_share,
        scrape_seconds,
        append_seconds * 1_000,
        stop_seconds,
    )


def _started(scratch: Path, kind: str, count: int) -> tuple[Millraced, float]:
    """Returns a server with all channels open, and the seconds from its start until then."""
    arguments = ("--config", str(scratch / "millrace.toml"), "--data-dir", str(scratch / "data"))
    started = time.perf_counter()
    free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    server = Millraced((*arguments, *free_ports), scratch / "data", python=sys.executable)
    # A channel in memory is open at once.
    while kind == "file" and sum(entry["event"] == "channel opened" for entry in list(server.log)) < count:
        time.sleep(0.02)
    return server, time.perf_counter() - started


async def _scraped(server: Millraced, scrapes: int) -> tuple[float, float]:
    """Appends one event after the other and scrapes; returns a scrape's median and the longest append in seconds."""
    columns = event_pb2.EventColumns(count=1, body_sizes=[100], bodies=bytes(100))
    request = pb.AppendRequest(channel="c00000", columns=columns).SerializeToString()
    async with connect(server.grpc) as connection:
        method = Method(connection, CHANNELS.format("Append"), request)
        # The first call connects.
        await call_many(method, 10, 1)
        scraping = asyncio.create_task(_scrape(server, scrapes))
        append_seconds = [0.0]
        while not scraping.done():
            started = time.perf_counter()
            await call_many(method, 1, 1)
            append_seconds.append(time.perf_counter() - started)
    return await scraping, max(append_seconds)


async def _scrape(server: Millraced, scrapes: int) -> float:
    def fetch() -> float:
        started = time.perf_counter()
        with urllib.request.urlopen(f"http://{server.http}/metrics", timeout=60) as response:
            response.read()
        return time.perf_counter() - started

    seconds = []
    for _ in range(scrapes):
        seconds.append(await asyncio.to_thread(fetch))
        await asyncio.sleep(_SCRAPE_PAUSE_SECONDS)
    return statistics.median(seconds)
