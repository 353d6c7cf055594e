"""Raw stubs on a real server, without the client library, and the details of errors."""

import itertools
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from grpc import aio

from millrace.columns import ColumnsCutter, columns_from_events
from millrace.googleapis import error_details_pb2, status_pb2
from millrace.v1 import (
    admin_service_pb2,
    admin_service_pb2_grpc,
    channel_service_pb2,
    channel_service_pb2_grpc,
    event_pb2,
)

TIMEOUT_SECONDS = 60.0
"""As long as a busy machine may need, for a stream with all that a test does meanwhile."""

NO_WAIT = Duration()

_numbers = itertools.count(1)


class Rpc:
    """One connection.

    Attributes:
        channels: ChannelService.
        admin: AdminService.
        connection: The connection itself, for calls without a stub.
        channel_type: The type of channels that are made without one.
    """

    def __init__(self, connection: aio.Channel) -> None:
        self.connection = connection
        self.channel_type: admin_service_pb2.ChannelType = admin_service_pb2.CHANNEL_TYPE_MEMORY
        self.channels: Any = channel_service_pb2_grpc.ChannelServiceStub(connection)
        self.admin: Any = admin_service_pb2_grpc.AdminServiceStub(connection)
        self._made: set[str] = set()

    async def make_channel(self, name: str | None = None, **limits: Any) -> str:
        """Creates a channel, the test's own unless a name is given; returns its name once the channel is open.

        A replicated one may be created before its server owns it, if the engine is slow.
        """
        name = name or f"channel-{next(_numbers)}"
        config = admin_service_pb2.ChannelConfig(**{"type": self.channel_type, **limits})
        await self.admin.CreateChannel(
            admin_service_pb2.CreateChannelRequest(name=name, config=config), timeout=TIMEOUT_SECONDS
        )
        self._made.add(name)
        while (await self.look(name)).state != admin_service_pb2.CHANNEL_STATE_OPEN:
            pass
        return name

    async def look(self, name: str) -> admin_service_pb2.Channel:
        """The description of the channel."""
        response: admin_service_pb2.GetChannelResponse = await self.admin.GetChannel(
            admin_service_pb2.GetChannelRequest(name=name), timeout=TIMEOUT_SECONDS
        )
        return response.channel

    async def until(self, name: str, **gauges: int) -> None:
        """Waits until the channel's gauges have these values."""
        while True:
            now = (await self.look(name)).gauges
            if all(getattr(now, gauge) == value for gauge, value in gauges.items()):
                return

    async def until_not_claimed(self, name: str) -> None:
        """Waits until no claim on the channel is active."""
        while (await self.look(name)).HasField("claim"):
            pass

    async def begin(self, channel: str, **fields: Any) -> str:
        """Opens a transaction; returns its id."""
        response: channel_service_pb2.BeginTxnResponse = await self.channels.BeginTxn(
            channel_service_pb2.BeginTxnRequest(channel=channel, **fields), timeout=TIMEOUT_SECONDS
        )
        return response.txn_id

    async def put(self, txn_id: str, *bodies: bytes, **fields: Any) -> int:
        """Puts events without headers; returns how many the transaction has."""
        response: channel_service_pb2.PutResponse = await self.channels.Put(
            channel_service_pb2.PutRequest(txn_id=txn_id, events=events(*bodies), **fields), timeout=TIMEOUT_SECONDS
        )
        return response.put_count

    async def take(self, txn_id: str, **fields: Any) -> channel_service_pb2.TakeResponse:
        """Takes events; does not wait by default."""
        fields.setdefault("wait", NO_WAIT)
        request = channel_service_pb2.TakeRequest(txn_id=txn_id, **fields)
        response: channel_service_pb2.TakeResponse = await self.channels.Take(request, timeout=TIMEOUT_SECONDS)
        return response

    async def commit(self, *txn_ids: str, **fields: Any) -> channel_service_pb2.CommitResponse:
        """Commits transactions."""
        response: channel_service_pb2.CommitResponse = await self.channels.Commit(
            channel_service_pb2.CommitRequest(txn_ids=txn_ids, **fields), timeout=TIMEOUT_SECONDS
        )
        return response

    async def rollback(self, txn_id: str) -> None:
        """Rolls a transaction back."""
        await self.channels.Rollback(channel_service_pb2.RollbackRequest(txn_id=txn_id), timeout=TIMEOUT_SECONDS)

    async def append(self, channel: str, *bodies: bytes, **fields: Any) -> channel_service_pb2.AppendResponse:
        """Appends events without headers."""
        response: channel_service_pb2.AppendResponse = await self.channels.Append(
            channel_service_pb2.AppendRequest(channel=channel, events=events(*bodies), **fields),
            timeout=TIMEOUT_SECONDS,
        )
        return response

    async def claim(self, channel: str, reader_id: str, **fields: Any) -> channel_service_pb2.ClaimResponse:
        """Claims a channel."""
        response: channel_service_pb2.ClaimResponse = await self.channels.Claim(
            channel_service_pb2.ClaimRequest(channel=channel, reader_id=reader_id, **fields), timeout=TIMEOUT_SECONDS
        )
        return response

    async def read(self, channel: str, reader_id: str, **fields: Any) -> list[event_pb2.EventBatch]:
        """Reads a range to its end."""
        request = channel_service_pb2.ReadRequest(channel=channel, reader_id=reader_id, **fields)
        return [response.batch async for response in self.channels.Read(request, timeout=TIMEOUT_SECONDS)]

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Deletes a channel."""
        await self.admin.DeleteChannel(
            admin_service_pb2.DeleteChannelRequest(name=name, force=force), timeout=TIMEOUT_SECONDS
        )

    async def purge(self, name: str) -> int:
        """Empties a channel; returns the number of events removed."""
        response: admin_service_pb2.PurgeChannelResponse = await self.admin.PurgeChannel(
            admin_service_pb2.PurgeChannelRequest(name=name), timeout=TIMEOUT_SECONDS
        )
        return response.purged_count

    async def peek(self, channel: str) -> list[bytes]:
        """The bodies of all queued events."""
        request = admin_service_pb2.PeekEventsRequest(channel=channel, max_events=1_000_000)
        responses = [response.batch async for response in self.admin.PeekEvents(request, timeout=TIMEOUT_SECONDS)]
        return bodies_of(responses)

    @asynccontextmanager
    async def unchanged(self, *names: str) -> AsyncGenerator[None]:
        """Asserts that nothing inside the block changes these channels, or without names the list of all channels."""
        before = [await self._state(name) for name in names] if names else await self._names()
        yield
        assert ([await self._state(name) for name in names] if names else await self._names()) == before

    async def delete_made(self) -> None:
        """Deletes the channels that `make_channel` has made and that still exist."""
        for name in self._made:
            try:
                await self.delete(name, force=True)
            except aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.NOT_FOUND:
                    raise

    async def _state(self, name: str) -> tuple[bytes, list[bytes]]:
        channel = await self.look(name)
        stable = admin_service_pb2.Channel(
            channel_id=channel.channel_id, config=channel.config, gauges=channel.gauges, claim=channel.claim
        )
        stable.claim.ClearField("remaining")
        # A log also reserves space, makes checkpoints and marks what it has synced on its own initiative, and others
        # use its disk.
        for changing in ("log_bytes", "checkpoint_time", "disk_free_bytes"):
            stable.gauges.ClearField(changing)
        return stable.SerializeToString(deterministic=True), await self.peek(name)

    async def _names(self) -> list[str]:
        response = await self.admin.ListChannels(admin_service_pb2.ListChannelsRequest(), timeout=TIMEOUT_SECONDS)
        return [channel.name for channel in response.channels]


@asynccontextmanager
async def connected(address: str, **options: Any) -> AsyncGenerator[Rpc]:
    """A connection of its own; connections to one address would otherwise be shared.

    Args:
        address: The server's `host:port`.
        options: Channel options of gRPC without the prefix `grpc.`, with two underscores for each dot.
    """
    arguments = {"use_local_subchannel_pool": 1, "max_receive_message_length": -1} | options
    given = [(f"grpc.{name.replace('__', '.')}", value) for name, value in arguments.items()]
    async with aio.insecure_channel(address, options=given) as connection:
        yield Rpc(connection)


class Stream:
    """One bidirectional stream, whose messages are read one by one."""

    def __init__(self, call: Any) -> None:
        self._call = call

    async def send(self, message: Message) -> None:
        """Sends a message."""
        await self._call.write(message)

    async def half_close(self) -> None:
        """Ends the client's side of the stream."""
        await self._call.done_writing()

    async def receive(self) -> Any:
        """The next message; None at the stream's end."""
        message = await self._call.read()
        return message if isinstance(message, Message) else None

    def cancel(self) -> None:
        """Cancels the stream."""
        self._call.cancel()

    def __aiter__(self) -> AsyncIterator[Any]:
        responses: AsyncIterator[Any] = aiter(self._call)
        return responses


