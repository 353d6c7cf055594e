"""The source `netcat`."""

import asyncio
import logging
from functools import partial

import structlog

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.rate_limited_log import RateLimitedLog
from millrace_server.agent.sources.listening import ListenAddress, stream_protocol
from millrace_server.agent.sources.netcat.config import NetcatSourceConfig
from millrace_server.agent.sources.netcat.connection import READ_BYTES, NetcatConnection, Sender
from millrace_server.network.accepting import ConnectionSlot, ConnectionSlots, client_ip

FINISH_SECONDS_MAX = 5.0
"""When the source stops: how long storing and acknowledging the lines that were read may take."""

_log = structlog.stdlib.get_logger(__name__)


class NetcatSource:
    """Listens for connections, and serves each in its own task, so that connections share commits."""

    def __init__(self, name: str, config: NetcatSourceConfig) -> None:
        self._name = name
        self._config = config
        self._listen = ListenAddress(name, config)
        self._refusals = RateLimitedLog(_log.bind(source=name))
        self._serving: dict[asyncio.Task[None], NetcatConnection] = {}

    async def run(self, writer: ChannelWriter) -> None:
        slots = ConnectionSlots(self._config.connections_max, self._config.connections_per_address_max)
        try:
            async with self._listen.accepting(slots, partial(self._make_protocol, writer), self._log_closed):
                writer.report_running()
                await asyncio.Event().wait()
        finally:
            await self._end_connections()

    def _make_protocol(self, channel_writer: ChannelWriter, slot: ConnectionSlot) -> asyncio.Protocol:
        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            slot.mark_busy()
            sender = Sender(reader, writer, client_ip(slot.address))
            connection = NetcatConnection(self._config, sender, channel_writer)
            serving = asyncio.create_task(self._serve(connection, writer, slot))
            self._serving[serving] = connection
            serving.add_done_callback(self._serving.pop)

        return stream_protocol(slot, READ_BYTES, serve)

    async def _serve(self, connection: NetcatConnection, writer: asyncio.StreamWriter, slot: ConnectionSlot) -> None:
        try:
            await connection.serve()
            writer.close()
            async with asyncio.timeout(self._config.line_seconds_max):
                await writer.wait_closed()
        except OSError:
            # The sender has disconnected, or does not read its responses: TimeoutError is an OSError.
            pass
        except Exception:  # noqa: BLE001 - a bug in one connection must not end the others
            _log.exception("a connection could not be served", source=self._name)
        finally:
            writer.transport.abort()
            slot.release()

    async def _end_connections(self) -> None:
        """Waits until batches that were read are stored and acknowledged, within a time limit; then ends all."""
        for connection in self._serving.values():
            connection.end()
        if self._serving:
            await asyncio.wait(self._serving, timeout=FINISH_SECONDS_MAX)
        for serving in self._serving:
            serving.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    def _log_closed(self, client: str, reason: object) -> None:
        about = str(reason)
        self._refusals.log(logging.WARNING, "connections were closed at once", about, 1, client=client, reason=about)
