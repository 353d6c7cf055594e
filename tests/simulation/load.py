"""Load on real servers: for each one a process of its own that appends batches on a stream.

`python -m tests.simulation.load ADDRESS` waits for lines `COUNT IN_FLIGHT` on its standard input, appends so many
batches for each, and answers with the seconds that it took and its own processor time.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.calls import Method, connect, stream_many
from tests.bench.payloads import FILE_CHANNEL, append_columns
from tests.bench.world import CHANNELS
from tests.millraced import Millraced
from tests.process_figures import cpu_seconds

BATCH_EVENTS = 100
_ROOT = Path(__file__).resolve().parents[2]
_CONFIG_TOML = f"""
[server]
shutdown_grace_seconds = 0.0
[channels.{FILE_CHANNEL}]
type = "file"
capacity = 100000000
byte_capacity = 68719476736
"""


def start_server(scratch: Path) -> Millraced:
    """Starts a server with one file channel, in a process of its own interpreter."""
    scratch.mkdir()
    config, data_dir = scratch / "millrace.toml", scratch / "data"
    config.write_text(_CONFIG_TOML)
    free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    return Millraced(
        ("--config", str(config), "--data-dir", str(data_dir), *free_ports), data_dir, python=sys.executable
    )


@dataclass(frozen=True)
class Turn:
    """What one turn of load took."""

    batches_per_second: float
    """Of all servers together."""
    server_cpu_seconds: float
    """For one batch."""
    client_cpu_seconds: float
    """For one batch."""


class Loader:
    """A process that puts load on one server."""

    def __init__(self, server: Millraced) -> None:
        self.server = server
        command = [sys.executable, "-m", __name__, server.grpc]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def begin(self, count: int, in_flight: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count} {in_flight}\n")

    def end(self) -> tuple[float, float]:
        """Waits until it is done; returns its seconds, and those of its processor."""
        assert self._process.stdout is not None
        seconds, cpu = self._process.stdout.readline().split()
        return float(seconds), float(cpu)

    def close(self) -> None:
        self._process.communicate()


def take_turn(loaders: Sequence[Loader], count: int, in_flight: int) -> Turn:
    """Has all loaders append so many batches each at the same time."""
    before = sum(cpu_seconds(loader.server.process.pid) for loader in loaders)
    for loader in loaders:
        loader.begin(count, in_flight)
    answers = [loader.end() for loader in loaders]
    used = sum(cpu_seconds(loader.server.process.pid) for loader in loaders) - before
    batches = count * len(loaders)
    rate = sum(count / seconds for seconds, _ in answers)
    return Turn(rate, used / batches, sum(cpu for _, cpu in answers) / batches)


async def _serve(address: str) -> None:
    method = Method(connect(address), CHANNELS.format("AppendStream"), append_columns(BATCH_EVENTS, FILE_CHANNEL))
    while line := await asyncio.to_thread(sys.stdin.readline):
        count, in_flight = map(int, line.split())
        began, cpu_before = time.perf_counter(), time.process_time()
        await stream_many(method, count, in_flight)
        print(time.perf_counter() - began, time.process_time() - cpu_before, flush=True)  # noqa: T201 - its answer
    await method.connection.close()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
