"""The engines that replicate channels, as the channels of one server share them."""

import asyncio
from typing import NamedTuple

from millrace_server.channels.stream_store import StreamStores
from millrace_server.histograms import Histograms
from millrace_server.replication.engine import Engine
from millrace_server.replication.engine_settings import EngineSettings
from millrace_server.replication.lease_bucket import JetStreamBucket, JetStreamLeases

_OF_ONE_CHANNEL = {"replicas", "stream_bytes_max"}


class SharedEngine(NamedTuple):
    """A connection to an engine, and what channels need of it."""

    engine: Engine
    leases: JetStreamLeases
    stores: StreamStores

    async def close(self) -> None:
        """Ends this server's session in the engine, and closes the connection."""
        await self.leases.close()
        await asyncio.to_thread(self.engine.close)


class Engines:
    """Connects to engines when they are first needed, once for all channels with the same settings."""

    def __init__(self, histograms: Histograms) -> None:
        self._address = ""
        self._is_serving = asyncio.Event()
        self._histograms = histograms
        self._locks: dict[str, asyncio.Lock] = {}
        self._shared: dict[str, SharedEngine] = {}

    def serve_at(self, address: str) -> None:
        """Shows where clients reach this server; empty if they do not."""
        self._address = address
        self._is_serving.set()

    @property
    def is_serving(self) -> bool:
        """Whether that is known. Until then there are no engines."""
        return self._is_serving.is_set()

    async def of(self, settings: EngineSettings) -> SharedEngine:
        """Returns the engine of a channel; raises EngineError if it cannot be reached or used."""
        await self._is_serving.wait()
        key = settings.model_dump_json(exclude=_OF_ONE_CHANNEL)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if key not in self._shared:
                self._shared[key] = await self._connected(settings)
            return self._shared[key]

    async def _connected(self, settings: EngineSettings) -> SharedEngine:
        engine = await Engine.of(settings)
        try:
            bucket = await JetStreamBucket.opened(engine, settings.replicas)
        except BaseException:
            await asyncio.to_thread(engine.close)
            raise
        engine.connect_lone()
        leases = JetStreamLeases(bucket, self._address, settings.lease_seconds)
        return SharedEngine(engine, leases, StreamStores(engine, self._histograms))

    async def close(self) -> None:
        """Closes all connections; no channel uses them any more."""
        await asyncio.gather(*[shared.close() for shared in self._shared.values()])
