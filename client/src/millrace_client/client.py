"""The synchronous client, and administration."""

from collections.abc import Iterator, Sequence
from typing import Self

from millrace_client import _call_sequences, _calls
from millrace_client._connection import Connection
from millrace_client._settings import ConnectionSettings, checked_endpoint
from millrace_client._watchdog import TIMEOUT_SECONDS
from millrace_client.activity_info import ConsumerInfo, OpenTransaction, ProducerInfo
from millrace_client.channel import Channel
from millrace_client.channel_info import ChannelConfig, ChannelInfo, ChannelUpdate, ClaimStatus
from millrace_client.component_info import ComponentInfo, ComponentKind
from millrace_client.security import File, Tls, Token


def connect(  # noqa: PLR0913 - all but the first have defaults
    endpoint: str,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
    wait_for_ready: bool = False,
    tls: Tls | None = None,
    token: str | None = None,
    token_file: File | None = None,
    options: tuple[tuple[str, str | int], ...] = (),
) -> "Client":
    """Creates a client. It connects with its first call, so this does not fail if no server is running.

    Args:
        endpoint: `host:port`, or any other name that gRPC resolves. Or several with commas between them, such as
            `mill-1:7070,mill-2:7070`, for servers that share replicated channels: the first one that can be reached
            names the owner of a channel. A channel of another type is on one server: give that alone.
        timeout_seconds: How long a response may take, including repeats. A wait at the server (`take`, a commit that
            needs space, the interval of `watch_channels`) is added to it; a wait that the channel decides counts as
            60 s, so only a channel with a longer keep-alive needs a longer timeout. On a stream it bounds the wait for
            each response, except where silence is normal: `consume`, and `peek` with `follow`. There a broken
            connection is detected within a minute.
        wait_for_ready: What a call does without a connection. False: it makes 5 attempts, which take 1 to 2 s if the
            connection is refused, 5 to 7 s if nothing responds; then it raises UnavailableError. True: it waits for the
            server until its deadline; then it raises DeadlineError. A call to several servers asks all of them at once,
            and again after pauses, 5 times or until its deadline; its UnavailableError contains the error of each.
        tls: How to connect over TLS. None: plain text.
        token: The client's bearer token. None: that of `token_file`, or none. Without TLS, a token is sent to loopback
            addresses only, unless `MILLRACE_ALLOW_PLAINTEXT=true` is set in the environment.
        token_file: File that holds the token; it is reread when it changes. A call whose token is refused is repeated
            if the file has changed.
        options: Options of the gRPC channel; they override the client's own.

    Raises:
        BadArgumentError: `timeout_seconds` is not above 0, or above a year; there are two tokens; or a token would be
            sent unencrypted. The first call raises it if a file cannot be read.
    """
    return Client(
        ConnectionSettings(
            endpoint=checked_endpoint(endpoint),
            timeout_seconds=timeout_seconds,
            wait_for_ready=wait_for_ready,
            tls=tls,
            token=Token.given(token, token_file),
            options=tuple(options),
        )
    )


