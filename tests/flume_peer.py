"""A peer of Flume's Avro RPC, as a client and as a server, without a line of Millrace's code.

It is written from the specification of Avro 1.11 ("Binary Encoding", "Protocol Wire Format"), from the framing of
Avro's Netty transport, and from Flume's published protocol. It blocks: each connection has a thread of its own.
"""

import hashlib
import json
import socket
import ssl
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

Event = tuple[dict[str, str], bytes]

PROTOCOL = (
    '{"protocol":"AvroSourceProtocol","namespace":"org.apache.flume.source.avro","types":['
    '{"type":"enum","name":"Status","symbols":["OK","FAILED","UNKNOWN"]},'
    '{"type":"record","name":"AvroFlumeEvent","fields":['
    '{"name":"headers","type":{"type":"map","values":"string"}},{"name":"body","type":"bytes"}]}],'
    '"messages":{"append":{"request":[{"name":"event","type":"AvroFlumeEvent"}],"response":"Status"},'
    '"appendBatch":{"request":[{"name":"events","type":{"type":"array","items":"AvroFlumeEvent"}}],'
    '"response":"Status"}}}'
)
STATUSES = ["OK", "FAILED", "UNKNOWN"]
BOTH, CLIENT, NONE = range(3)

JAVA_BUFFER_BYTES = 8192
"""Avro for Java cuts what it writes into buffers of this size."""

WAIT_SECONDS_MAX = 60.0


def md5(text: str) -> bytes:
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()


# "int and long values are written using variable-length zig-zag coding."


def write_long(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = b""
    while zigzag > 127:
        out += bytes([zigzag & 127 | 128])
        zigzag >>= 7
    return out + bytes([zigzag])


def write_bytes(value: bytes) -> bytes:
    return write_long(len(value)) + value


def write_string(value: str) -> bytes:
    return write_bytes(value.encode())


def write_map(entries: dict[str, bytes]) -> bytes:
    """A map of bytes: one block, if it has entries, then a block of none."""
    block = write_long(len(entries)) if entries else b""
    return block + b"".join(write_string(key) + write_bytes(value) for key, value in entries.items()) + write_long(0)


def write_event(event: Event) -> bytes:
    headers, body = event
    return write_map({key: value.encode() for key, value in headers.items()}) + write_bytes(body)


def write_events(events: Sequence[Event]) -> bytes:
    block = write_long(len(events)) if events else b""
    return block + b"".join(map(write_event, events)) + write_long(0)


class Cursor:
    """Reads values one after another."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        assert 0 <= count <= len(self.data) - self.at, "the data is too short"
        self.at += count
        return self.data[self.at - count : self.at]

    def read_long(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return (value >> 1) ^ -(value & 1)

    def read_bytes(self) -> bytes:
        return self.take(self.read_long())

    def read_string(self) -> str:
        return self.read_bytes().decode()

    def blocks(self) -> Iterator[None]:
        """One for each item of an array or a map."""
        while count := self.read_long():
            if count < 0:
                self.read_long()
            yield from [None] * abs(count)

    def read_map(self) -> dict[str, bytes]:
        return {self.read_string(): self.read_bytes() for _ in self.blocks()}

    def optional(self, read: Callable[[], object]) -> object:
        """A union of null and another type."""
        return read() if self.read_long() else None

    def read_event(self) -> Event:
        headers = {key: value.decode() for key, value in self.read_map().items()}
        return headers, self.read_bytes()


class RpcError(Exception):
    """An error that the server responded with."""


class Wire:
    """Frames on a connection."""

    def __init__(self, connection: socket.socket, deflate_level: int | None = None) -> None:
        self.connection = connection
        self._received = b""
        self._out = None if deflate_level is None else zlib.compressobj(deflate_level)
        self._in = None if deflate_level is None else zlib.decompressobj()

    def send_raw(self, data: bytes) -> None:
        if self._out is not None:
            data = self._out.compress(data) + self._out.flush(zlib.Z_SYNC_FLUSH)
        self.connection.sendall(data)

    def send(self, serial: int, payload: bytes) -> None:
        cuts = range(0, len(payload), JAVA_BUFFER_BYTES)
        buffers = [payload[start : start + JAVA_BUFFER_BYTES] for start in cuts]
        self.send_raw(
            struct.pack(">ii", serial, len(buffers))
            + b"".join(struct.pack(">i", len(buffer)) + buffer for buffer in buffers)
        )

    def _take(self, count: int) -> bytes:
        while len(self._received) < count:
            data = self.connection.recv(1 << 16)
            if not data:
                raise ConnectionError("the connection was closed")
            self._received += data if self._in is None else self._in.decompress(data)
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    def receive(self) -> tuple[int, bytes]:
        serial, count = struct.unpack(">ii", self._take(8))
        payload = b""
        for _ in range(count):
            (length,) = struct.unpack(">i", self._take(4))
            payload += self._take(length)
        return serial, payload


class FlumeClient:
    """Sends as Flume's client does: its protocol's text only if the server asks for it.

    Attributes:
        handshakes: The matches in the server's responses.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        deflate_level: int | None = None,
        tls: ssl.SSLContext | None = None,
        protocol: str = PROTOCOL,
    ) -> None:
        connection = socket.create_connection(address, timeout=WAIT_SECONDS_MAX)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            connection = tls.wrap_socket(connection, server_hostname="localhost")
        self.wire = Wire(connection, deflate_level)
        self.protocol = protocol
        self.handshakes: list[int] = []
        self._server_hash = md5(protocol)
        self._is_greeted = False
        self._serial = 0

    def append(self, event: Event) -> str:
        return self.call("append", write_event(event))

    def append_batch(self, events: Sequence[Event]) -> str:
        return self.call("appendBatch", write_events(events))

    def call(self, message: str, parameters: bytes) -> str:
        """Makes a call; returns the status."""
        call = write_map({}) + write_string(message) + parameters
        if self._is_greeted:
            return self._status(Cursor(self.exchange(call)))
        response = Cursor(self.exchange(self.handshake(None) + call))
        if not self._welcome(response):
            response = Cursor(self.exchange(self.handshake(self.protocol) + call))
            assert self._welcome(response), "the server does not accept the protocol"
        return self._status(response)

    def handshake(self, text: str | None) -> bytes:
        """A HandshakeRequest: clientHash, clientProtocol, serverHash, meta."""
        protocol = write_long(0) if text is None else write_long(1) + write_string(text)
        return md5(self.protocol) + protocol + self._server_hash + write_long(0)

    def _welcome(self, response: Cursor) -> bool:
        """Reads a HandshakeResponse: match, serverProtocol, serverHash, meta."""
        match = response.read_long()
        self.handshakes.append(match)
        protocol = response.optional(response.read_string)
        server_hash = response.optional(lambda: response.take(16))
        response.optional(response.read_map)
        assert (protocol is None) == (server_hash is None) == (match == BOTH)
        if isinstance(server_hash, bytes):
            assert server_hash == md5(str(protocol))
            self._server_hash = server_hash
        self._is_greeted = match != NONE
        return self._is_greeted

    def _status(self, response: Cursor) -> str:
        response.read_map()
        if response.take(1) == b"\x01":
            assert response.read_long() == 0, "the union of errors is [string]"
            raise RpcError(response.read_string())
        status = STATUSES[response.read_long()]
        assert response.at == len(response.data)
        return status

    def exchange(self, payload: bytes) -> bytes:
        self._serial += 1
        self.wire.send(self._serial, payload)
        serial, response = self.wire.receive()
        assert serial == self._serial
        return response

    def close(self) -> None:
        self.wire.connection.close()


