"""Measures what replicated channels cost: two servers share one, over three nodes of the engine."""

import asyncio
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypedDict

import nats

import millrace_client as millrace
from examples.jetstream_cluster import JetStreamCluster
from tests.bench.payloads import FILE_CHANNEL, append_columns
from tests.bench.world import CHANNELS
from tests.millraced import Millraced
from tests.simulation.load import BATCH_EVENTS, Loader, Target, Turn, take_turn

_IN_FLIGHT = 8
_ROUNDS = 5
_TURN_BATCHES = 200
_PUBLISHED = 50
_APPENDED_AROUND = 20
_CALL_SECONDS = 60.0
_CONFIG_TOML = """
[server]
shutdown_grace_seconds = 0.0
[channels.{channel}]
type = "replicated"
capacity = 100000000
byte_capacity = "4GB"
engine = {{ type = "jetstream", servers = {urls}, stream_bytes_max = "2GB", lease_seconds = 10.0 }}
"""


class ReplicatedCosts(TypedDict):
    """The fields of `Costs` that are measured here."""

    replicated_seconds: float
    engine_seconds: float
    engine_byte_seconds: float
    handover_seconds: float
    takeover_seconds: float


def replicated_costs(scratch: Path) -> ReplicatedCosts:
    """Measures everything in a directory; of what a busy machine delays much, the least of some rounds is returned."""
    with ExitStack() as running:
        cluster = running.enter_context(JetStreamCluster(scratch / "engine"))
        engine, byte = asyncio.run(_publish_seconds(cluster.urls[0]))
        pair = _Pair(scratch, cluster.urls)
        running.callback(pair.kill)
        turns = pair.turns()
        handovers = [pair.seconds_without_an_owner(Millraced.stop) for _ in range(_ROUNDS)]
        for _ in range(_ROUNDS):
            pair.seconds_without_an_owner(Millraced.kill)
        return ReplicatedCosts(
            replicated_seconds=statistics.median(turn.server_seconds for turn in turns),
            engine_seconds=engine,
            engine_byte_seconds=byte,
            handover_seconds=min(handovers),
            takeover_seconds=min(pair.takeovers[-_ROUNDS:]),
        )


class _Pair:
    """Two servers of one channel: the owner, and one that stands by.

    Attributes:
        takeovers: The seconds in which an owner opened the channel.
    """

    def __init__(self, scratch: Path, urls: list[str]) -> None:
        self.takeovers: list[float] = []
        self._scratch = scratch
        self._names = itertools.count()
        self._config = scratch / "replicated.toml"
        self._config.write_text(_CONFIG_TOML.format(channel=FILE_CHANNEL, urls=urls))
        self._owner = self._started()
        self._owner.wait_for("channel taken over")
        self._other = self._started()

    def _started(self) -> Millraced:
        data_dir = self._scratch / f"shared-{next(self._names)}"
        ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
        arguments = ("--config", str(self._config), "--data-dir", str(data_dir), *ports)
        return Millraced(arguments, data_dir, python=sys.executable)

    def turns(self) -> list[Turn]:
        """Appends to the owner as to a file channel."""
        loader = Loader(Target(self._owner.grpc, self._owner.process.pid, CHANNELS.format("AppendStream")))
        try:
            return [take_turn([loader], _TURN_BATCHES, _IN_FLIGHT) for _ in range(_ROUNDS)]
        finally:
            loader.close()

    def seconds_without_an_owner(self, end: Callable[[Millraced], object]) -> float:
        """Ends the owner; returns how long a caller waited. The other server is the owner then, and one stands by."""
        with millrace.connect(self._other.grpc, timeout_seconds=_CALL_SECONDS) as client:
            appender = _Appender(client)
            appender.wait_for(_APPENDED_AROUND)
            end(self._owner)
            appender.wait_for(_APPENDED_AROUND)
            seconds = appender.end()
        self.takeovers.append(self._other.wait_for("channel taken over")["seconds"])
        self._owner, self._other = self._other, self._started()
        return seconds

    def kill(self) -> None:
        self._owner.kill()
        self._other.kill()


class _Appender:
    """Appends one event after the other, in a thread."""

    def __init__(self, client: millrace.Client) -> None:
        self._channel = client.channel(FILE_CHANNEL)
        self._longest_seconds = 0.0
        self._appended = threading.Semaphore(0)
        self._is_ending = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_ending:
            began = time.perf_counter()
            self._channel.append([b""])
            self._longest_seconds = max(self._longest_seconds, time.perf_counter() - began)
            self._appended.release()

    def wait_for(self, count: int) -> None:
        """Waits until so many more events are stored."""
        while self._appended.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self._appended.acquire(timeout=_CALL_SECONDS)

    def end(self) -> float:
        """Returns the longest time that an event took."""
        self._is_ending = True
        self._thread.join()
        return self._longest_seconds


async def _publish_seconds(url: str) -> tuple[float, float]:
    """The seconds of storing a message on three nodes, and of each byte: from small and large messages."""
    batch = append_columns(BATCH_EVENTS, FILE_CHANNEL)
    connection = await nats.connect(url)
    stream = connection.jetstream()
    await stream.add_stream(name="bare", subjects=["bare"], num_replicas=3)

    async def seconds(data: bytes) -> float:
        began = time.perf_counter()
        for _ in range(_PUBLISHED):
            await stream.publish("bare", data, timeout=_CALL_SECONDS)
        return (time.perf_counter() - began) / _PUBLISHED

    rounds = [(await seconds(batch), await seconds(batch * _IN_FLIGHT)) for _ in range(_ROUNDS)]
    await connection.close()
    small, large = (statistics.median(found) for found in zip(*rounds, strict=True))
    byte = max(large - small, 0.0) / (len(batch) * (_IN_FLIGHT - 1))
    return max(small - len(batch) * byte, 0.0), byte