class Admin:
    """Administration of channels. Threads may share it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create_channel(self, name: str, config: ChannelConfig | None = None) -> ChannelInfo:
        """Creates a channel, which survives restarts of the server.

        Args:
            name: `[a-z0-9][a-z0-9._-]{0,63}`.
            config: Its type and limits. None: a memory channel with the server's defaults.

        Raises:
            ChannelExistsError: The name is in use.
            BadNameError: The name is not allowed.
        """
        return self._connection.run(_calls.create_channel(name, config or ChannelConfig()))

    def update_channel(self, name: str, config: ChannelConfig) -> ChannelUpdate:
        """Changes the given limits of a channel in use: all of them or none.

        Growing takes effect at once. Shrinking waits for free capacity up to the channel's keep-alive; if there is
        none,
        nothing changes and no error is raised: see `ChannelUpdate.applied`.
        """
        return self._connection.run(_calls.update_channel(name, config))

    def delete_channel(self, name: str, *, force: bool = False) -> None:
        """Deletes a channel.

        Args:
            name: Its name.
            force: Delete it even if it holds events or open transactions; they are lost.

        Raises:
            ChannelNotEmptyError: It is not empty, and `force` is false.
            ChannelConfiguredError: The server's configuration file names it.
        """
        self._connection.run(_calls.delete_channel(name, force=force))

    def list_channels(self) -> list[ChannelInfo]:
        """Returns all channels, ordered by name."""
        return self._connection.run(_calls.list_channels())

    def get_channel(self, name: str) -> ChannelInfo:
        return self._connection.run(_calls.get_channel(name))

    def append_capacity(self, name: str) -> int:
        """Returns the most events of one append or transaction to a channel, or to a source of type `grpc`.

        Raises:
            ChannelNotFoundError: Neither has the name.
            ReplayingError: The source is not running at the moment.
        """
        return self._connection.drive(_call_sequences.append_capacity(name))

    def watch_channels(self, names: Sequence[str] = (), interval_seconds: float = 1.0) -> Iterator[list[ChannelInfo]]:
        """Yields the channels' states, at once and then at an interval, until the iterator is closed or dropped.

        Args:
            names: The channels; names that do not exist are ignored. Empty: all.
            interval_seconds: How often, 0.1 to 3,600.
        """
        return self._connection.stream(_calls.watch_channels(names, interval_seconds))

    def purge_channel(self, name: str) -> int:
        """Removes all events that no open transaction has taken; returns their number."""
        return self._connection.run(_calls.purge_channel(name))

    def move_channel(self, name: str, server: str) -> None:
        """Hands a replicated channel over to another server, and returns once that owns it.

        Open transactions are rolled back unless they end within half a second. The channel stays there until the server
        stops or fails.

        Args:
            name: The channel's name.
            server: Where clients reach the other server, as `ChannelInfo.owner` shows it.

        Raises:
            BadArgumentError: The server does not share the channel or does not live, or the channel is not replicated.
        """
        self._connection.run(_calls.move_channel(name, server))

    def list_components(self) -> list[ComponentInfo]:
        """Returns all sources, sinks and sink groups of the server's agent, ordered by kind and name."""
        return self._connection.run(_calls.list_components())

    def watch_components(self, interval_seconds: float = 1.0) -> Iterator[list[ComponentInfo]]:
        """Yields the components' states, at once and then at an interval, until the iterator is closed or dropped.

        Args:
            interval_seconds: How often, 0.1 to 3,600.
        """
        return self._connection.stream(_calls.watch_components(interval_seconds))

    def retry_component(self, name: str, kind: ComponentKind | None = None) -> ComponentInfo:
        """Makes a component that waits for its next attempt try again at once; returns its state before the retry.

        Args:
            name: Its name. A sink group stands for all of its sinks.
            kind: Its kind. None: any; then the name must be that of one component only.

        Raises:
            ComponentNotFoundError: There is none.
        """
        return self._connection.run(_calls.retry_component(name, kind))

    def list_transactions(self, channel: str = "") -> list[OpenTransaction]:
        """Returns the open transactions, deliveries included, of a channel or of all: by channel, the oldest first."""
        return self._connection.run(_calls.list_transactions(channel))

    def end_transaction(self, txn_id: str) -> None:
        """Rolls back a transaction of any client, or a delivery that was listed; its events return to the channel.

        Does nothing if it was rolled back before.

        Raises:
            TxnNotFoundError: There is none of this id.
            TxnStateError: It is committed, or is being committed.
        """
        self._connection.run(_calls.end_transaction(txn_id))

    def release_claim(self, channel: str, epoch: int | None = None) -> ClaimStatus:
        """Ends the claim of any reader, whose calls raise StaleEpochError from now on; returns the claim as it was.

        Args:
            channel: The channel.
            epoch: The claim's epoch. None: whichever claim is active now.

        Raises:
            NotClaimedError: The channel is not claimed.
            StaleEpochError: The newest claim has another epoch.
        """
        return self._connection.drive(_call_sequences.release_claim(channel, epoch))

    def list_producers(self, channel: str) -> list[ProducerInfo]:
        """Returns up to 1,000 producers that a channel remembers, the least recently active first.

        `ChannelGauges.producers` is the number of all.
        """
        return self._connection.run(_calls.list_producers(channel))

    def forget_producer(self, channel: str, producer_id: str) -> None:
        """Makes a channel forget the numbers of a producer: what it sends again is stored again.

        Raises:
            ProducerNotFoundError: The channel does not know it.
        """
        self._connection.run(_calls.forget_producer(channel, producer_id))

    def list_consumers(self, channel: str = "") -> list[ConsumerInfo]:
        """Returns the Consume streams and sinks of a channel or of all: by channel, the oldest first."""
        return self._connection.run(_calls.list_consumers(channel))


class Client:
    """A connection to a server, or to several that share channels. Created by `connect`; best used in a `with` block.

    Threads may share it and its channels, claims and deliveries; a transaction belongs to one thread at a time. A
    process that is forked after the first call cannot use it (ClientForkedError) and must connect itself. If the parent
    had calls or streams in progress at the moment of the fork, or an open client of `millrace_client.aio`, gRPC does
    not work in the child at all, and connecting raises the same error; fork first, or use `spawn`.

    All calls are safe to repeat, and are repeated if the server could not be reached or the connection broke: up to 5
    attempts, with growing pauses, within their deadline.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self._connection = Connection(settings)
        self.admin = Admin(self._connection)
        """Creates, changes, watches and empties channels."""

    @property
    def endpoint(self) -> str:
        """The address of the server, or of several, as given to `connect`."""
        return self._connection.settings.endpoint

    @property
    def timeout_seconds(self) -> float:
        """How long a response may take."""
        return self._connection.settings.timeout_seconds

    def channel(self, name: str) -> Channel:
        """Returns a handle on a channel. Makes no call, and does not create the channel."""
        return Channel(self._connection, name)

    def close(self) -> None:
        """Ends deliveries cleanly, cancels all other calls, and disconnects. May be repeated."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.endpoint}>"
