"""A bare grpc.aio server: measures gRPC itself on this machine; the server does not look at the bytes.

`echo` responds with the bytes received. `sink` responds with a few, and `source` with as many as the request asks for:
these two carry bytes one way only, as an append or a take does, and so are the more demanding references. Each exists
as a unary call and as a stream with one response per message; `source_many` repeats a response, as Read does. `log`, of
a server of its own and in both forms, is `sink` with a bare log; `parsing_log`, a stream, also does what no server of
messages can leave out; `log_alone`, a unary call, is `sink` with a log of Millrace's.
"""

import asyncio
import multiprocessing
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

import grpc
import uvloop
from grpc import aio

from millrace.v1 import channel_service_pb2 as pb
from tests.bench.bare_log import BareLog
from tests.bench.log_alone import LogAlone

METHOD = "/bare.Bare/{}"
SMALL_RESPONSE = b"\x08\x01\x10\xe8\x07"

_MESSAGE_BYTES_MAX = 64 << 20
_SIZE_BYTES = 4
_SEQUENCE = 1_000_000
_SECONDS = 1_700_000_000

Context = aio.ServicerContext[bytes, bytes]
Respond = Callable[[bytes], bytes]
Handlers: TypeAlias = "dict[str, grpc.RpcMethodHandler[bytes, bytes]]"


def echo(request: bytes) -> bytes:
    """Returns the same bytes."""
    return request


def sink(request: bytes) -> bytes:
    """Returns a few bytes, as an append's response has."""
    return SMALL_RESPONSE


def source(request: bytes) -> bytes:
    """Returns as many bytes as the request's first four say."""
    return _zeros(int.from_bytes(request[:_SIZE_BYTES], "big"))


def parse(request: bytes) -> bytes:
    """Parses an append, and returns the message that responds to it."""
    last_sequence = _SEQUENCE + pb.AppendStreamRequest.FromString(request).columns.count
    response = pb.AppendStreamResponse(first_sequence=_SEQUENCE + 1, last_sequence=last_sequence)
    response.commit_time.seconds = _SECONDS
    return response.SerializeToString()


def source_request(response_bytes: int, request_bytes: int) -> bytes:
    """A request that `source` responds with this many bytes."""
    return response_bytes.to_bytes(_SIZE_BYTES, "big").ljust(request_bytes, b"\0")


def many_request(response_bytes: int, response_count: int) -> bytes:
    """A request that `source_many` responds with so many responses of so many bytes."""
    return response_bytes.to_bytes(_SIZE_BYTES, "big") + response_count.to_bytes(_SIZE_BYTES, "big")


@cache
def _zeros(count: int) -> bytes:
    return bytes(count)


@dataclass(frozen=True)
class BareServer:
    """A running bare server."""

    address: str
    pid: int


@contextmanager
def bare_server(certificate: bytes = b"", private_key: bytes = b"") -> Iterator[BareServer]:
    """A bare server in a process of its own; over TLS, if it is given a certificate and its key in PEM."""
    with _running(_serve_bare, certificate, private_key) as server:
        yield server


@contextmanager
def log_server(directory: Path) -> Iterator[BareServer]:
    """A server with a bare log and a log alone, in a process of its own, with the same event loop as Millrace.

    Args:
        directory: The directory of both logs.
    """
    with _running(_serve_logs, directory) as server:
        yield server


@contextmanager
def _running(main: Callable[..., None], *arguments: object) -> Iterator[BareServer]:
    spawned = multiprocessing.get_context("spawn")
    ours, theirs = spawned.Pipe()
    process = spawned.Process(target=main, args=(theirs, *arguments), daemon=True)
    process.start()
    # Closed here, so that the end of the process is noticed if it comes before the address.
    theirs.close()
    assert process.pid is not None
    try:
        yield BareServer(ours.recv(), process.pid)
    finally:
        process.kill()
        process.join()


def _serve_bare(parent: Connection, certificate: bytes, private_key: bytes) -> None:
    handlers: Handlers = {}
    for responding in (echo, sink, source):
        handlers[responding.__name__] = grpc.unary_unary_rpc_method_handler(_unary(responding))
        handlers[f"{responding.__name__}_stream"] = grpc.stream_stream_rpc_method_handler(_stream(responding))
    handlers["source_many"] = grpc.unary_stream_rpc_method_handler(_source_many)
    credentials = grpc.ssl_server_credentials([(private_key, certificate)]) if certificate else None
    asyncio.run(_serve(parent, handlers, credentials))


def _serve_logs(parent: Connection, directory: Path) -> None:
    async def serve() -> None:
        bare, alone = BareLog(directory / "bare-log"), LogAlone(directory / "log-alone")

        async def log(request: bytes, _context: Context) -> bytes:
            await bare.append(request)
            return SMALL_RESPONSE

        async def log_alone(request: bytes, _context: Context) -> bytes:
            return await alone.append(request)

        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        handlers: Handlers = {
            "log": unary(log),
            "log_stream": stream(_log_stream(bare, sink)),
            "parsing_log_stream": stream(_log_stream(bare, parse)),
            "log_alone": unary(log_alone),
        }
        await _serve(parent, handlers)

    uvloop.run(serve())


async def _serve(parent: Connection, handlers: Handlers, credentials: grpc.ServerCredentials | None = None) -> None:
    server = aio.server(
        options=[
            ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
        ]
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Bare", handlers),))
    address = "127.0.0.1:0"
    port = server.add_secure_port(address, credentials) if credentials else server.add_insecure_port(address)
    await server.start()
    parent.send(f"127.0.0.1:{port}")
    await server.wait_for_termination()


def _unary(responding: Respond) -> Callable[[bytes, Context], Awaitable[bytes]]:
    async def handle(request: bytes, _context: Context) -> bytes:
        return responding(request)

    return handle


async def _source_many(request: bytes, context: Context) -> None:
    for _ in range(int.from_bytes(request[_SIZE_BYTES:], "big")):
        await context.write(source(request))


def _stream(responding: Respond) -> Callable[[object, Context], Awaitable[None]]:
    async def handle(_requests: object, context: Context) -> None:
        while isinstance(request := await context.read(), bytes):
            await context.write(responding(request))

    return handle


def _log_stream(log: BareLog, responding: Respond) -> Callable[[object, Context], Awaitable[None]]:
    async def handle(_requests: object, context: Context) -> None:
        waiting: asyncio.Queue[tuple[asyncio.Future[None], bytes] | None] = asyncio.Queue()

        async def read() -> None:
            while isinstance(request := await context.read(), bytes):
                waiting.put_nowait((log.append(request), responding(request)))
            waiting.put_nowait(None)

        reading = asyncio.create_task(read())
        while (appended := await waiting.get()) is not None:
            synced, response = appended
            await synced
            await context.write(response)
        await reading

    return handle
