"""Real servers that share a replicated channel."""

import millrace_client as millrace
from tests.conftest import StartMillraced
from tests.millraced import Millraced
from tests.stream_logs import new_name
from tests.waiting import wait_until

WAIT_SECONDS = 60.0
SHORT_LEASE_SECONDS = 2.0


def channel_toml(channel: str, nats_url: str, lease_seconds: float = SHORT_LEASE_SECONDS) -> str:
    """The table of a replicated channel."""
    engine = f'type = "jetstream", servers = ["{nats_url}"], replicas = 1, stream_bytes_max = "64MB"'
    return f'[channels."{channel}"]\ntype = "replicated"\nengine = {{ {engine}, lease_seconds = {lease_seconds} }}\n'


class ReplicatedServers:
    """Servers that share one channel."""

    def __init__(self, start: StartMillraced, nats_url: str, count: int, lease_seconds: float) -> None:
        self.channel = new_name()
        grace = f"server.shutdown_grace_seconds = {WAIT_SECONDS}\n"
        self._toml = grace + channel_toml(self.channel, nats_url, lease_seconds)
        self._start = start
        self.running: dict[str, Millraced] = {}
        for _ in range(count):
            self.start()

    def start(self, address: str | None = None) -> Millraced:
        """Starts a server: a new one, or one that has ended at its address."""
        server = self._start(self._toml, arguments=() if address is None else ("--listen", address))
        self.running[server.grpc] = server
        return server

    def owner(self) -> Millraced:
        """The server that serves the channel."""
        owner, _ = self.roles()
        return owner

    def roles(self) -> tuple[Millraced, list[Millraced]]:
        """The server that serves the channel, and those that stand by."""
        owner = None

        def is_found() -> bool:
            nonlocal owner
            owner = next(filter(self._owns, self.running.values()), None)
            return owner is not None

        wait_until(is_found)
        assert owner is not None
        return owner, [server for server in self.running.values() if server is not owner]

    def _owns(self, server: Millraced) -> bool:
        with millrace.connect(server.grpc, timeout_seconds=WAIT_SECONDS) as client:
            return client.admin.list_channels()[0].state is millrace.ChannelState.OPEN
