"""The synchronous client."""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import grpc

from millrace_client import _calls
from millrace_client._connection import Connection
from millrace_client._settings import ConnectionSettings
from millrace_client.channel import Channel
from millrace_client.channel_info import ChannelConfig, ChannelInfo, ChannelUpdate
from millrace_client.component_info import ComponentInfo

TIMEOUT_SECONDS = 20.0
"""How long an answer may take, unless `connect` says otherwise."""


def connect(
    endpoint: str,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    wait_for_ready: bool = False,
    credentials: grpc.ChannelCredentials | None = None,
    options: tuple[tuple[str, str | int], ...] = (),
) -> "Client":
    """Makes a client. Connects by itself with the first call, so this cannot fail for want of a server.

    Args:
        endpoint: `host:port`, or any other name that gRPC resolves.
        timeout_seconds: How long an answer may take, repeats included. Where the server is asked to wait for something
            (`take`, a commit that needs room, the interval of `watch_channels`), that time comes on top; a wait that is
            up to the channel counts as 60 s, so only a channel with a longer keep-alive needs a longer timeout. On a
            stream it bounds the wait for each answer, except where silence is in order: `consume`, and `peek` with
            `follow`. There a connection that died shows within a minute.
        wait_for_ready: What a call does while there is no connection. False: it is tried 5 times, which takes 1 to 2 s
            where the connection is refused, 5 to 7 s where nothing answers at all; then UnavailableError. True: it
            waits for the server until its deadline; then DeadlineError.
        credentials: For TLS. None: plain text.
        options: Options of the gRPC channel, which win over the client's own.

    Raises:
        BadArgumentError: `timeout_seconds` is not above 0.
    """
    return Client(
        ConnectionSettings(
            endpoint=endpoint,
            timeout_seconds=timeout_seconds,
            wait_for_ready=wait_for_ready,
            credentials=credentials,
            options=tuple(options),
        )
    )


class Admin:
    """What operators do with channels. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create_channel(self, name: str, config: ChannelConfig | None = None) -> ChannelInfo:
        """Makes a channel, which survives restarts of the server.

        Args:
            name: `[a-z0-9][a-z0-9._-]{0,63}`.
            config: Its type and limits. None: a memory channel with the server's defaults.

        Raises:
            ChannelExistsError: The name is taken.
            BadNameError: The name is not allowed.
        """
        return self._connection.run(_calls.create_channel(name, config or ChannelConfig()))

    def update_channel(self, name: str, config: ChannelConfig) -> ChannelUpdate:
        """Changes limits of a channel in use: all that are said, or none.

        Growing is at once. Shrinking waits for free room up to the channel's keep-alive; where none comes nothing is
        changed, which is no error: see `ChannelUpdate.applied`.
        """
        return self._connection.run(_calls.update_channel(name, config))

    def delete_channel(self, name: str, *, force: bool = False) -> None:
        """Deletes a channel.

        Args:
            name: Which.
            force: Also with events and open transactions in it; they are lost.

        Raises:
            ChannelNotEmptyError: It holds something, and this was not forced.
        """
        self._connection.run(_calls.delete_channel(name, force=force))

    def list_channels(self) -> list[ChannelInfo]:
        """All channels, by name."""
        return self._connection.run(_calls.list_channels())

    def get_channel(self, name: str) -> ChannelInfo:
        """One channel."""
        return self._connection.run(_calls.get_channel(name))

    def watch_channels(self, names: Sequence[str] = (), interval_seconds: float = 1.0) -> Iterator[list[ChannelInfo]]:
        """Channels as they stand, at once and then at an interval, until the iterator is closed or dropped.

        Args:
            names: Which; one that does not exist is left out. Empty: all.
            interval_seconds: How often, 0.1 to 3,600.
        """
        return self._connection.stream(_calls.watch_channels(names, interval_seconds))

    def purge_channel(self, name: str) -> int:
        """Removes all events that no open transaction has taken.

        Returns:
            How many were removed.
        """
        return self._connection.run(_calls.purge_channel(name))

    def list_components(self) -> list[ComponentInfo]:
        """All sources, sinks and sink groups of the server's agent, by kind and name."""
        return self._connection.run(_calls.list_components())

    def watch_components(self, interval_seconds: float = 1.0) -> Iterator[list[ComponentInfo]]:
        """Components as they stand, at once and then at an interval, until the iterator is closed or dropped.

        Args:
            interval_seconds: How often, 0.1 to 3,600.
        """
        return self._connection.stream(_calls.watch_components(interval_seconds))


class Client:
    """A connection to one server. Made by `connect`; best used in a `with` statement, which closes it.

    Threads may share it, and the channels, claims and deliveries made of it; a transaction belongs to one thread at a
    time. A process that is forked after the first call cannot use it (ClientForkedError), nor what was made of it: it
    connects for itself. Where the parent had calls or streams under way at the moment of the fork, or an open client of
    `millrace_client.aio`, gRPC does not work in the child at all, and connecting is refused with the same error; fork
    first, or start processes afresh (`spawn`).

    All calls are safe to repeat, and are repeated where the server could not be reached or the connection broke: up to
    5 times in all, with growing pauses, within their deadline.
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

    def close(self) -> None:
        """Ends deliveries in order, cuts off whatever else is under way, and disconnects. May be repeated."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.endpoint}>"
