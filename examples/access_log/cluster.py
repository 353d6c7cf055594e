"""The agents of the job with an engine: two collectors share a replicated channel, which outlives each of them.

live log -> edge: taildir, file channel, sink -> the collector that owns the channel -> three nodes; -> Spark
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import millrace_client as millrace
from examples.access_log.agents import (
    CHANNEL,
    Agents,
    RoundLimits,
    byte_capacity,
    collector_toml,
    edge_toml,
    empty_live_log,
)
from examples.access_log.crashes import crash_of
from examples.access_log.interruptions import scratch_folder, uninterrupted
from examples.access_log.local_server import LocalServer, ServerError, local_server
from examples.jetstream_cluster import JetStreamCluster

_STREAM = f"MILLRACE_{CHANNEL}"
_MESSAGE_BYTES_MAX = 64 << 20
"""More than the engine's default, for lines of the largest size."""
_LEASE_SECONDS = 5.0
"""Shorter than the default, so that the job need not wait long for the takeover."""
_OWNER_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.05


@contextmanager
def agents_on_a_cluster(folder: Path, limits: RoundLimits) -> Iterator[Agents]:
    """Runs the nodes, two collectors and the edge while the block runs; the agents' logs are in the folder.

    Raises:
        ClusterError: The nodes did not become ready.
        ServerError: A server did not start, or did not stop in time.
    """
    with ExitStack() as running:
        with uninterrupted():
            live_log = running.enter_context(empty_live_log(folder))
        scratch = running.enter_context(scratch_folder("nodes-", folder))
        cluster = running.enter_context(JetStreamCluster(scratch, extra_config=f"max_payload: {_MESSAGE_BYTES_MAX}"))
        toml = _replicated_toml(limits, cluster.urls)
        collectors = tuple(
            running.enter_context(local_server(toml, CHANNEL, folder / f"collector-{number}.log", stands_by=number > 1))
            for number in (1, 2)
        )
        endpoints = [collector.endpoint for collector in collectors]
        edge = running.enter_context(
            local_server(edge_toml(limits, live_log, *endpoints), CHANNEL, folder / "edge.log")
        )
        channel = _SharedChannel(cluster, collectors)
        crashes = (crash_of(edge, "while the log was growing"), channel.lose_node, channel.lose_owner)
        description = (
            f"The edge listens on {edge.endpoint}, the collectors on {' and '.join(endpoints)}; the nodes "
            f"{', '.join(cluster.urls)} keep their channel"
        )
        yield Agents(live_log, edge, collectors[0], crashes, description)


def _replicated_toml(limits: RoundLimits, urls: Sequence[str]) -> str:
    return f"""\
{collector_toml(limits, "replicated")}
[channels.{CHANNEL}.engine]
type = "jetstream"
servers = {json.dumps(urls)}
# What is kept until the next checkpoints, too.
stream_bytes_max = {3 * byte_capacity(limits)}
lease_seconds = {_LEASE_SECONDS}
"""


@dataclass(frozen=True)
class _SharedChannel:
    """A replicated channel, which loses a node of its engine, and its owner."""

    cluster: JetStreamCluster
    collectors: Sequence[LocalServer]

    def lose_node(self) -> str:
        """Kills the node that leads the channel's stream, and starts it again once another one leads."""
        begun = time.monotonic()
        node = self.cluster.leader_of(_STREAM)
        node.kill()
        leader = self.cluster.leader_of(_STREAM)
        elected_seconds = time.monotonic() - begun
        self.cluster.start()
        return (
            f"Killed the node {node.name} (SIGKILL), which led the channel's stream: after {elected_seconds:.2f} s "
            f"{leader.name} led it, and after {time.monotonic() - begun:.2f} s {node.name} was back"
        )

    def lose_owner(self) -> str:
        """Kills the collector that owns the channel, and starts it again once the other one has taken over."""
        owner = self._owner()
        [other] = [collector for collector in self.collectors if collector is not owner]
        log_bytes = other.log_bytes
        begun = time.monotonic()
        owner.kill()
        taken_over = other.wait_for_opening(log_bytes)
        seconds = time.monotonic() - begun
        owner.start_again()
        return (
            f"Killed {owner.name} (SIGKILL), which owned the channel: after {seconds:.2f} s {other.name} had taken it "
            f"over, with {taken_over['events']:,} events, which it read from the stream in "
            f"{taken_over['seconds']:.2f} s; {owner.name} is back, and stands by"
        )

    def _owner(self) -> LocalServer:
        give_up = time.monotonic() + _OWNER_SECONDS_MAX
        while True:
            for collector in self.collectors:
                with millrace.connect(collector.endpoint) as client:
                    [channel] = client.admin.list_channels()
                if channel.state is millrace.ChannelState.OPEN:
                    return collector
            if time.monotonic() > give_up:
                raise ServerError(f"no collector owned the channel within {_OWNER_SECONDS_MAX:.0f} s")
            time.sleep(_POLL_SECONDS)