@dataclass
class FlumeServer:
    """Receives as Flume's source does.

    `responses` are those of the next calls: a status; "error", "silence", or "close" before the call's events are kept;
    "lost" after that. Then each call gets OK.
    """

    deflate_level: int | None = None
    tls: ssl.SSLContext | None = None
    protocol: str = PROTOCOL
    responses: list[str] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    batch_sizes: list[int] = field(default_factory=list)
    handshakes: list[int] = field(default_factory=list)
    connection_count: int = 0
    known_hashes: set[bytes] = field(default_factory=set)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __post_init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listening.getsockname()
        self.endpoint = f"127.0.0.1:{self.address[1]}"
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, WAIT_SECONDS_MAX), "it did not happen"

    def close_connections(self) -> None:
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self.listening.shutdown(socket.SHUT_RDWR)
        self.listening.close()
        self.close_connections()
        for thread in self._threads:
            thread.join(WAIT_SECONDS_MAX)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError):
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            self._connections.append(connection)
            with self.changed:
                self.connection_count += 1
                self.changed.notify_all()
            with connection:
                self._respond_to_calls(Wire(connection, self.deflate_level))

    def _respond_to_calls(self, wire: Wire) -> None:
        is_greeted = False
        while True:
            serial, payload = wire.receive()
            call = Cursor(payload)
            response = b""
            if not is_greeted:
                is_greeted, response = self._greet(call)
                if not is_greeted:
                    wire.send(serial, response)
                    continue
            call.read_map()
            assert call.read_string() == "appendBatch"
            events = [call.read_event() for _ in call.blocks()]
            assert call.at == len(payload)
            with self.changed:
                word = self.responses.pop(0) if self.responses else "OK"
                if word in {"OK", "lost"}:
                    self.events += events
                    self.batch_sizes.append(len(events))
                self.changed.notify_all()
            if word in {"close", "lost"}:
                return
            if word == "error":
                wire.send(serial, response + write_map({}) + b"\x01" + write_long(0) + write_string("java.lang.Oops"))
            elif word != "silence":
                wire.send(serial, response + write_map({}) + b"\x00" + write_long(STATUSES.index(word)))

    def _greet(self, call: Cursor) -> tuple[bool, bytes]:
        client_hash = call.take(16)
        text = call.optional(call.read_string)
        server_hash = call.take(16)
        call.optional(call.read_map)
        if text is not None:
            json.loads(str(text))
            self.known_hashes.add(client_hash)
        mine = md5(self.protocol)
        match = NONE if client_hash not in self.known_hashes else BOTH if server_hash == mine else CLIENT
        self.handshakes.append(match)
        if match == BOTH:
            return True, write_long(match) + write_long(0) * 3
        about_me = write_long(1) + write_string(self.protocol) + write_long(1) + mine + write_long(0)
        return match != NONE, write_long(match) + about_me


@contextmanager
def flume_server(**settings: object) -> Iterator[FlumeServer]:
    """A server that ends with the block."""
    server = FlumeServer(**settings)  # type: ignore[arg-type]  # its fields
    try:
        yield server
    finally:
        server.close()
