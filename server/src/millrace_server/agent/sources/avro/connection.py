"""The connection of a client."""

import asyncio
from collections.abc import Iterator

from millrace_server.agent.avro_rpc.calls import BadCallError
from millrace_server.agent.avro_rpc.compression import CompressionError, Deflater, Inflater
from millrace_server.agent.avro_rpc.framing import Frame, FrameReader, FramingError, framed
from millrace_server.agent.avro_rpc.protocol import PeerProtocol
from millrace_server.agent.sources.avro.calls import CallHandler
from millrace_server.agent.sources.avro.config import AvroSourceConfig
from millrace_server.network.accepting import ConnectionSlot

READ_BYTES = 64 * 1024
"""The size of a read; up to twice as much is buffered for each connection before it is read."""

_CALLS_AT_ONCE_MAX = 4
"""How many calls of a connection are stored at the same time, so that they share an fsync; further calls wait."""


class AvroConnection:
    """Reads calls and responds to them.

    Calls begin in the order in which they arrive. Concurrent calls may be stored and completed in another order; a
    client that needs the order must wait for each response, as Flume's clients do.
    """

    def __init__(
        self,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        slot: ConnectionSlot,
        config: AvroSourceConfig,
        handler: CallHandler,
    ) -> None:
        self._reader, self._writer = streams
        self._slot = slot
        self._config = config
        self._handler = handler
        self._frames = FrameReader(config.request_bytes_max)
        is_compressed = config.compression == "deflate"
        self._inflater = Inflater() if is_compressed else None
        self._deflater = Deflater.for_responses() if is_compressed else None
        self._peer: PeerProtocol | None = None
        self._responding: set[asyncio.Task[None]] = set()
        self._arriving_seconds = 0.0

    async def serve(self) -> None:
        """Responds to calls until the client disconnects or violates the protocol; then closes the connection."""
        try:
            while data := await self._read():
                for piece in self._inflated(data):
                    for frame in self._frames.feed(piece):
                        await self._take(frame)
                    self._handler.memory.note_arriving(self, self._frames.held_bytes, self._give_up)
                    if self._writer.transport.is_closing():
                        # It was closed to free memory, and must not continue to decompress.
                        return
                    if self._inflater is not None:
                        # A few bytes may decompress to many pieces, and other clients must get their turn.
                        await asyncio.sleep(0)
        except (FramingError, CompressionError, BadCallError) as error:
            self._log_closed(error)
        except TimeoutError:
            seconds = self._config.request_seconds_max
            self._log_closed(f"a request was not complete after {seconds:g} seconds")
        except OSError:
            # The client has disconnected; the responses to its calls are lost.
            pass
        except Exception as error:  # noqa: BLE001 - a bug in one connection must not end the others
            self._handler.log_unexpected(error)
        finally:
            self._handler.memory.note_arriving(self, 0, self._give_up)
            # Invalid bytes may follow calls that are still being stored.
            await self.finish()

    async def finish(self) -> None:
        """Closes the connection once its calls are completed and the client has read the responses."""
        try:
            while self._responding:
                await asyncio.wait(self._responding)
            self._writer.close()
            async with asyncio.timeout(self._config.request_seconds_max):
                await self._writer.wait_closed()
        except OSError:
            # The client has disconnected, or does not read its responses: TimeoutError is an OSError.
            pass
        finally:
            for task in self._responding:
                task.cancel()
            self._writer.transport.abort()
            self._slot.release()

    def _log_closed(self, reason: object) -> None:
        self._handler.log_closed(self._slot.address, reason)

    def _give_up(self) -> None:
        self._log_closed("its incomplete request took memory that others needed")
        self._writer.transport.abort()

    async def _read(self) -> bytes:
        """Returns the next bytes; nothing at the end of the connection. Raises TimeoutError for a slow client."""
        await self._handler.memory.wait_for_space(self)
        async with asyncio.timeout(self._config.request_seconds_max):
            # If a client does not read its responses, its next calls are not read.
            await self._writer.drain()
        if not self._frames.is_inside:
            self._arriving_seconds = 0.0
            self._note_idle()
            data = await self._reader.read(READ_BYTES)
            self._slot.mark_busy()
            return data
        clock = asyncio.get_running_loop().time
        began = clock()
        async with asyncio.timeout(self._config.request_seconds_max - self._arriving_seconds):
            data = await self._reader.read(READ_BYTES)
        self._arriving_seconds += clock() - began
        return data

    def _note_idle(self) -> None:
        if not self._responding and not self._frames.is_inside:
            self._slot.mark_idle()

    def _inflated(self, data: bytes) -> Iterator[bytes]:
        return iter((data,)) if self._inflater is None else self._inflater.feed(data)

    async def _take(self, frame: Frame) -> None:
        """Begins to respond to a call; waits while the connection has the maximum number of calls."""
        self._arriving_seconds = 0.0
        position, handshake = 0, b""
        if self._peer is None:
            reply = self._handler.handshakes.respond(frame.payload)
            self._peer, position, handshake = reply.peer, reply.end, reply.response
            if self._peer is None:
                self._send(frame.serial, handshake)
                return
        task = asyncio.create_task(self._respond(frame, position, self._peer, handshake))
        self._responding.add(task)
        task.add_done_callback(self._note_responded)
        while len(self._responding) >= _CALLS_AT_ONCE_MAX:
            await asyncio.wait(self._responding, return_when=asyncio.FIRST_COMPLETED)

    def _note_responded(self, task: "asyncio.Task[None]") -> None:
        self._responding.discard(task)
        self._note_idle()

    async def _respond(self, frame: Frame, position: int, peer: PeerProtocol, handshake: bytes) -> None:
        with self._handler.memory.storing(len(frame.payload)):
            response = await self._handler.respond(frame.payload, position, peer, self._slot.address)
        self._send(frame.serial, handshake + response)

    def _send(self, serial: int, response: bytes) -> None:
        if self._writer.is_closing():
            return
        sent = framed(serial, *filter(None, (response,)))
        self._writer.write(sent if self._deflater is None else self._deflater.deflated(sent))
