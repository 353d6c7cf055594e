"""A connection to an Avro source of Flume."""

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from typing import Any

from fastavro import parse_schema, schemaless_writer

from millrace_server.agent.avro_rpc.calls import BadCallError, RemoteError, call_head, read_response
from millrace_server.agent.avro_rpc.compression import CompressionError, Deflater, Inflater
from millrace_server.agent.avro_rpc.framing import Frame, FrameReader, FramingError, framed
from millrace_server.agent.avro_rpc.handshakes import handshake_request, read_reply
from millrace_server.agent.avro_rpc.protocol import APPEND_BATCH, EVENT_SCHEMA, ForeignProtocolError, Status
from millrace_server.agent.sinks.avro.config import AvroSinkConfig
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.batches import StoredBatch
from millrace_server.network import Address

_READ_BYTES = 64 * 1024
_RESPONSE_BYTES_MAX = 1 << 20
_SERIALS = 1 << 31
_HANDSHAKES_MAX = 2
"""A receiver that does not know the protocol learns it from the first one."""

_EVENTS: Any = parse_schema({"type": "array", "items": EVENT_SCHEMA})


def encoded_events(batches: Sequence[StoredBatch]) -> bytes:
    """Returns events as an Avro array."""
    rows = (row for batch in batches for row in batch.window.rows())
    content = BytesIO()
    schemaless_writer(content, _EVENTS, [{"headers": headers, "body": body} for headers, body in rows])
    return content.getvalue()


class AvroClient:
    """Appends batches, one after another. It must be closed after an error."""

    def __init__(
        self, endpoint: str, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], config: AvroSinkConfig
    ) -> None:
        self.endpoint = endpoint
        self._reader, self._writer = streams
        self._timeout_seconds = config.timeout_seconds
        self._frames = FrameReader(_RESPONSE_BYTES_MAX)
        is_compressed = config.compression == "deflate"
        self._inflater = Inflater() if is_compressed else None
        self._deflater = Deflater(config.compression_level) if is_compressed else None
        self._is_handshake_done = False
        """Whether the receiver has accepted a handshake; further calls have none."""
        self._serial = 0
        self.connected_at = asyncio.get_running_loop().time()

    @classmethod
    async def connect(cls, endpoint: str, config: AvroSinkConfig) -> "AvroClient":
        """Connects to an endpoint, whose name is resolved each time. Raises ComponentError."""
        tls = await asyncio.to_thread(config.tls.context) if config.tls is not None else None
        address = Address.parse(endpoint)
        try:
            async with asyncio.timeout(config.connect_timeout_seconds):
                streams = await asyncio.open_connection(address.host, address.port, ssl=tls)
        except TimeoutError:
            seconds = config.connect_timeout_seconds
            raise ComponentError(f"{endpoint}: connecting took longer than {seconds:g} seconds") from None
        except (OSError, ssl.SSLError, UnicodeError) as error:
            raise ComponentError(f"{endpoint}: cannot connect: {error}") from None
        return cls(endpoint, streams, config)

    @property
    def is_open(self) -> bool:
        """Whether the other side has not closed it, which it may do while nothing is sent."""
        return not (self._reader.at_eof() or self._writer.is_closing())

    def close(self) -> None:
        with suppress(OSError):
            self._writer.transport.abort()

    async def append_batch(self, events: bytes) -> None:
        """Sends an array of events, and returns once the receiver has responded OK. Raises ComponentError."""
        try:
            async with asyncio.timeout(self._timeout_seconds):
                status = await self._call(events)
        except TimeoutError:
            raise self._error(f"has not responded after {self._timeout_seconds:g} seconds") from None
        except RemoteError as error:
            raise self._error(f"returned an error: {error}") from None
        except (BadCallError, CompressionError, ForeignProtocolError, FramingError) as error:
            raise self._error(f"is not an Avro source of Flume: {error}") from None
        except OSError as error:
            raise self._error(f"the connection broke: {error}") from None
        if status is not Status.OK:
            raise self._error(
                f"returned {status.name}: its channel is full, or cannot accept so many events in one transaction"
            )

    def _error(self, message: str) -> ComponentError:
        return ComponentError(f"{self.endpoint}: {message}")

    async def _call(self, events: bytes) -> Status:
        if self._is_handshake_done:
            return read_response(await self._exchange(events), 0)
        handshake = handshake_request()
        for _ in range(_HANDSHAKES_MAX):
            response = await self._exchange(handshake, events)
            result = read_reply(response, APPEND_BATCH)
            if result.is_accepted:
                self._is_handshake_done = True
                return read_response(response, result.end)
            handshake = handshake_request(result.server_hash)
        raise BadCallError("it does not accept the protocol")

    async def _exchange(self, *parts: bytes) -> bytes:
        """Sends events, after a handshake or without one, and returns the payload of the response."""
        *handshake, events = parts
        self._serial = (self._serial + 1) % _SERIALS
        frame = framed(self._serial, *handshake, call_head(APPEND_BATCH), events)
        if self._deflater is not None:
            # No other call is in progress, so no other thread uses the compressor.
            frame = await asyncio.to_thread(self._deflater.deflated, frame)
        self._writer.write(frame)
        await self._writer.drain()
        response = await self._next_frame()
        if response.serial != self._serial:
            raise BadCallError(f"it responded to call {response.serial} instead of {self._serial}")
        return response.payload

    async def _next_frame(self) -> Frame:
        while data := await self._reader.read(_READ_BYTES):
            for piece in (data,) if self._inflater is None else self._inflater.feed(data):
                for frame in self._frames.feed(piece):
                    return frame
        raise ConnectionResetError("it was closed before the response came")
