"""The client for asyncio."""

from collections.abc import AsyncGenerator, Sequence
from typing import Self

from millrace_client import _call_sequences, _calls
from millrace_client._settings import ConnectionSettings, checked_endpoint
from millrace_client._watchdog import TIMEOUT_SECONDS
from millrace_client.activity_info import ConsumerInfo, OpenTransaction, ProducerInfo
from millrace_client.aio._connection import Connection
from millrace_client.aio.channel import Channel
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
    """Creates a client; see `millrace_client.connect`. It belongs to the event loop of its first call."""
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
    """Administration of channels. The methods are those of `millrace_client.Admin`, to be awaited."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def create_channel(self, name: str, config: ChannelConfig | None = None) -> ChannelInfo:
        return await self._connection.run(_calls.create_channel(name, config or ChannelConfig()))

    async def update_channel(self, name: str, config: ChannelConfig) -> ChannelUpdate:
        return await self._connection.run(_calls.update_channel(name, config))

    async def delete_channel(self, name: str, *, force: bool = False) -> None:
        await self._connection.run(_calls.delete_channel(name, force=force))

    async def list_channels(self) -> list[ChannelInfo]:
        return await self._connection.run(_calls.list_channels())

    async def get_channel(self, name: str) -> ChannelInfo:
        return await self._connection.run(_calls.get_channel(name))

    async def append_capacity(self, name: str) -> int:
        return await self._connection.drive(_call_sequences.append_capacity(name))

    def watch_channels(
        self, names: Sequence[str] = (), interval_seconds: float = 1.0
    ) -> AsyncGenerator[list[ChannelInfo]]:
        return self._connection.stream(_calls.watch_channels(names, interval_seconds))

    async def purge_channel(self, name: str) -> int:
        return await self._connection.run(_calls.purge_channel(name))

    async def move_channel(self, name: str, server: str) -> None:
        await self._connection.run(_calls.move_channel(name, server))

    async def list_components(self) -> list[ComponentInfo]:
        return await self._connection.run(_calls.list_components())

    def watch_components(self, interval_seconds: float = 1.0) -> AsyncGenerator[list[ComponentInfo]]:
        return self._connection.stream(_calls.watch_components(interval_seconds))

    async def retry_component(self, name: str, kind: ComponentKind | None = None) -> ComponentInfo:
        return await self._connection.run(_calls.retry_component(name, kind))

    async def list_transactions(self, channel: str = "") -> list[OpenTransaction]:
        return await self._connection.run(_calls.list_transactions(channel))

    async def end_transaction(self, txn_id: str) -> None:
        await self._connection.run(_calls.end_transaction(txn_id))

    async def release_claim(self, channel: str, epoch: int | None = None) -> ClaimStatus:
        return await self._connection.drive(_call_sequences.release_claim(channel, epoch))

    async def list_producers(self, channel: str) -> list[ProducerInfo]:
        return await self._connection.run(_calls.list_producers(channel))

    async def forget_producer(self, channel: str, producer_id: str) -> None:
        await self._connection.run(_calls.forget_producer(channel, producer_id))

    async def list_consumers(self, channel: str = "") -> list[ConsumerInfo]:
        return await self._connection.run(_calls.list_consumers(channel))


class Client:
    """A connection for the tasks of one event loop; see `millrace_client.Client`.

    Created by `connect`; best used in an `async with` statement, which closes it.
    """

    def __init__(self, settings: ConnectionSettings) -> None:
        self._connection = Connection(settings)
        self.admin = Admin(self._connection)
        """Creates, changes, watches and empties channels."""

    @property
    def endpoint(self) -> str:
        return self._connection.settings.endpoint

    @property
    def timeout_seconds(self) -> float:
        return self._connection.settings.timeout_seconds

    def channel(self, name: str) -> Channel:
        return Channel(self._connection, name)

    async def close(self) -> None:
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<aio.Client of {self.endpoint}>"
