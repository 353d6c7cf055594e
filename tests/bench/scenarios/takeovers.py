"""How long a replicated channel with many events is not served when its owner dies, and when it leaves."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from examples.jetstream_cluster import JetStreamCluster
from millrace.v1 import admin_service_pb2 as admin
from millrace.v1 import admin_service_pb2_grpc, channel_service_pb2_grpc
from millrace.v1 import channel_service_pb2 as pb
from tests.bench.findings import Line, Section
from tests.bench.payloads import append_columns
from tests.millraced import Millraced

_BATCHES = (1_000, 10)
_CALLERS = 16
_LEASE_SECONDS = 5.0
_CALL_SECONDS = 30.0
_GIVE_UP_SECONDS = 120.0
_PAUSE_SECONDS = 0.01
_DEAD_SECONDS_MAX = 1.5
"""Beside the lease."""
_LEFT_SECONDS_MAX = 1.0


@dataclass(frozen=True)
class TakeoverPlan:
    """The extent of the measurements."""

    rounds: int = 3
    events: int = 250_000

    @property
    def step_count(self) -> int:
        """The rounds of each batch size."""
        return self.rounds * len(_BATCHES)


QUICK_TAKEOVER_PLAN = TakeoverPlan(1, 20_000)


def measure_takeovers(scratch: Path, plan: TakeoverPlan, on_step: Callable[[], None]) -> list[Section]:
    """Kills and stops the owners of channels that were filled before, whose checkpoints are far apart.

    Args:
        scratch: An empty directory on the disk that is measured.
        plan: The extent.
        on_step: Called after each step.
    """
    lines = []
    with JetStreamCluster(scratch / "engine") as cluster:
        for events in _BATCHES:
            dead, left = [], []
            for number in range(plan.rounds):
                with _Pair.started(cluster, scratch / f"{events}-{number}") as pair:
                    pair.fill(plan.events, events)
                    dead.append(pair.kill_owner() - _LEASE_SECONDS)
                    left.append(pair.stop_owner())
                on_step()
            what = f"{plan.events:,} events in batches of {events:,}"
            lines += [
                _line(f"{what}: its owner died, beside the lease", dead, _DEAD_SECONDS_MAX),
                _line(f"{what}: its owner left", left, _LEFT_SECONDS_MAX),
            ]
    return [Section(f"Replicated: until the next owner serves; leases of {_LEASE_SECONDS:g} s", lines)]


def _line(what: str, seconds: Sequence[float], most: float) -> Line:
    return Line(what=what, value=statistics.median(seconds), unit="s", most=most)


class _Pair:
    """Two servers that share a channel, which the first owns in the beginning."""

    def __init__(self, arguments: Sequence[tuple[Sequence[str], Path]], channel: str) -> None:
        self._channel = channel
        self._arguments = arguments
        self._owner = self._start(0)
        self._serving(self._owner)
        self._other = self._start(1)

    @classmethod
    @contextmanager
    def started(cls, cluster: JetStreamCluster, scratch: Path) -> Iterator["_Pair"]:
        """Runs them until the end of the block."""
        channel = f"c{scratch.name}"
        arguments = []
        for number in range(2):
            directory = scratch / str(number)
            directory.mkdir(parents=True)
            (directory / "millrace.toml").write_text(_config(cluster, channel))
            data_dir = directory / "data"
            free = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
            arguments.append(
                (("--config", str(directory / "millrace.toml"), "--data-dir", str(data_dir), *free), data_dir)
            )
        pair = cls(arguments, channel)
        try:
            yield pair
        finally:
            pair._owner.kill()
            pair._other.kill()

    def _start(self, number: int) -> Millraced:
        return Millraced(*self._arguments[number])

    def fill(self, events: int, batch: int) -> None:
        """Appends so many events by callers that each wait for their responses."""
        request = append_columns(batch, self._channel)
        with grpc.insecure_channel(self._owner.grpc, options=[("grpc.max_send_message_length", -1)]) as connection:
            append: Any = connection.unary_unary("/millrace.v1.ChannelService/Append")

            def call(count: int) -> None:
                for _ in range(count):
                    append(request, timeout=_CALL_SECONDS)

            with ThreadPoolExecutor(_CALLERS) as callers:
                list(callers.map(call, [events // batch // _CALLERS + 1] * _CALLERS))

    def kill_owner(self) -> float:
        """Returns how long it takes until the other server appends; then the killed one stands by."""
        begun = time.monotonic()
        self._owner.kill()
        self._serving(self._other)
        seconds = time.monotonic() - begun
        self._owner, self._other = self._other, self._start(0)
        self._wait_for_others()
        return seconds

    def stop_owner(self) -> float:
        """The same for one that is stopped gracefully."""
        begun = time.monotonic()
        with ThreadPoolExecutor(1) as stopping:
            stopped = stopping.submit(self._owner.stop)
            self._serving(self._other)
            seconds = time.monotonic() - begun
            assert stopped.result() == 0
        return seconds

    def _serving(self, server: Millraced) -> None:
        """Returns once the server appends an event."""
        give_up = time.monotonic() + _GIVE_UP_SECONDS
        with grpc.insecure_channel(server.grpc) as connection:
            stub = channel_service_pb2_grpc.ChannelServiceStub(connection)
            request = pb.AppendRequest.FromString(append_columns(1, self._channel))
            while True:
                try:
                    stub.Append(request, timeout=_CALL_SECONDS)
                except grpc.RpcError:
                    if time.monotonic() > give_up:
                        raise
                    time.sleep(_PAUSE_SECONDS)
                else:
                    return

    def _wait_for_others(self) -> None:
        """Returns once the other server knows who owns the channel, so that it is one that can take it over."""
        with grpc.insecure_channel(self._other.grpc) as connection:
            stub = admin_service_pb2_grpc.AdminServiceStub(connection)
            request = admin.GetChannelRequest(name=self._channel)
            while stub.GetChannel(request, timeout=_CALL_SECONDS).channel.owner != self._owner.grpc:
                time.sleep(_PAUSE_SECONDS)


def _config(cluster: JetStreamCluster, channel: str) -> str:
    servers = ", ".join(f'"{url}"' for url in cluster.urls)
    return f"""\
[channels."{channel}"]
type = "replicated"
capacity = 1000000
# So that a killed owner has written no checkpoint, and the next one reads the whole log.
checkpoint_interval_seconds = 3600

[channels."{channel}".engine]
type = "jetstream"
servers = [{servers}]
stream_bytes_max = "2GB"
lease_seconds = {_LEASE_SECONDS}
"""
