"""How long messages are waited for, on the virtual clock."""

import asyncio
from typing import Any, cast

from millrace_server.agent.sources.syslog.config import SyslogSourceConfig
from millrace_server.agent.sources.syslog.framing import Frame
from millrace_server.agent.sources.syslog.listeners import (
    MESSAGE_SECONDS_MAX,
    ListenerContext,
    LossCounter,
    _Connection,
)
from millrace_server.agent.sources.syslog.message_queue import MessageQueue, Origin
from millrace_server.network.accepting import ConnectionSlots
from tests.virtual_clock import now, started

HAS_VIRTUAL_CLOCK = True


class FakeTransport:
    """A connection that only its sender ends."""

    is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True


def connection_with(queue: MessageQueue) -> tuple[_Connection, FakeTransport]:
    config = SyslogSourceConfig(type="syslog", channels=["logs"], listen=["tcp://127.0.0.1:0"])
    slot = ConnectionSlots(1).acquire("127.0.0.1")
    assert slot is not None
    connection = _Connection(slot, ListenerContext(config, queue, LossCounter("log"), None), set(), "514")
    transport = FakeTransport()
    connection.connection_made(cast("Any", transport))
    return connection, transport


def frames_in(queue: MessageQueue) -> list[Frame]:
    return [message.frame for message in queue._messages]


async def test_take_of_few_messages_returns_them_after_the_linger() -> None:
    """Messages that come within the linger are one batch, however late the last of them comes."""
    queue = MessageQueue()
    taking = await started(queue.take(100, 5.0))
    await asyncio.sleep(60.0)
    began = now()
    for number in range(3):
        queue.add([Frame(b"%d" % number, is_truncated=False)], Origin("127.0.0.1", "514"))
        await asyncio.sleep(2.0)
    taken = await taking.result()
    assert [message.frame.content for message in taken] == [b"0", b"1", b"2"]
    assert now() - began == 6.0
    assert len(queue) == 0


async def test_data_received_from_a_busy_sender_does_not_take_it_for_a_slow_one() -> None:
    """Each message has its own time, however the network cuts them."""
    queue = MessageQueue()
    connection, transport = connection_with(queue)
    for _ in range(5):
        connection.data_received(b"a\nb")
        await asyncio.sleep(MESSAGE_SECONDS_MAX - 1.0)
    connection.data_received(b"\n")
    await asyncio.sleep(2 * MESSAGE_SECONDS_MAX)
    assert frames_in(queue) == [Frame(body, is_truncated=False) for body in (b"a", *[b"ba"] * 4, b"b")]
    assert not transport.is_aborted
