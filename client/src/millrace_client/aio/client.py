"""The client for asyncio."""

from types import TracebackType
from typing import Self

import grpc

from millrace_client._settings import ConnectionSettings
from millrace_client.aio._connection import Connection
from millrace_client.aio.admin import Admin
from millrace_client.aio.channel import Channel
from millrace_client.client import TIMEOUT_SECONDS


def connect(
    endpoint: str,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    wait_for_ready: bool = False,
    credentials: grpc.ChannelCredentials | None = None,
    options: tuple[tuple[str, str | int], ...] = (),
) -> "Client":
    """Makes a client; see `millrace_client.connect`. The event loop of its first call is its own from then on."""
    return Client(
        ConnectionSettings(
            endpoint=endpoint,
            timeout_seconds=timeout_seconds,
            wait_for_ready=wait_for_ready,
            credentials=credentials,
            options=tuple(options),
        )
    )


class Client:
    """A connection to one server, for the tasks of one event loop; see `millrace_client.Client`.

    Made by `connect`; best used in an `async with` statement, which closes it.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self._connection = Connection(settings)
        self.admin = Admin(self._connection)
        """Making, changing, watching and emptying channels."""

    @property
    def endpoint(self) -> str:
        """Where the server is, as it was given."""
        return self._connection.settings.endpoint

    @property
    def timeout_seconds(self) -> float:
        """How long an answer may take."""
        return self._connection.settings.timeout_seconds

    def channel(self, name: str) -> Channel:
        """A handle on a channel. Makes no call, and does not make the channel."""
        return Channel(self._connection, name)

    async def close(self) -> None:
        """Ends deliveries in order, cuts off whatever else is under way, and disconnects. May be repeated."""
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio.Client of {self.endpoint}>"
