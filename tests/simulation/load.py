"""Load on real servers: for each one a process of its own that appends batches on a stream.

`python -m tests.simulation.load ADDRESS METHOD` waits for lines `COUNT IN_FLIGHT` on its standard input, sends so many
batches for each, and responds with the seconds that it took.
"""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.bench.calls import Method, connect, stream_many
from tests.bench.payloads import FILE_CHANNEL, append_columns
from tests.millraced import Millraced
from tests.process_figures import cpu_seconds, idle_seconds

BATCH_EVENTS = 100
_STEP_BATCHES = 50
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
    """Of all servers together, until the last is done."""
    server_seconds: float
    """Processor time of one batch at the servers."""
    client_seconds: float
    """The same at the clients."""
    cores: float
    """What other programs left of the machine's cores: what this load used, and what was idle."""

    @property
    def work_seconds(self) -> float:
        """Processor time of one batch, of both sides."""
        return self.server_seconds + self.client_seconds


class Target(NamedTuple):
    """A server that takes batches."""

    address: str
    pid: int
    method: str


class Loader:
    """A process that puts load on one server."""

    def __init__(self, target: Target) -> None:
        self.target = target
        command = [sys.executable, "-m", __name__, target.address, target.method]
        self._process = subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, count: int, in_flight: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{count} {in_flight}\n")

    def end(self) -> float:
        """Waits until it is done; returns its seconds."""
        assert self._process.stdout is not None
        return float(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


def take_turn(loaders: Sequence[Loader], count: int, in_flight: int) -> Turn:
    """Has all loaders append so many batches each at the same time."""
    servers, clients = [loader.target.pid for loader in loaders], [loader.pid for loader in loaders]
    batches = count * len(loaders)
    began, idle_before = time.perf_counter(), idle_seconds()
    server_before, client_before = _processor_seconds(servers), _processor_seconds(clients)
    for loader in loaders:
        loader.begin(count, in_flight)
    seconds = max(loader.end() for loader in loaders)
    wall_seconds, idle = time.perf_counter() - began, idle_seconds() - idle_before
    server, client = _processor_seconds(servers) - server_before, _processor_seconds(clients) - client_before
    return Turn(batches / seconds, server / batches, client / batches, (server + client + idle) / wall_seconds)


def _processor_seconds(pids: Sequence[int]) -> float:
    return sum(map(cpu_seconds, pids))


@contextmanager
def kept_busy(loaders: Sequence[Loader], in_flight: int) -> Iterator[None]:
    """Has loaders append for as long as the block runs."""
    is_over = threading.Event()

    def keep_busy(loader: Loader) -> None:
        while not is_over.is_set():
            loader.begin(_STEP_BATCHES, in_flight)
            loader.end()

    with ThreadPoolExecutor(len(loaders) or 1) as threads:
        working = [threads.submit(keep_busy, loader) for loader in loaders]
        try:
            yield
        finally:
            is_over.set()
    for one in working:
        one.result()


async def _serve(address: str, name: str) -> None:
    method = Method(connect(address), name, append_columns(BATCH_EVENTS, FILE_CHANNEL))
    while line := await asyncio.to_thread(sys.stdin.readline):
        count, in_flight = map(int, line.split())
        began = time.perf_counter()
        await stream_many(method, count, in_flight)
        print(time.perf_counter() - began, flush=True)  # noqa: T201 - its response
    await method.connection.close()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
