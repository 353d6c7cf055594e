"""The source `syslog`."""

import asyncio
import socket
from collections.abc import Sequence
from contextlib import ExitStack

import structlog

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.events import EventTable, HeaderValues
from millrace_server.agent.sources.listening import open_listen_socket, source_tls
from millrace_server.agent.sources.syslog.config import Listener, SyslogSourceConfig, Transport
from millrace_server.agent.sources.syslog.listeners import (
    ListenerContext,
    Loss,
    LossCounter,
    TcpListener,
    UdpListener,
)
from millrace_server.agent.sources.syslog.message_queue import Message, MessageQueue
from millrace_server.agent.sources.syslog.parsing import HEADERS, SyslogParser, TimestampParser
from millrace_server.channels.stamps import Stamp

FINISH_SECONDS_MAX = 5.0
"""When the source stops: how long storing the received messages may take."""

_INLINE_MESSAGES_MAX = 100
"""Batches with more messages are parsed on a thread, to keep the event loop responsive."""

_log = structlog.stdlib.get_logger(__name__)


class SyslogSource:
    """Listens for messages and stores them.

    Messages that are not stored yet survive a failure of the source, but not of the process.
    """

    def __init__(self, name: str, config: SyslogSourceConfig) -> None:
        self._name = name
        self._config = config
        self._parser = SyslogParser(TimestampParser(config.time_zone), config.keep_fields)
        self._losses = LossCounter(name)
        self._queue = MessageQueue()
        self._batch: tuple[Sequence[Message], Stamp] | None = None
        # A port that the system chose is kept when the source restarts.
        self._listeners = [Listener.parse(text) for text in config.listen]

    async def run(self, writer: ChannelWriter) -> None:
        self._queue.open()
        self._losses.on_lost_messages = writer.count_dropped
        async with source_tls(self._config, self._name) as tls:
            await self._run(writer, ListenerContext(self._config, self._queue, self._losses, tls))

    async def _run(self, writer: ChannelWriter, parts: ListenerContext) -> None:
        with ExitStack() as listening:
            await self._listen(listening, parts)
            writer.report_running()
            storing = asyncio.create_task(self._store_all(writer))
            try:
                await asyncio.wait({storing})
            finally:
                listening.close()
                self._queue.close()
                await self._finish(storing)
        await storing

    async def _listen(self, listening: ExitStack, parts: ListenerContext) -> None:
        for index, listener in enumerate(self._listeners):
            opened = await self._open(listener, parts)
            listening.callback(opened.close)
            await opened.start()
            self._listeners[index] = Listener(listener.transport, opened.address)
            details = {"receive_buffer_bytes": opened.receive_buffer_bytes} if isinstance(opened, UdpListener) else {}
            _log.info("listening", source=self._name, address=str(self._listeners[index]), **details)

    async def _open(self, listener: Listener, parts: ListenerContext) -> TcpListener | UdpListener:
        if listener.transport is Transport.TCP:
            return TcpListener(await open_listen_socket(listener.address, self._name), parts)
        return UdpListener(await open_listen_socket(listener.address, self._name, socket.SOCK_DGRAM), parts)

    async def _finish(self, storing: "asyncio.Task[None]") -> None:
        """Stores received messages within a time limit."""
        await asyncio.wait({storing}, timeout=FINISH_SECONDS_MAX)
        storing.cancel()
        await asyncio.wait({storing})
        has_failed = not storing.cancelled() and storing.exception() is not None
        unstored_count = len(self._queue) + (len(self._batch[0]) if self._batch else 0)
        if unstored_count and not has_failed:
            self._losses.count(Loss.UNSTORED, unstored_count)
        self._losses.log_remaining()

    async def _store_all(self, writer: ChannelWriter) -> None:
        while True:
            if self._batch is None:
                taken = await self._queue.take(writer.events_max, self._config.linger_seconds)
                if not taken:
                    return
                self._batch = taken, writer.next_stamp(len(taken))
            messages, stamp = self._batch
            if len(messages) <= _INLINE_MESSAGES_MAX:
                table = self._parsed(messages)
            else:
                table = await asyncio.to_thread(self._parsed, messages)
            await writer.deliver(table, stamp)
            self._batch = None

    def _parsed(self, messages: Sequence[Message]) -> EventTable:
        parse = self._parser.parse
        bodies, *columns = zip(*(parse(message.frame.content) for message in messages), strict=True)
        headers: dict[str, HeaderValues] = dict(zip(HEADERS, columns, strict=True))
        if any(message.frame.is_truncated for message in messages):
            headers["syslog_truncated"] = ["true" if message.frame.is_truncated else None for message in messages]
        if self._config.client_ip_header is not None:
            headers[self._config.client_ip_header] = [message.origin.client_ip for message in messages]
        if self._config.port_header is not None:
            headers[self._config.port_header] = [message.origin.port for message in messages]
        return EventTable(bodies, {key: values for key, values in headers.items() if any(values)})
