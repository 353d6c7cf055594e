"""Measures what one batch costs a real server: `python -m tests.simulation.calibration` writes `costs.json`."""

import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from millrace.v1 import channel_service_pb2 as pb
from tests.bench.bare_disk import append_synced
from tests.bench.bare_server import METHOD, log_server
from tests.bench.calls import connect, consume_many
from tests.bench.payloads import FILE_CHANNEL, append_columns
from tests.bench.world import CHANNELS
from tests.millraced import Millraced
from tests.process_figures import cpu_seconds
from tests.simulation.costs import Costs
from tests.simulation.load import BATCH_EVENTS, Loader, Target, Turn, kept_busy, start_server, take_turn
from tests.simulation.replicated_costs import replicated_costs
from tests.simulation.scenario import closed_loop_rate

IN_FLIGHT = 8
SERVERS = 3
"""The most servers on one machine whose costs are measured."""
TURN_BATCHES = 1_000
WARM_UP_BATCHES = 300
_ROUNDS = 9
_LONE_BATCHES = 100
_WRITES = 50
_BATCH = append_columns(BATCH_EVENTS, FILE_CHANNEL)


@dataclass(frozen=True)
class Calibration:
    """Measures one server, alone and beside others that only receive and write.

    Attributes:
        loader: Puts load on the server.
        neighbours: Each puts load on a bare server.
        scratch: A directory on the disk that is measured.
    """

    loader: Loader
    neighbours: Sequence[Loader]
    scratch: Path

    def costs(self) -> Costs:
        """Measures once, in turns of a fraction of a second, all but neighbours, restarts and replicated channels."""
        sync, byte = self._writes()
        busy = self.turn_beside(0)
        lone = take_turn([self.loader], _LONE_BATCHES, 1)
        lone_seconds = lone.work_seconds + sync + len(_BATCH) * byte
        costs = Costs(
            machine=_machine(),
            batch_events=BATCH_EVENTS,
            batch_bytes=len(_BATCH),
            disk_bytes=0,
            append_seconds=busy.server_seconds,
            stall_seconds=0.0,
            client_seconds=busy.client_seconds,
            consume_seconds=self._consume(),
            sync_seconds=sync,
            byte_seconds=byte,
            trip_seconds=max(1 / lone.batches_per_second - lone_seconds, 0.0),
            restart_seconds=0.0,
            replicated_seconds=0.0,
            engine_seconds=0.0,
            engine_byte_seconds=0.0,
            handover_seconds=0.0,
            takeover_seconds=0.0,
            crowding=[1.0] * SERVERS,
            overlap=[1.0, *(self._overlap(writers) for writers in range(2, SERVERS + 1))],
        )
        unstalled_rate = closed_loop_rate(1, IN_FLIGHT, busy.cores, costs)
        return replace(costs, stall_seconds=max(1 / busy.batches_per_second - 1 / unstalled_rate, 0.0))

    def turn_beside(self, neighbours: int) -> Turn:
        """Loads the server for a fraction of a second while so many bare ones are loaded as well."""
        with kept_busy(self.neighbours[:neighbours], IN_FLIGHT):
            return take_turn([self.loader], TURN_BATCHES, IN_FLIGHT)

    def crowding(self) -> list[float]:
        """The processor time of a batch beside 0, 1 and more neighbours, of that without."""
        return [1.0, *map(self._crowding, range(1, SERVERS))]

    def _crowding(self, neighbours: int) -> float:
        # In turns, since what other programs do to the caches and the cores changes from second to second.
        crowded, *alone, again = [self.turn_beside(count).work_seconds for count in (neighbours, 0, 0, neighbours)]
        return (crowded + again) / sum(alone)

    def _overlap(self, writers: int) -> float:
        """The rate of several logs that sync to the disk at the same time, together, of one alone."""
        alone = self._write_seconds(_BATCH * IN_FLIGHT)
        with ThreadPoolExecutor(writers) as threads:
            began = time.perf_counter()
            for done in [threads.submit(self._write_seconds, _BATCH * IN_FLIGHT, one) for one in range(writers)]:
                done.result()
            together = time.perf_counter() - began
        return writers * _WRITES * alone / together

    def _writes(self) -> tuple[float, float]:
        """The seconds of a sync, and of each byte: from small and large writes."""
        small, large = (self._write_seconds(_BATCH * count) for count in (1, IN_FLIGHT))
        byte = max(large - small, 0.0) / (len(_BATCH) * (IN_FLIGHT - 1))
        return max(small - len(_BATCH) * byte, 0.0), byte

    def _write_seconds(self, data: bytes, writer: int = 0) -> float:
        began = time.perf_counter()
        append_synced(self.scratch / f"bare-loop-{writer}", data, _WRITES, sets_aside=True)
        return (time.perf_counter() - began) / _WRITES

    def _consume(self) -> float:
        """The server's processor time for a batch that it delivers."""
        target = self.loader.target
        before = cpu_seconds(target.pid)
        asyncio.run(_consume(target.address))
        return (cpu_seconds(target.pid) - before) / TURN_BATCHES


