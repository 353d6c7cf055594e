"""The source `taildir`: from lines in a file to events in a channel."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from millrace_client import Client, connect
from tests.bench.findings import Line, Section
from tests.millraced import Millraced
from tests.process_figures import cpu_seconds

LINE_BYTES = 200
LINES_PER_SECOND_MIN = 200_000

_CHANNEL_TYPES = {"memory": LINES_PER_SECOND_MIN, "file": None}
"""What is measured, and what is to be reached."""
_LOOK_SECONDS = 0.02
_IDLE_SHARE_MAX = 0.02
_LINES_AT_ONCE = 10_000

_CONFIG_TOML = """
[server]
shutdown_grace_seconds = 0.0
[channels.lines]
type = "{channel_type}"
capacity = 10000000
transaction_capacity = 10000
byte_capacity = 8589934592
[sources.logs]
type = "taildir"
channels = ["lines"]
paths = ["{logs}/*.log"]
"""


@dataclass(frozen=True, kw_only=True)
class TaildirPlan:
    """How much is measured."""

    lines: int = 1_000_000
    """In each file."""
    rounds: int = 5
    """Files, one after the other, into each type of channel."""
    idle_seconds: float = 3.0
    """How long it is looked at what the source costs once all is read."""

    @property
    def step_count(self) -> int:
        """How many steps it takes."""
        return self.rounds * len(_CHANNEL_TYPES)


QUICK_TAILDIR_PLAN = TaildirPlan(lines=200_000, rounds=1, idle_seconds=0.5)


@dataclass(frozen=True)
class _Reading:
    """How one file was read."""

    lines_per_second: float
    server_microseconds: float
    """Processor time of the server, for a thousand lines."""
    bare_lines_per_second: float
    """What a bare loop over the lines of the same file does, which keeps nothing."""


def measure_taildir(scratch: Path, plan: TaildirPlan, on_step: Callable[[], None]) -> list[Section]:
    """Has servers read files into channels in memory and on a disk; sinks there are none.

    Args:
        scratch: An empty directory on the disk that is measured.
        plan: How much of it.
        on_step: Called after each step.
    """
    return [_measure(scratch / channel_type, channel_type, plan, on_step) for channel_type in _CHANNEL_TYPES]


def _measure(scratch: Path, channel_type: str, plan: TaildirPlan, on_step: Callable[[], None]) -> Section:
    logs, config, data_dir = scratch / "logs", scratch / "millrace.toml", scratch / "data"
    logs.mkdir(parents=True)
    config.write_text(_CONFIG_TOML.format(channel_type=channel_type, logs=logs))
    free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    server = Millraced(("--config", str(config), "--data-dir", str(data_dir), *free_ports), data_dir)
    readings = []
    try:
        with connect(server.grpc) as client:
            for number in range(plan.rounds):
                readings.append(_read_one(server, client, logs / f"{number}.log", range(number, number + plan.lines)))
                on_step()
            idle_from = cpu_seconds(server.process.pid)
            time.sleep(plan.idle_seconds)
            idle_share = (cpu_seconds(server.process.pid) - idle_from) / plan.idle_seconds
    finally:
        server.kill()
    lines = _lines(readings, idle_share, _CHANNEL_TYPES[channel_type])
    return Section(f"taildir: lines of {LINE_BYTES} bytes into a {channel_type} channel", lines)


def _lines(readings: Sequence[_Reading], idle_share: float, least: float | None) -> list[Line]:
    rate = statistics.median(reading.lines_per_second for reading in readings)
    bare_rate = statistics.median(reading.bare_lines_per_second for reading in readings)
    cost = statistics.median(reading.server_microseconds for reading in readings)
    return [
        Line(what="one file", value=rate, unit="lines/s", least=least),
        Line(what="server's processor time for 1,000 lines", value=cost, unit="us"),
        Line(what="a bare loop over its lines, which keeps nothing", value=bare_rate, unit="lines/s"),
        Line(what="processors used once all is read", value=idle_share, unit="", most=_IDLE_SHARE_MAX),
    ]


def _read_one(server: Millraced, client: Client, log: Path, numbers: range) -> _Reading:
    """Lays a file of lines with these numbers before the source, and measures from the first events to the last."""
    # Files with the same lines might be copies of each other, for all that the source knows.
    _write(log.with_suffix(".made"), numbers)
    lines = len(numbers)
    pid = server.process.pid
    first = client.admin.get_channel("lines").gauges.next_sequence
    cpu_before = cpu_seconds(pid)
    log.with_suffix(".made").rename(log)
    # How soon a new file is noticed is no part of how fast it is read.
    began, begun_with = _wait_for(client, first + 1)
    ended, ended_with = _wait_for(client, first + lines)
    cpu_used = cpu_seconds(pid) - cpu_before
    assert client.admin.purge_channel("lines") == lines
    rate = (ended_with - begun_with) / (ended - began)
    bare_rate = _bare_rate(log)
    log.unlink()
    return _Reading(rate, cpu_used / lines * 1e9, bare_rate)


def _wait_for(client: Client, sequence: int) -> tuple[float, int]:
    """When the next sequence to be given was seen to be this one or a later one, and which it was."""
    while True:
        next_sequence = client.admin.get_channel("lines").gauges.next_sequence
        if next_sequence >= sequence:
            return time.perf_counter(), next_sequence
        time.sleep(_LOOK_SECONDS)


def _write(path: Path, numbers: range) -> None:
    filler = "x" * (LINE_BYTES - len("000000000\n"))
    with path.open("w", encoding="ascii") as file:
        for start in range(0, len(numbers), _LINES_AT_ONCE):
            some = numbers[start : start + _LINES_AT_ONCE]
            file.write("".join([f"{number:09}{filler}\n" for number in some]))


def _bare_rate(path: Path) -> float:
    started, count = time.perf_counter(), 0
    with path.open("rb") as file:
        for _ in file:
            count += 1
    return count / (time.perf_counter() - started)
