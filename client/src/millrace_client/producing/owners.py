"""The servers of channels that servers share: those that others have named as owners, and those of a list."""

from collections.abc import Callable, Iterable, Sequence

from millrace_client._endpoints import endpoint_problem
from millrace_client.errors import BadArgumentError, NotOwnerError
from millrace_client.producing.config import ProducerConfig
from millrace_client.producing.servers import Server, ServerChannel
from millrace_client.producing.targets import ConnectionOptions, Target


class Owners:
    """Finds the servers that own channels. For the engine's event loop; `servers` for any thread.

    Attributes:
        servers: Those to which batches are not routed, but which may own the channels of those to which they are.
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
        is_named = bool(error.address) and not endpoint_problem(error.address)
        return self._server_at(error.address, given) if is_named else None

    def leave_unreachable(self, given: Sequence[Server]) -> None:
        """Lets channels whose server cannot be reached ask another one, which will know the owner."""
        for server in given:
            for channel in server.channels.values():
                if channel.server.is_down and (other := self._other(channel, server, given)) is not None:
                    channel.move(other)

    def _other(self, channel: ServerChannel, routed: Server, given: Sequence[Server]) -> Server | None:
        """Returns a server to ask that is not known to be down; `routed`: where the channel's batches are routed to."""
        addresses = [routed.target.address, *routed.target.others]
        if channel.name in self._owned:
            addresses += [server.target.address for server in given if not server.is_retired]
        # The next one in a circle, so that servers which are connected to all get their turn.
        start = addresses.index(channel.address) + 1 if channel.address in addresses else 0
        for address in (*addresses[start:], *addresses[:start]):
            other = self._server_at(address, given)
            if other is not None and not other.is_down:
                return other
        return None

    def _server_at(self, address: str, given: Iterable[Server]) -> Server | None:
        for server in (*given, *self.servers):
            if server.target.address == address:
                return server
        try:
            server = Server(Target(address=address, authority=""), self._connection, self._config, self._on_change)
        except BadArgumentError:
            # The token would be sent in plain text, or a file cannot be read now.
            return None
        self.servers = (*self.servers, server)
        return server
