"""The servers to which events are forwarded, and the connection to one of them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import structlog
from grpc import aio

from millrace.v1 import admin_service_pb2
from millrace_client.append_session import AsyncAppendSession
from millrace_client.errors import MillraceError, NotAChannelError, RetryAdvice
from millrace_client.grpc_errors import ErrorTranslator
from millrace_client.security import ChannelWithMetadata, Token, check_encryption
from millrace_server.agent.sinks.millrace.config import MillraceSinkConfig
from millrace_server.agent.supervision import ComponentError, ResponseTimeoutError
from millrace_server.files import make_directories, write_atomically

_log = structlog.stdlib.get_logger(__name__)

FILE_NAME = "endpoint"
"""The file in the sink's directory that contains the current server."""

_FILE_BYTES_MAX = 1_024

_TOO_LARGE_TEXT = "larger than max"
"""A part of gRPC's error text for a message that is too large."""

_GET_CHANNEL = f"/{admin_service_pb2.DESCRIPTOR.services_by_name['AdminService'].full_name}/GetChannel"

_OUT_OF_ORDER = {
    admin_service_pb2.CHANNEL_STATE_REPLAYING: "it is replaying its log",
    admin_service_pb2.CHANNEL_STATE_LOG_FAILED: "its log has failed",
    admin_service_pb2.CHANNEL_STATE_CORRUPT: "its files are damaged",
}
"""States in which a channel accepts no events."""

_HOPS_MAX = 4
"""How often the sink connects to the owner that a server names; after that, it waits and starts over."""

_SECOND = 1_000
_OPTIONS = [
    # The size of deliveries limits the requests, and the server reports its own limit.
    ("grpc.max_send_message_length", -1),
    # Otherwise connections to the same address would be shared, and with them the back-off after failures of others.
    ("grpc.use_local_subchannel_pool", 1),
    # The sink connects directly, even if the environment configures a web proxy.
    ("grpc.enable_http_proxy", 0),
    # The sink itself repeats failed requests, in the right order.
    ("grpc.enable_retries", 0),
    # The stream may be silent for a long time, and a machine that has failed sends nothing.
    ("grpc.keepalive_time_ms", 20 * _SECOND),
    ("grpc.keepalive_timeout_ms", 10 * _SECOND),
    ("grpc.http2.max_pings_without_data", 0),
]


class Endpoints:
    """The servers of a sink, one of which is current.

    A server may have stored events although its response was lost, and only the same server drops them when they are
    sent again. So the sink keeps its server for as long as possible, also across restarts.
    """

    def __init__(
        self, endpoints: Sequence[str], failover_seconds: float, directory: Path, clock: Callable[[], float]
    ) -> None:
        self._endpoints = endpoints
        self._failover_seconds = failover_seconds
        self._path = directory / FILE_NAME
        self._clock = clock
        self._current: str | None = None
        self._failing_since: float | None = None

    async def current(self) -> str:
        """Returns the current server; moves to the next one if it has failed for too long."""
        if self._current is None:
            remembered = await asyncio.to_thread(self._read) if len(self._endpoints) > 1 else ""
            self._current = remembered if remembered in self._endpoints else self._endpoints[0]
        if self._must_move():
            await self._move(self._endpoints[(self._endpoints.index(self._current) + 1) % len(self._endpoints)])
        return self._current

    def note_success(self) -> None:
        self._failing_since = None

    def note_failure(self, silent_seconds: float = 0.0) -> None:
        """Notes that the current server has failed, after it had not responded for this long."""
        if self._failing_since is None:
            self._failing_since = self._clock() - silent_seconds

    def _must_move(self) -> bool:
        if len(self._endpoints) == 1 or self._failing_since is None:
            return False
        return self._clock() - self._failing_since >= self._failover_seconds

    async def _move(self, target: str) -> None:
        _log.warning("continues with the next server", former=self._current, endpoint=target)
        # Written before anything is sent to the next server.
        await asyncio.to_thread(self._write, target)
        self._current = target
        self._failing_since = None

    def _read(self) -> str:
        try:
            with self._path.open("rb") as file:
                return file.read(_FILE_BYTES_MAX).decode(errors="replace").strip()
        except FileNotFoundError:
            return ""

    def _write(self, endpoint: str) -> None:
        make_directories(self._path.parent)
        write_atomically(self._path, f"{endpoint}\n".encode())


