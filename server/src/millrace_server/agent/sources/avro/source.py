"""The source `avro`."""

import asyncio
from functools import partial

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.sources.avro.calls import CallHandler
from millrace_server.agent.sources.avro.config import AvroSourceConfig
from millrace_server.agent.sources.avro.connection import READ_BYTES, AvroConnection
from millrace_server.agent.sources.avro.ip_filter import IpFilter, IpFilterRule
from millrace_server.agent.sources.listening import ListenAddress, stream_protocol
from millrace_server.network.accepting import ConnectionSlot, ConnectionSlots

CLOSING_SECONDS_MAX = 5.0
"""How long calls that are being stored may take once the source stops."""


class AvroSource:
    """Listens for connections, and responds to each call once its events are stored or refused."""

    def __init__(self, name: str, config: AvroSourceConfig) -> None:
        self._name = name
        self._config = config
        self._listen = ListenAddress(name, config)
        self._filter = IpFilter([IpFilterRule.parse(text) for text in config.ip_filter_rules])
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self, writer: ChannelWriter) -> None:
        handler = CallHandler(self._name, self._config, writer)
        slots = ConnectionSlots(self._config.connections_max, self._config.connections_per_address_max)
        try:
            async with self._listen.accepting(
                slots, partial(self._make_protocol, handler), handler.log_closed, self._filter.admits
            ):
                writer.report_running()
                await asyncio.Event().wait()
        finally:
            await self._end_connections()

    def _make_protocol(self, handler: CallHandler, slot: ConnectionSlot) -> asyncio.Protocol:
        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(AvroConnection((reader, writer), slot, self._config, handler).serve())
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        return stream_protocol(slot, READ_BYTES, serve)

    async def _end_connections(self) -> None:
        """Lets connections complete their calls within a time limit, and closes them."""
        while self._connections:
            # The first cancellation makes them stop reading; if that takes too long, the second one ends their calls.
            for task in tuple(self._connections):
                task.cancel()
            await asyncio.wait(tuple(self._connections), timeout=CLOSING_SECONDS_MAX)
