"""Measures what one batch costs a real server: `python -m tests.simulation.calibration` writes `costs.json`."""

import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from millrace.v1 import channel_service_pb2 as pb
from tests.bench.bare_disk import append_synced
from tests.bench.calls import connect, consume_many
from tests.bench.payloads import FILE_CHANNEL, append_columns
from tests.millraced import Millraced
from tests.process_figures import cpu_seconds
from tests.simulation.costs import Costs
from tests.simulation.load import BATCH_EVENTS, Loader, start_server, take_turn

IN_FLIGHT = 8
_ROUNDS = 5
_TURN_BATCHES = 1_000
_LONE_BATCHES = WARM_UP_BATCHES = 300
_WRITES = 100
_BATCH = append_columns(BATCH_EVENTS, FILE_CHANNEL)


class Calibration:
    """Measures one server, on the disk of a directory."""

    def __init__(self, loader: Loader, scratch: Path) -> None:
        self._loader, self._scratch = loader, scratch

    def costs(self) -> Costs:
        """Measures everything once."""
        sync, byte = self._writes()
        busy = take_turn([self._loader], _TURN_BATCHES, IN_FLIGHT)
        lone = take_turn([self._loader], _LONE_BATCHES, 1)
        work = lone.client_cpu_seconds + lone.server_cpu_seconds + sync + len(_BATCH) * byte
        return Costs(
            machine=f"{os.cpu_count()} cores {platform.machine()}, {datetime.now(UTC):%Y-%m-%d}",
            batch_events=BATCH_EVENTS,
            batch_bytes=len(_BATCH),
            disk_bytes=0,
            append_seconds=busy.server_cpu_seconds,
            client_seconds=busy.client_cpu_seconds,
            consume_seconds=self._consume(),
            sync_seconds=sync,
            byte_seconds=byte,
            trip_seconds=max(1 / lone.batches_per_second - work, 0.0),
            restart_seconds=0.0,
        )

    def disk_gain(self, writers: int) -> float:
        """The rate of several logs that sync to the disk at the same time, together, as a multiple of one alone."""
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
        append_synced(self._scratch / f"bare-loop-{writer}", data, _WRITES, sets_aside=True)
        return (time.perf_counter() - began) / _WRITES

    def _consume(self) -> float:
        """The server's processor time for a batch that it delivers."""
        server = self._loader.server
        before = cpu_seconds(server.process.pid)
        asyncio.run(_consume(server.grpc))
        return (cpu_seconds(server.process.pid) - before) / _TURN_BATCHES


async def _consume(address: str) -> None:
    async with connect(address) as connection:
        start = pb.ConsumeRequest.Start(channel=FILE_CHANNEL, max_events=BATCH_EVENTS, prefetch=IN_FLIGHT, columns=True)
        await consume_many(connection, start, _TURN_BATCHES)


@contextmanager
def loaded_servers(count: int, scratch: Path) -> Iterator[list[Loader]]:
    """Starts so many servers, each with a process that loads it, warm."""
    with ExitStack() as running:
        loaders = []
        for number in range(count):
            server = start_server(scratch / f"server-{number}")
            running.callback(server.kill)
            loaders.append(Loader(server))
            running.callback(loaders[-1].close)
        take_turn(loaders, WARM_UP_BATCHES, IN_FLIGHT)
        yield loaders


def median_costs(rounds: list[Costs]) -> Costs:
    """The median of each figure that is a time."""
    names = [name for name in Costs.__annotations__ if name.endswith("_seconds")]
    return replace(rounds[0], **{name: statistics.median(getattr(one, name) for one in rounds) for name in names})


def restart_costs(loader: Loader, costs: Costs) -> Costs:
    """The bytes on the disk for each batch, and the time of a restart; the server has nothing but warm-up batches."""
    began = time.perf_counter()
    loader.server.stop()
    data_dir = loader.server.data_dir
    # What the log sets aside ahead of its writing is zeros.
    used = sum(len(path.read_bytes().rstrip(b"\0")) for path in data_dir.rglob("*") if path.is_file())
    server = Millraced(loader.server.arguments, data_dir, python=sys.executable)
    seconds = time.perf_counter() - began
    server.kill()
    return replace(costs, disk_bytes=round(used / WARM_UP_BATCHES), restart_seconds=seconds)


def main() -> None:
    """Measures, and writes the costs."""
    build = Path(__file__).resolve().parents[2] / "build"
    build.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as scratch, loaded_servers(2, Path(scratch)) as [loader, fresh]:
        calibration = Calibration(loader, Path(scratch))
        costs = median_costs([calibration.costs() for _ in range(_ROUNDS)])
        restart_costs(fresh, costs).save()


if __name__ == "__main__":
    main()