class TargetChannel:
    """A channel of a server that responds.

    Attributes:
        channel_id: The channel's unique id; empty while the server replays its log, and for a source.
    """

    def __init__(self, connection: aio.Channel, endpoint: str, found: admin_service_pb2.Channel) -> None:
        self._connection = connection
        self.endpoint = endpoint
        self.channel = found.name
        self.channel_id = found.channel_id
        self.transaction_capacity = max(found.config.transaction_capacity, 1)

    def append_session(self) -> AsyncAppendSession[Any]:
        return AsyncAppendSession(self._connection, ErrorTranslator(self.endpoint, _TOO_LARGE_TEXT), self.channel)

    def component_error(self, error: MillraceError) -> ComponentError:
        return _component_error(error, self.endpoint, self.channel)


@asynccontextmanager
async def connected(endpoint: str, config: MillraceSinkConfig) -> AsyncGenerator[TargetChannel]:
    """Connects to a server and finds the target channel there. Raises ComponentError if that fails.

    So no events are taken for a server that cannot be reached. The name is resolved each time, since a server may have
    moved. If the server stands by for the channel's owner, it connects to the owner.
    """
    for _ in range(_HOPS_MAX):
        async with await _opened(endpoint, config) as opened:
            connection = await _authenticated(opened, endpoint, config)
            found = await _find(connection, endpoint, config.target_channel, config.connect_timeout_seconds)
            if found.state != admin_service_pb2.CHANNEL_STATE_STANDING_BY:
                yield TargetChannel(connection, endpoint, found)
                return
        if not found.owner:
            break
        endpoint = found.owner
    raise ComponentError(f"no server is known to own channel {config.target_channel}; {endpoint} stands by")


async def _opened(endpoint: str, config: MillraceSinkConfig) -> aio.Channel:
    if config.tls is None:
        return aio.insecure_channel(endpoint, options=_OPTIONS)
    credentials = await asyncio.to_thread(config.tls.credentials)
    return aio.secure_channel(endpoint, credentials, options=_OPTIONS)


async def _authenticated(connection: aio.Channel, endpoint: str, config: MillraceSinkConfig) -> aio.Channel:
    """Returns the connection with the sink's token, if it has one."""
    if config.token_file is None:
        return connection
    try:
        check_encryption(Token(file=config.token_file), endpoint, is_encrypted=config.tls is not None)
    except MillraceError as error:
        raise ComponentError(error.message) from None
    metadata = await asyncio.to_thread(config.token_metadata)
    return cast("aio.Channel", ChannelWithMetadata(connection, metadata))


async def _find(
    connection: aio.Channel, endpoint: str, channel: str, timeout_seconds: float
) -> admin_service_pb2.Channel:
    method: Any = connection.unary_unary(
        _GET_CHANNEL, response_deserializer=admin_service_pb2.GetChannelResponse.FromString
    )
    request = admin_service_pb2.GetChannelRequest(name=channel).SerializeToString()
    try:
        response: admin_service_pb2.GetChannelResponse = await method(request, timeout=timeout_seconds)
    except aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise ResponseTimeoutError(f"{endpoint} does not respond", timeout_seconds) from None
        refused = ErrorTranslator(endpoint, _TOO_LARGE_TEXT).from_rpc(error, channel)
        if isinstance(refused, NotAChannelError) and refused.transaction_capacity is not None:
            return _source(channel, refused.transaction_capacity)
        raise _component_error(refused, endpoint, channel) from None
    if response.channel.state in _OUT_OF_ORDER:
        fault = response.channel.fault or _OUT_OF_ORDER[response.channel.state]
        raise ComponentError(f"{endpoint} does not accept events for its channel {channel}: {fault}")
    return response.channel


def _source(name: str, transaction_capacity: int) -> admin_service_pb2.Channel:
    """Returns the description of a channel for a source, which accepts events like a channel."""
    config = admin_service_pb2.ChannelConfig(transaction_capacity=transaction_capacity)
    return admin_service_pb2.Channel(name=name, config=config, state=admin_service_pb2.CHANNEL_STATE_OPEN)


def _component_error(error: MillraceError, endpoint: str, channel: str) -> ComponentError:
    # If the error is not the server's, the client's message already names the endpoint.
    has_reason = error.code is not None and error.reason != error.code.name
    if error.advice is RetryAdvice.UNREACHABLE or not has_reason:
        message = error.message
    else:
        message = f"{endpoint} does not accept events for its channel {channel}: {error.reason}: {error.message}"
    return ComponentError(message, error.retry_delay_seconds)
