"""The sink `avro`."""

import asyncio

from millrace_server.agent.channel_reader import ChannelReader
from millrace_server.agent.sinks.avro.client import AvroClient, encoded_events
from millrace_server.agent.sinks.avro.config import AvroSinkConfig
from millrace_server.agent.supervision import ComponentError


class AvroSink:
    """Sends each delivery as one batch, and settles it once the receiver has responded OK."""

    def __init__(self, config: AvroSinkConfig) -> None:
        self._config = config
        self._current = 0
        """The index of the endpoint that receives the events."""
        self._client: AvroClient | None = None

    async def run(self, reader: ChannelReader) -> None:
        try:
            # Connects first, so that no events are taken for a receiver that cannot be reached.
            await self._connected()
            while (delivery := await reader.take(self._config.batch_bytes_max)) is not None:
                # On a thread, since this may read the events from the log.
                await self._send(await asyncio.to_thread(encoded_events, delivery.batches))
                await delivery.settle()
        finally:
            self._close()

    async def _send(self, events: bytes) -> None:
        client = await self._connected()
        try:
            await client.append_batch(events)
        except ComponentError:
            self._move_on()
            raise

    async def _connected(self) -> AvroClient:
        """Returns the connection; connects if there is none, or if it is closed or due to be reset."""
        if self._client is not None and (not self._client.is_open or self._is_reset_due(self._client)):
            self._close()
        if self._client is None:
            self._client = await self._connect()
        return self._client

    def _is_reset_due(self, client: AvroClient) -> bool:
        seconds = self._config.reset_connection_seconds
        if seconds is None or asyncio.get_running_loop().time() - client.connected_at < seconds:
            return False
        self._current = 0
        return True

    async def _connect(self) -> AvroClient:
        """Connects to the current endpoint, or else to the next reachable one. Raises ComponentError."""
        problems = []
        for _ in self._config.endpoints:
            try:
                return await AvroClient.connect(self._config.endpoints[self._current], self._config)
            except ComponentError as error:
                problems.append(str(error))
                self._move_on()
        raise ComponentError("; ".join(problems))

    def _move_on(self) -> None:
        self._current = (self._current + 1) % len(self._config.endpoints)

    def _close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
