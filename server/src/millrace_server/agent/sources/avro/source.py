"""The source `avro`."""

import asyncio
import socket
import ssl
from functools import partial

import structlog

from millrace_server.agent.channel_writer import ChannelWriter
from millrace_server.agent.sources.avro.calls import CallHandler
from millrace_server.agent.sources.avro.config import AvroSourceConfig
from millrace_server.agent.sources.avro.connection import make_protocol
from millrace_server.agent.sources.avro.ip_filter import IpFilter, IpFilterRule
from millrace_server.agent.sources.source import bound_address, open_listen_socket, source_tls
from millrace_server.network import Address
from millrace_server.network.accepting import Acceptor, Places, detect_dead_peers

CLOSING_SECONDS_MAX = 5.0
"""How long calls that are being stored may take when the source stops."""

_TOO_MANY = "there were more than connections_max or connections_per_address_max allow"

_log = structlog.stdlib.get_logger(__name__)


class AvroSource:
    """Listens, and answers each call once its events are stored or refused."""

    def __init__(self, name: str, config: AvroSourceConfig) -> None:
        self._name = name
        self._config = config
        # A port that the system chose is kept when the source restarts.
        self._address = Address.parse(config.listen)
        self._filter = IpFilter([IpFilterRule.parse(text) for text in config.ip_filter_rules])

    async def run(self, writer: ChannelWriter) -> None:
        async with source_tls(self._config, self._name) as tls:
            bound = await open_listen_socket(self._address, self._name)
            self._address = bound_address(bound)
            await self._serve(bound, tls, writer)

    async def _serve(self, bound: socket.socket, tls: ssl.SSLContext | None, writer: ChannelWriter) -> None:
        config = self._config
        handler = CallHandler(self._name, config, writer)
        connections = set[asyncio.Task[None]]()
        make = partial(make_protocol, config=config, handler=handler, connections=connections)
        places = Places(config.connections_max, config.connections_per_address_max)
        on_refused = partial(handler.log_problem, "", "a connection was closed", _TOO_MANY)

        def note_failed(address: str, error: OSError) -> None:
            handler.log_problem(address, "a connection was closed", error)

        detect_dead_peers(bound)
        acceptor = Acceptor(bound, places, make, tls, on_refused, admits=self._filter.admits, on_failed=note_failed)
        _log.info("listening", source=self._name, address=f"{'tls' if tls else 'tcp'}://{self._address}")
        writer.report_running()
        try:
            await asyncio.Event().wait()
        finally:
            acceptor.close()
            await _end_all(connections)


async def _end_all(connections: "set[asyncio.Task[None]]") -> None:
    """Lets connections answer the calls that they have, for a limited time, and closes them."""
    while connections:
        # First they stop reading, and then, if that takes too long, they give up their calls.
        for task in tuple(connections):
            task.cancel()
        await asyncio.wait(tuple(connections), timeout=CLOSING_SECONDS_MAX)
