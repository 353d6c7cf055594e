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
        self._toml = channel_toml(self.channel, nats_url, lease_seconds)
        self._start = start
        self.running: dict[str, Millraced] = {}
        for _ in range(count):
            self.start()

    def start(self, address: str = "127.0.0.1:0") -> Millraced:
        """Starts a server, a new one or one that has ended."""
        server = self._start(self._toml, arguments=("--listen", address))
        self.running[server.grpc] = server
        return server

    def owner(self) -> Millraced:
        """The server that serves the channel."""
        wait_until(lambda: self._owner_if_known() is not None)
        owner = self._owner_if_known()
        assert owner is not None
        return owner

    def _owner_if_known(self) -> Millraced | None:
        for address, server in self.running.items():
            with millrace.connect(address, timeout_seconds=5.0) as client:
                if client.admin.list_channels()[0].state is millrace.ChannelState.OPEN:
                    return server
        return None

    def others(self) -> list[Millraced]:
        """Those that stand by."""
        owner = self.owner()
        return [server for server in self.running.values() if server is not owner]
