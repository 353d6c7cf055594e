import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from millrace.v1 import channel_service_pb2 as pb
from millrace_server.channels.channel import Channel
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import BadArgumentError, DrainingError
from millrace_server.grpc_services.rpc import Admission, InflightBytes, MessageStream, Response
from millrace_server.grpc_services.streams import ConsumeCall
from tests.channel_events import append, limits_of, queued


class FakeStream(MessageStream):
    """The messages of a caller, and the responses to it."""

    def __init__(self) -> None:
        self._sent: asyncio.Queue[bytes] = asyncio.Queue()
        self.got: asyncio.Queue[Response] = asyncio.Queue()

    async def read(self) -> bytes | None:
        return await self._sent.get()

    def admit(self, raw: bytes) -> Admission:
        return InflightBytes(1 << 20, 1 << 20).admit(len(raw), "peer")

    async def write(self, response: Response) -> None:
        self.got.put_nowait(response)

    def send(self, **message: Any) -> None:
        """Sends a message with these fields."""
        self._sent.put_nowait(pb.ConsumeRequest(**message).SerializeToString())


class Running:
    """A stream being served, to which three events were delivered one by one."""

    def __init__(self) -> None:
        self.stream = FakeStream()
        self._registry = ChannelRegistry(message_bytes_max=1 << 20, open_transactions_max=10)
        self.channel: Channel = self._registry.create("orders", limits_of()).channel

    async def start(self) -> None:
        for body in (b"a", b"b", b"c"):
            await append(self.channel, body)
        self.serving = asyncio.ensure_future(ConsumeCall(self._registry, self.stream).run())
        self.stream.send(start={"channel": "orders", "max_events": 1, "prefetch": 3})
        for _ in range(3):
            await self.stream.got.get()


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    running = Running()
    await running.start()
    yield running
    # All open deliveries were returned when the stream ended, and nothing waits for them.
    assert (running.channel._contents.taken_count, running.channel.open_transactions) == (0, 0)


@pytest.mark.parametrize("field", ["ack", "nack"])
@pytest.mark.parametrize("bad", [0, 9])
async def test_message_with_an_id_of_none_gives_all_deliveries_back(running: Running, field: str, bad: int) -> None:
    """The message has no effect, and all open deliveries return with the stream, including those it names."""
    running.stream.send(**{field: {"delivery_ids": [1, bad]}})
    with pytest.raises(BadArgumentError, match=f"{field}.delivery_ids: holds {bad}; this stream has delivered 3"):
        await running.serving
    assert queued(running.channel) == [b"a", b"b", b"c"]


async def test_ack_that_cannot_be_settled_gives_all_deliveries_back(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first failure ends the stream, and later deliveries in the same message are returned too."""

    def refuse(*_: object) -> None:
        raise DrainingError("refused")

    with monkeypatch.context() as refusing:
        refusing.setattr(running.channel._core.committer, "submit", refuse)
        running.stream.send(ack={"delivery_ids": [2, 3]})
        with pytest.raises(DrainingError):
            await running.serving
    assert queued(running.channel) == [b"a", b"b", b"c"]
