"""The source `taildir`: from lines in a file to events in a channel."""

import statistics
import sys
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
"""The channel types that are measured, with their targets."""
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
    """The extent of the measurements."""

    lines: int = 1_000_000
    """The number of lines in each file."""
    rounds: int = 5
    """The number of files for each type of channel, one after the other."""
    idle_seconds: float = 3.0
    """The time for which the idle source is measured."""

    @property
    def step_count(self) -> int:
        """The number of steps."""
        return self.rounds * len(_CHANNEL_TYPES)


QUICK_TAILDIR_PLAN = TaildirPlan(lines=200_000, rounds=1, idle_seconds=0.5)


@dataclass(frozen=True)
class _Reading:
    """The figures of one file."""

    lines_per_second: float
    server_microseconds: float
    """The server's processor time for a thousand lines."""
    bare_lines_per_second: float
    """The rate of a bare loop over the lines of the same file."""


def measure_taildir(scratch: Path, plan: TaildirPlan, on_step: Callable[[], None]) -> list[Section]:
    """Measures servers that read files into memory and file channels, without sinks.

    Args:
        scratch: An empty directory on the disk that is measured.
        plan: The extent.
        on_step: Called after each step.
    """
    return [_measure(scratch / channel_type, channel_type, plan, on_step) for channel_type in _CHANNEL_TYPES]


def _measure(scratch: Path, channel_type: str, plan: TaildirPlan, on_step: Callable[[], None]) -> Section:
    logs, config, data_dir = scratch / "logs", scratch / "millrace.toml", scratch / "data"
    logs.mkdir(parents=True)
    config.write_text(_CONFIG_TOML.format(channel_type=channel_type, logs=logs))
    free_ports = ("--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
    server = Millraced(
        ("--config", str(config), "--data-dir", str(data_dir), *free_ports), data_dir, python=sys.executable
    )
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
    """Adds a file of lines with these numbers, and measures from the first events to the last."""
    # The source could take files with the same lines for copies of each other.
    _write(log.with_suffix(".made"), numbers)
    lines = len(numbers)
    pid = server.process.pid
    first = client.admin.get_channel("lines").gauges.next_sequence
    cpu_before = cpu_seconds(pid)
    log.with_suffix(".made").rename(log)
    # The time until a new file is noticed is not part of the rate.
    began, begun_with = _wait_for(client, first + 1)
    ended, ended_with = _wait_for(client, first + lines)
    cpu_used = cpu_seconds(pid) - cpu_before
    assert client.admin.purge_channel("lines") == lines
    rate = (ended_with - begun_with) / (ended - began)
    bare_rate = _bare_rate(log)
    log.unlink()
    return _Reading(rate, cpu_used / lines * 1e9, bare_rate)


def _wait_for(client: Client, sequence: int) -> tuple[float, int]:
    """Waits until the next sequence is this one or a later one; returns the time, and that sequence."""
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
