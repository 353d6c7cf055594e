"""A cluster of nats-servers with JetStream on this machine, whose nodes can be killed, halted and started again."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from examples.access_log.interruptions import uninterrupted
from examples.free_ports import free_ports

_PROGRAM = Path(sys.executable).with_name("nats-server")
_HOST = "127.0.0.1"
_WAIT_SECONDS_MAX = 60.0
_POLL_SECONDS = 0.02
_HTTP_SECONDS = 2.0

_PORTS_PER_NODE = 3

T = TypeVar("T")


class ClusterError(Exception):
    """Raised when the nodes do not become ready; the message is for the user."""


@dataclass
class Node:
    """One nats-server, which keeps its addresses and its data over restarts.

    Attributes:
        name: Its name in the cluster.
        directory: Its configuration, its log and its data.
        port: Where clients connect.
        monitoring_port: Where it tells about itself over HTTP.
    """

    name: str
    directory: Path
    port: int
    route_port: int
    monitoring_port: int
    extra_config: str = ""
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)

    @property
    def url(self) -> str:
        """Where clients connect, as a URL."""
        return f"nats://{_HOST}:{self.port}"

    @property
    def monitoring_url(self) -> str:
        """Where it tells about itself, as a URL."""
        return f"http://{_HOST}:{self.monitoring_port}"

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    @property
    def last_words(self) -> str:
        """The last line of its log, for the case that it is not ready."""
        lines = self._log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else "its log is empty"

    @property
    def is_running(self) -> bool:
        """Whether its process exists."""
        return self._process is not None and self._process.poll() is None

    def start(self, routes: Sequence[int]) -> None:
        """Starts its process with what it had stored; does not wait until it is ready."""
        assert not self.is_running, "a node runs once"
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "server.conf"
        config.write_text(self._config(routes))
        with self._log.open("ab") as log, uninterrupted():
            # In its own session, so that Ctrl-C reaches only this program, which then stops it.
            self._process = subprocess.Popen([_PROGRAM, "-c", config], stderr=log, start_new_session=True)

    def _config(self, routes: Sequence[int]) -> str:
        lines = [
            f"server_name: {self.name}",
            f'listen: "{_HOST}:{self.port}"',
            f'http: "{_HOST}:{self.monitoring_port}"',
            f"jetstream: {{store_dir: '{self.directory}', sync_interval: always}}",
            self.extra_config,
        ]
        if len(routes) > 1:
            urls = ", ".join(f'"nats://{_HOST}:{port}"' for port in routes)
            # One connection to each other node: a pool of several takes long to come back after a kill. Clients know
            # the addresses that they were given only, so that a proxy before a node is not bypassed.
            options = f'listen: "{_HOST}:{self.route_port}", routes: [{urls}], pool_size: -1, no_advertise: true'
            lines.append(f"cluster: {{name: millrace, {options}}}")
        return "\n".join(lines) + "\n"

    def kill(self) -> None:
        """Kills it with SIGKILL, and waits for its end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def halt(self) -> None:
        """Lets it stand still, with its connections open."""
        assert self._process is not None, "a node that is halted runs"
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it continue after `halt`."""
        assert self._process is not None, "a node that continues runs"
        self._process.send_signal(signal.SIGCONT)

    def told(self, path: str) -> dict[str, Any] | None:
        """Returns what it tells over HTTP at a path; None if it does not respond, or is not ready."""
        try:
            with urllib.request.urlopen(f"{self.monitoring_url}/{path}", timeout=_HTTP_SECONDS) as response:  # noqa: S310 - loopback
                document: dict[str, Any] = json.load(response)
        except (OSError, ValueError):
            return None
        return document

    def when_ready(self) -> Self | None:
        """Returns itself if it serves and has all that it stores up to date, and None before."""
        told = self.told("healthz")
        return self if told is not None and told.get("status") == "ok" else None


class JetStreamCluster:
    """Some nodes, three as a rule, that run while the context lasts.

    Attributes:
        nodes: All of them, running or not.
    """

    def __init__(self, directory: Path, node_count: int = 3, *, extra_config: str = "") -> None:
        """Prepares nodes that store below a directory.

        Args:
            directory: Where each node has a directory of its own.
            node_count: 1, or an odd number.
            extra_config: Further lines of each node's configuration, such as users or TLS.
        """
        ports = iter(free_ports(_PORTS_PER_NODE * node_count))
        self.nodes = [
            Node(f"n{number}", directory / f"n{number}", next(ports), next(ports), next(ports), extra_config)
            for number in range(1, node_count + 1)
        ]

    @property
    def urls(self) -> list[str]:
        """Where clients connect."""
        return [node.url for node in self.nodes]

    def start(self) -> None:
        """Starts the nodes that do not run, and waits until all are ready.

        Raises:
            ClusterError: One is not ready within a minute.
        """
        for node in self.nodes:
            self.start_node(node)
        for node in self.nodes:
            _wait_for(node.when_ready, partial(_not_ready, node))

    def start_node(self, node: Node) -> None:
        """Starts a node unless it runs; does not wait until it is ready."""
        if not node.is_running:
            node.start([each.route_port for each in self.nodes])

    def leader_of(self, stream: str) -> Node:
        """Waits until a stream has a leader that runs, and returns that node.

        Raises:
            ClusterError: It has none within a minute.
        """
        return _wait_for(lambda: self._leader_of(stream), lambda: f"the leader of stream {stream}")

    def _leader_of(self, stream: str) -> Node | None:
        # Each node asks for itself, since one that was cut off does not know that it leads no more.
        told = {node.name: node.told("jsz?streams=true&config=false") for node in self.nodes if node.is_running}
        leaders = [name for name, document in told.items() if name == _leader_in(document or {}, stream)]
        return next((node for node in self.nodes if [node.name] == leaders), None)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Ends all nodes. Their data stays."""
        for node in self.nodes:
            node.kill()


def _leader_in(document: dict[str, Any], stream: str) -> str | None:
    for account in document.get("account_details", []):
        for details in account.get("stream_detail", []):
            if details["name"] == stream:
                leader: str | None = details.get("cluster", {}).get("leader")
                return leader
    return None


def _not_ready(node: Node) -> str:
    return f"node {node.name} ({node.last_words})"


def _wait_for(find: Callable[[], T | None], what: Callable[[], str]) -> T:
    give_up_at = time.monotonic() + _WAIT_SECONDS_MAX
    while (found := find()) is None:
        if time.monotonic() > give_up_at:
            raise ClusterError(f"{what()} was not ready within {_WAIT_SECONDS_MAX:.0f} s")
        time.sleep(_POLL_SECONDS)
    return found
