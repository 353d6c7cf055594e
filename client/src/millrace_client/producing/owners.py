"""The servers that own channels but were not given to a producer: other servers have named them."""

from collections.abc import Callable, Iterable, Sequence

from millrace_client._endpoints import endpoint_problem
from millrace_client.errors import BadArgumentError, NotOwnerError
from millrace_client.producing.config import ProducerConfig
from millrace_client.producing.servers import Server, ServerChannel
from millrace_client.producing.targets import ConnectionOptions, Target


class Owners:
    """Finds the servers that own channels. For the engine's event loop; `servers` for any thread.

    Attributes:
        servers: Those that the producer was not given itself.
    """

    def __init__(self, connection: ConnectionOptions, config: ProducerConfig, on_change: Callable[[], None]) -> None:
        self.servers: tuple[Server, ...] = ()
        self._connection = connection
        self._config = config
        self._on_change = on_change
        self._owned: set[str] = set()
        """The channels that have owners."""

    def find(self, channel: ServerChannel, error: NotOwnerError, given: Iterable[Server]) -> Server | None:
        """Returns the server that a refusal names as a channel's owner; None if it names none that can be used."""
        self._owned.add(channel.name)
        channel.is_shared = True
        for server in (*given, *self.servers):
            if server.target.address == error.address:
                return server
        if not error.address or endpoint_problem(error.address):
            return None
        target = Target(address=error.address, authority="")
        try:
            server = Server(target, self._connection, self._config, self._on_change)
        except BadArgumentError:
            # The token would be sent in plain text, or a file cannot be read now.
            return None
        self.servers = (*self.servers, server)
        return server

    def leave_unreachable(self, channels: Iterable[ServerChannel], given: Sequence[Server]) -> None:
        """Lets channels whose owner cannot be reached ask another server, which will know the next owner."""
        for channel in channels:
            if channel.name in self._owned and channel.server.is_down:
                asked = next((server for server in given if not server.is_down and not server.is_retired), None)
                if asked is not None:
                    channel.move(asked)
