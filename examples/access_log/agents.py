"""The two agents of the job: the edge, where the log grows, and the collector.

live log -> edge: taildir, file channel, sink -> collector: file channel -> Spark
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from examples.access_log.crashes import Crash, crash_of
from examples.access_log.interruptions import uninterrupted
from examples.access_log.local_server import LocalServer, local_server

CHANNEL = "lines"
"""The channel's name, in both agents."""

_BATCH_LINES_MAX = 1_000
LINE_BYTES_MAX = 16 << 20


@dataclass(frozen=True, kw_only=True)
class RoundLimits:
    """The capacity of each agent. A larger log is landed in several rounds."""

    lines_max: int = 1_000_000
    bytes_max: int = 512 << 20


@dataclass(frozen=True)
class Agents:
    """The agents, while they run."""

    live_log: Path
    """The file that the edge follows."""
    edge: LocalServer
    collector: LocalServer
    """The collector, or one of those that share the channel."""
    crashes: Sequence[Crash]
    """What crashes while the log grows, one after the other."""
    description: str
    """A sentence that says where they listen."""


@contextmanager
def two_agents(folder: Path, limits: RoundLimits) -> Iterator[Agents]:
    """Runs both agents while the block runs; their logs are `edge.log` and `collector.log` in the folder.

    Raises:
        ServerError: One did not start, or did not stop in time.
    """
    with (
        empty_live_log(folder) as live_log,
        local_server(collector_toml(limits), CHANNEL, folder / "collector.log") as collector,
        local_server(edge_toml(limits, live_log, collector.endpoint), CHANNEL, folder / "edge.log") as edge,
    ):
        crashes = (
            crash_of(edge, "while the log was growing"),
            crash_of(collector, "while the edge was forwarding to it"),
        )
        description = f"The edge listens on {edge.endpoint}, the collector on {collector.endpoint}"
        yield Agents(live_log, edge, collector, crashes, description)


@contextmanager
def empty_live_log(folder: Path) -> Iterator[Path]:
    """Creates the file that the edge follows, and removes it at the end of the block."""
    live_log = folder / "live.log"
    try:
        live_log.write_bytes(b"")
        yield live_log
    finally:
        with uninterrupted():
            live_log.unlink(missing_ok=True)


def collector_toml(limits: RoundLimits, channel_type: str = "file") -> str:
    """Returns the configuration of the collector: a channel that holds one round."""
    return f"""\
[channels.{CHANNEL}]
type = "{channel_type}"
capacity = {limits.lines_max}
transaction_capacity = {min(_BATCH_LINES_MAX, limits.lines_max)}
# A fifth of it is set aside for headers, and one line of the largest size fits whatever else is there.
byte_capacity = {byte_capacity(limits)}
"""


def byte_capacity(limits: RoundLimits) -> int:
    """Returns the bytes that each channel holds."""
    return 2 * (limits.bytes_max + LINE_BYTES_MAX)


def edge_toml(limits: RoundLimits, live_log: Path, *collectors: str) -> str:
    """Returns the configuration of the edge, which follows a file and forwards its lines to the collector."""
    return f"""\
{collector_toml(limits)}
[sources.live_log]
type = "taildir"
paths = ['{live_log.resolve()}']
channels = ["{CHANNEL}"]
basename_header = "file"
line_bytes_max = {LINE_BYTES_MAX}

[sinks.collector]
type = "millrace"
channel = "{CHANNEL}"
endpoints = {json.dumps(collectors)}
target_channel = "{CHANNEL}"
failover_seconds = 1.0
"""