@dataclass(frozen=True)
class Refusal:
    """A status that is not OK, with its details."""

    code: grpc.StatusCode
    reason: str
    message: str
    metadata: Mapping[str, str]
    retry_delay_seconds: float | None

    @classmethod
    def of_status(cls, status: status_pb2.Status) -> "Refusal":
        """The fields of a google.rpc.Status of Millrace."""
        [code] = [code for code in grpc.StatusCode if code.value[0] == status.code]
        info = error_details_pb2.ErrorInfo()
        retry = error_details_pb2.RetryInfo()
        delay = None
        assert status.details[0].Unpack(info)
        assert info.domain == "millrace"
        for detail in status.details[1:]:
            assert detail.Unpack(retry)
            delay = retry.retry_delay.ToTimedelta().total_seconds()
        return cls(code, info.reason, status.message, dict(info.metadata), delay)

    @classmethod
    def of_error(cls, error: aio.AioRpcError) -> "Refusal":
        """The error details of a failed call; its status and its details must agree."""
        details = [value for key, value in error.trailing_metadata() if key == "grpc-status-details-bin"]
        assert details, f"no details: {error!r}"
        assert isinstance(details[0], bytes)
        refusal = cls.of_status(status_pb2.Status.FromString(details[0]))
        assert (refusal.code, refusal.message) == (error.code(), error.details())
        return refusal


