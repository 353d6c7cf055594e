"""The source `avro`: calls of Flume's clients into a file channel, beside the same events by Append.

The limit is fastavro, which decodes the same bytes and does nothing else.
"""

import asyncio
import os
import struct
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any

import fastavro

from tests.bench.calls import connect
from tests.bench.measuring import Contender, Scenario, Target
from tests.bench.payloads import BATCH_EVENTS, BODY_BYTES, FILE_CHANNEL, rows
from tests.bench.scenarios.append import append_scenario
from tests.bench.world import World
from tests.flume_peer import JAVA_BUFFER_BYTES, PROTOCOL, md5, write_events, write_long, write_map, write_string

EVENTS_PER_SECOND_MIN = 200_000
APPEND_SHARE_MIN = 0.4

_IN_FLIGHT = 4
_RESPONSE_BYTES = struct.calcsize(">iii") + 3
_LIMIT = "fastavro alone"

_CONFIG_TOML = f"""
[server]
shutdown_grace_seconds = 0.0
[channels.{FILE_CHANNEL}]
type = "file"
[sources.flume]
type = "avro"
listen = "127.0.0.1:0"
channels = ["{FILE_CHANNEL}"]
"""
_EVENTS: Any = fastavro.parse_schema(
    {
        "type": "array",
        "items": {
            "type": "record",
            "name": "AvroFlumeEvent",
            "fields": [
                {"name": "headers", "type": {"type": "map", "values": "string"}},
                {"name": "body", "type": "bytes"},
            ],
        },
    }
)


def flume_scenario(world: World) -> Scenario:
    """One connection of a client that has several calls in flight, or one, as a sink of Flume."""
    server = world.start_server(_CONFIG_TOML)
    world = replace(world, server=server, millrace=connect(server.grpc), channel=FILE_CHANNEL)
    append = append_scenario(world)
    events = write_events([(dict(row.headers), row.body) for row in rows(BATCH_EVENTS)])
    port = int(server.wait_for("listening")["address"].rpartition(":")[2])

    def contender(name: str, in_flight: int) -> Contender:
        return replace(append.ours[0], name=name, run=partial(_call_many, port, events, in_flight=in_flight))

    limit = Contender(name=_LIMIT, server_pid=os.getpid(), run=partial(_decode_many, events))
    return replace(
        append,
        name="file_flume",
        title=f"File: calls of Flume's Avro RPC, {BATCH_EVENTS} events of {BODY_BYTES} bytes, one connection",
        operations=200,
        ours=[contender(f"avro, {_IN_FLIGHT} in flight", _IN_FLIGHT), contender("avro, one in flight", 1)],
        one_way=None,
        loops=[append.ours[0], limit],
        target=Target(
            1.0,
            f"{APPEND_SHARE_MIN} Append, at most {EVENTS_PER_SECOND_MIN}/s",
            lambda rates: min(APPEND_SHARE_MIN * rates[append.ours[0].name], float(EVENTS_PER_SECOND_MIN)),
        ),
    )


def _frame(payload: bytes) -> bytes:
    buffers = [payload[start : start + JAVA_BUFFER_BYTES] for start in range(0, len(payload), JAVA_BUFFER_BYTES)]
    return struct.pack(">ii", 1, len(buffers)) + b"".join(struct.pack(">i", len(each)) + each for each in buffers)


async def _call_many(port: int, events: bytes, operations: int, *, in_flight: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    handshake = md5(PROTOCOL) + write_long(0) + md5(PROTOCOL) + write_long(0)
    head = write_map({}) + write_string("appendBatch")
    writer.write(_frame(handshake + head + write_events([])))
    # A handshake of both sides has four bytes.
    await reader.readexactly(_RESPONSE_BYTES + 4)
    frame = _frame(head + events)
    for number in range(operations + in_flight):
        if number >= in_flight:
            response = await reader.readexactly(_RESPONSE_BYTES)
            assert response.endswith(bytes(3)), "the response was not OK"
        if number < operations:
            writer.write(frame)
            await writer.drain()
    writer.close()
    await writer.wait_closed()


async def _decode_many(events: bytes, operations: int) -> None:
    def decode() -> None:
        for _ in range(operations):
            fastavro.schemaless_reader(BytesIO(events), _EVENTS, None)

    await asyncio.to_thread(decode)
