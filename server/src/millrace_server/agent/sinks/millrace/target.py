"""A connection to the server that events are forwarded to."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from grpc import aio

from millrace.v1 import admin_service_pb2, channel_service_pb2
from millrace_server.agent.sinks.millrace.refusals import Refusal, refusal_of_error
from millrace_server.agent.supervision import ComponentError, SilentError

_APPEND_STREAM = f"/{channel_service_pb2.DESCRIPTOR.services_by_name['ChannelService'].full_name}/AppendStream"
_GET_CHANNEL = f"/{admin_service_pb2.DESCRIPTOR.services_by_name['AdminService'].full_name}/GetChannel"

_OUT_OF_ORDER = {
    admin_service_pb2.CHANNEL_STATE_REPLAYING: "it reads its log back",
    admin_service_pb2.CHANNEL_STATE_LOG_FAILED: "its log has failed",
    admin_service_pb2.CHANNEL_STATE_CORRUPT: "its files are damaged",
}
"""States in which a channel takes nothing."""

_SECOND = 1_000
_OPTIONS = [
    # Deliveries bound what is sent; the server's own limit is told by the server.
    ("grpc.max_send_message_length", -1),
    # Connections to one address would be shared, with whatever state another one's failures have left.
    ("grpc.use_local_subchannel_pool", 1),
    # Millrace servers are reached directly, whatever proxy the environment names for the web.
    ("grpc.enable_http_proxy", 0),
    # What failed is sent again by whoever knows in which order.
    ("grpc.enable_retries", 0),
    # The stream may be silent for long, and a machine that is gone says nothing.
    ("grpc.keepalive_time_ms", 20 * _SECOND),
    ("grpc.keepalive_timeout_ms", 10 * _SECOND),
    ("grpc.http2.max_pings_without_data", 0),
]


class TargetChannel:
    """A channel of a server that is there.

    Attributes:
        endpoint: Where the server is.
        channel: The channel's name.
        channel_id: Names this making of the channel; empty while the server reads it back.
        transaction_capacity: Events that it takes at once.
    """

    def __init__(self, connection: aio.Channel, endpoint: str, found: admin_service_pb2.Channel) -> None:
        self._connection = connection
        self.endpoint = endpoint
        self.channel = found.name
        self.channel_id = found.channel_id
        self.transaction_capacity = max(found.config.transaction_capacity, 1)

    def append_stream(self) -> "aio.StreamStreamCall[bytes, bytes]":
        """A new stream: encoded requests up, encoded answers down."""
        method: Any = self._connection.stream_stream(_APPEND_STREAM)
        call: aio.StreamStreamCall[bytes, bytes] = method()
        return call

    def error_of(self, refusal: Refusal) -> ComponentError:
        """What the sink's state is to say of a refusal."""
        return _error_of(refusal, self.endpoint, self.channel)


@asynccontextmanager
async def connected(endpoint: str, channel: str, timeout_seconds: float) -> AsyncGenerator[TargetChannel]:
    """Connects to a server and looks for a channel there, so that nothing is taken out for a server that is not there.

    Each time the name is looked up anew: a server may have moved.

    Raises:
        ComponentError: The server does not answer, or has no such channel.
    """
    async with aio.insecure_channel(endpoint, options=_OPTIONS) as connection:
        yield TargetChannel(connection, endpoint, await _find(connection, endpoint, channel, timeout_seconds))


async def _find(
    connection: aio.Channel, endpoint: str, channel: str, timeout_seconds: float
) -> admin_service_pb2.Channel:
    method: Any = connection.unary_unary(
        _GET_CHANNEL, response_deserializer=admin_service_pb2.GetChannelResponse.FromString
    )
    request = admin_service_pb2.GetChannelRequest(name=channel).SerializeToString()
    try:
        answer: admin_service_pb2.GetChannelResponse = await method(request, timeout=timeout_seconds)
    except aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            raise SilentError(f"{endpoint} does not answer", timeout_seconds) from None
        raise _error_of(refusal_of_error(error), endpoint, channel) from None
    if answer.channel.state in _OUT_OF_ORDER:
        raise ComponentError(f"{endpoint} does not take events for its channel {channel}: {_trouble(answer.channel)}")
    return answer.channel


def _trouble(found: admin_service_pb2.Channel) -> str:
    return found.fault or _OUT_OF_ORDER[found.state]


def _error_of(refusal: Refusal, endpoint: str, channel: str) -> ComponentError:
    if refusal.reason:
        message = f"{endpoint} does not take events for its channel {channel}: {refusal}"
    elif refusal.code is grpc.StatusCode.UNAVAILABLE:
        message = f"cannot reach a Millrace server at {endpoint}; is millraced running there? ({refusal.message})"
    else:
        message = f"{endpoint} has ended the call: {refusal}"
    return ComponentError(message, refusal.retry_delay_seconds)