class Refused:
    """The error caught by `refused`; `refusal` is set after the block."""

    refusal: Refusal


@asynccontextmanager
async def refused(code: grpc.StatusCode, reason: str, sentence: str = "") -> AsyncGenerator[Refused]:
    """Asserts that the call in the block is refused.

    Args:
        code: The expected status code.
        reason: The expected reason.
        sentence: A regular expression that must match a part of the message.
    """
    caught = Refused()
    with pytest.raises(aio.AioRpcError) as raised:
        yield caught
    caught.refusal = Refusal.of_error(raised.value)
    assert (caught.refusal.code, caught.refusal.reason) == (code, reason), caught.refusal
    assert re.search(sentence, caught.refusal.message), caught.refusal.message


def events(*bodies: bytes) -> list[event_pb2.Event]:
    """Events without headers, in rows."""
    return [event_pb2.Event(body=body) for body in bodies]


def columns(*bodies: bytes, **headers: str) -> event_pb2.EventColumns:
    """Events that all have the same headers, in columns."""
    [encoded] = columns_from_events((headers, body) for body in bodies)
    return encoded


def rows_of(batches: Iterable[event_pb2.EventBatch]) -> list[tuple[int, dict[str, str], bytes]]:
    """The sequence, headers and body of each event, from batches of either form."""
    rows = []
    for batch in batches:
        contents: Sequence[tuple[Mapping[str, str], bytes]]
        if batch.HasField("columns"):
            assert not batch.events
            contents = list(ColumnsCutter(batch.columns).rows(0, batch.columns.count))
        else:
            contents = [(event.headers, event.body) for event in batch.events]
        assert contents, "a batch without events"
        rows += [(batch.first_sequence + index, dict(headers), body) for index, (headers, body) in enumerate(contents)]
    return rows


def bodies_of(batches: Iterable[event_pb2.EventBatch]) -> list[bytes]:
    """The bodies of all events."""
    return [body for _, _, body in rows_of(batches)]


def sequences_of(batches: Iterable[event_pb2.EventBatch]) -> list[int]:
    """The sequences of all events."""
    return [sequence for sequence, _, _ in rows_of(batches)]


def seconds(value: float) -> Duration:
    """A protobuf duration."""
    encoded = Duration()
    encoded.FromNanoseconds(round(value * 1e9))
    return encoded
