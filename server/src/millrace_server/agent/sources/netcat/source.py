"""The source `netcat`."""

import asyncio
import logging
from functools import partial

import structlog

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.rate_limited_log import RateLimitedLog
from millrace_server.agent.sources.netcat.config import NetcatSourceConfig
from millrace_server.agent.sources.netcat.connection import READ_BYTES, NetcatConnection, Sender
from millrace_server.agent.sources.source import bound_address, open_listen_socket, source_tls
from millrace_server.network import Address
from millrace_server.network.accepting import Acceptor, Place, Places, client_ip, detect_dead_peers

FINISH_SECONDS_MAX = 5.0
"""How long lines that have been read may take to be stored and answered when the source stops."""

_log = structlog.stdlib.get_logger(__name__)


class NetcatSource:
    """Listens, and serves each connection by a task of its own, so that connections share commits."""

    def __init__(self, name: str, config: NetcatSourceConfig) -> None:
        self._name = name
        self._config = config
        # A port that the system chose is kept when the source restarts.
        self._address = Address.parse(config.listen)
        self._refusals = RateLimitedLog(_log.bind(source=name))
        self._serving: dict[asyncio.Task[None], NetcatConnection] = {}

    async def run(self, writer: ChannelWriter) -> None:
        config = self._config
        async with source_tls(config, self._name) as tls:
            with await open_listen_socket(self._address, self._name) as bound:
                self._address = bound_address(bound)
                detect_dead_peers(bound)
                places = Places(config.connections_max, config.connections_per_address_max)
                acceptor = Acceptor(bound, places, partial(self._make_protocol, writer), tls, self._note_refused)
                try:
                    _log.info("listening", source=self._name, address=f"{'tls' if tls else 'tcp'}://{self._address}")
                    writer.report_running()
                    await asyncio.Event().wait()
                finally:
                    acceptor.close()
                    await self._end_connections()

    def _make_protocol(self, channel_writer: ChannelWriter, place: Place) -> asyncio.StreamReaderProtocol:
        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            place.abort = writer.transport.abort
            place.work()
            sender = Sender(reader, writer, client_ip(place.address))
            connection = NetcatConnection(self._config, sender, channel_writer)
            serving = asyncio.create_task(self._serve(connection, writer, place))
            self._serving[serving] = connection
            serving.add_done_callback(self._serving.pop)

        return asyncio.StreamReaderProtocol(asyncio.StreamReader(READ_BYTES), serve)

    async def _serve(self, connection: NetcatConnection, writer: asyncio.StreamWriter, place: Place) -> None:
        try:
            await connection.serve()
            writer.close()
            async with asyncio.timeout(self._config.line_seconds_max):
                await writer.wait_closed()
        except OSError:
            # The sender has gone, or does not read its answers: TimeoutError is an OSError.
            pass
        except Exception:  # noqa: BLE001 - a bug in one connection must not end the others
            _log.exception("a connection could not be served", source=self._name)
        finally:
            writer.transport.abort()
            place.leave()

    async def _end_connections(self) -> None:
        """Lets batches be stored and answered that have been read, within a time limit."""
        for connection in self._serving.values():
            connection.end()
        if self._serving:
            await asyncio.wait(self._serving, timeout=FINISH_SECONDS_MAX)
        for serving in self._serving:
            serving.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    def _note_refused(self) -> None:
        reason = "there were more than connections_max or connections_per_address_max allow"
        self._refusals.log(logging.WARNING, "connections were closed at once", "", 1, reason=reason)