async def _consume(address: str) -> None:
    async with connect(address) as connection:
        start = pb.ConsumeRequest.Start(channel=FILE_CHANNEL, max_events=BATCH_EVENTS, prefetch=IN_FLIGHT, columns=True)
        await consume_many(connection, start, TURN_BATCHES)


@contextmanager
def loaded_servers(scratch: Path) -> Iterator[tuple[list[Loader], Calibration]]:
    """Starts servers, and bare ones beside the first, each with a process that loads it, warm.

    Yields the loaders of the servers, and the calibration of the first one.
    """
    with ExitStack() as running:

        def loaded(target: Target) -> Loader:
            loader = Loader(target)
            running.callback(loader.close)
            take_turn([loader], WARM_UP_BATCHES, IN_FLIGHT)
            return loader

        loaders, neighbours = [], []
        for number in range(SERVERS):
            server = start_server(scratch / f"server-{number}")
            running.callback(server.kill)
            loaders.append(loaded(Target(server.grpc, server.process.pid, CHANNELS.format("AppendStream"))))
        for number in range(1, SERVERS):
            directory = scratch / f"bare-{number}"
            directory.mkdir()
            bare = running.enter_context(log_server(directory))
            neighbours.append(loaded(Target(bare.address, bare.pid, METHOD.format("log_stream"))))
        yield loaders, Calibration(loaders[0], neighbours, scratch)


def median_costs(rounds: Sequence[Costs]) -> Costs:
    """The median of each figure that is measured in each round."""
    names = [name for name in Costs.__annotations__ if name.endswith("_seconds")]
    medians: dict[str, Any] = {name: statistics.median(getattr(one, name) for one in rounds) for name in names}
    overlap = map(statistics.median, zip(*(one.overlap for one in rounds), strict=True))
    return replace(rounds[0], **medians, overlap=list(overlap))


def restart_costs(scratch: Path) -> tuple[int, float]:
    """The bytes on the disk for each batch, and the seconds of a restart with little in the channel."""
    server = start_server(scratch)
    loader = Loader(Target(server.grpc, server.process.pid, CHANNELS.format("AppendStream")))
    take_turn([loader], WARM_UP_BATCHES, IN_FLIGHT)
    loader.close()
    server.stop()
    # What the log sets aside ahead of its writing is zeros.
    used = sum(len(path.read_bytes().rstrip(b"\0")) for path in server.data_dir.rglob("*") if path.is_file())
    again = Millraced(server.arguments, server.data_dir, python=sys.executable)
    seconds = cpu_seconds(again.process.pid)
    again.kill()
    return round(used / WARM_UP_BATCHES), seconds


def _machine() -> str:
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} cores {platform.machine()}, {datetime.now(UTC):%Y-%m-%d}, load average {load:.0f}"


def main() -> None:
    """Measures, and writes the costs."""
    build = Path(__file__).resolve().parents[2] / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as directory:
        scratch = Path(directory)
        with loaded_servers(scratch) as [_, calibration]:
            rounds = [(calibration.costs(), calibration.crowding()) for _ in range(_ROUNDS)]
            costs = median_costs([one for one, _ in rounds])
            crowding = map(statistics.median, zip(*(found for _, found in rounds), strict=True))
        disk_bytes, restart_seconds = restart_costs(scratch / "restarted")
        shared = replicated_costs(scratch)
    replace(costs, crowding=list(crowding), disk_bytes=disk_bytes, restart_seconds=restart_seconds, **shared).save()


if __name__ == "__main__":
    main()
