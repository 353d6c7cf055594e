"""Channels whose records and events are known before they are damaged, and what a salvage finds then."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millrace_server.log_tools.layout import find_layout
from millrace_server.log_tools.salvage import PieceReader, Salvage, salvage
from millrace_server.log_tools.view import open_view
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from millrace_server.wal.format import RECORD_HEAD_BYTES
from millrace_server.wal.payload_codec import PayloadCodec
from tests.unit.log_tools.kept_channels import NAME, copied, opened_again, run

SMALL_MEMORY: dict[str, Any] = {"memory_capacity": 4, "memory_byte_capacity": 1 << 20}


Spot = tuple[int, int]
"""Index of a record, modulo their number, and of a byte in it."""


@dataclass(frozen=True, eq=False)
class Record:
    """A record of an intact log."""

    segment: Path
    start: int
    end: int
    kind: str
    message: Any

    @classmethod
    def of(cls, home: Path, document: dict[str, Any]) -> "Record":
        """Returns a record that `millraced log dump` shows."""
        segment, start = home / f"segment-{document['segment']:012}.log", document["position"]
        end = start + RECORD_HEAD_BYTES + document["payload_bytes"]
        return cls(segment, start, end, document["kind"], document["message"])


def _own_events(record: Record, puts: list[Record]) -> Iterator[tuple[int, Record, int]]:
    """Yields the sequence of each event of a COMMIT or MEMORY_STATE, its PUT, and its index in that."""
    message = record.message
    own = puts[len(puts) - len(message.get("put_counts", [])) :]
    if record.kind == "COMMIT":
        pairs = ((put, index) for put in own for index in range(len(put.message["events"])))
        for sequence, (put, index) in enumerate(pairs, message["first_sequence"]):
            yield sequence, put, index
        return
    fields = (message.get(name, []) for name in ("first_sequences", "put_indexes", "starts", "stops"))
    for first, put_index, start, stop in zip(*fields, strict=True):
        for index in range(start, stop):
            yield first + index - start, own[put_index], index


class Known:
    """A channel before it is damaged.

    No dataclass: Hypothesis prints all fields of one with each failure, and its warning of so many hides the failure.

    Attributes:
        records: All of its log.
        bodies: All events that were ever in the log, in base64.
        places: The PUT of each, and the record that gives it effect.
        queued: The sequences in the channel.
        unlogged: The sequences of events that were committed to memory only.
    """

    def __init__(self, home: Path, key_file: Path | None = None, **limits: Any) -> None:
        self.home = home
        keys = {"2026": key_file} if key_file else {}
        self.codec = PayloadCodec(keys={key_id: path.read_bytes() for key_id, path in keys.items()})
        options = [f"--key={key_id}={path}" for key_id, path in keys.items()]
        lines = run("log", "dump", home, "--json", "--bodies", *options).stdout.splitlines()
        self.records = [Record.of(home, json.loads(line)) for line in lines]
        self.bodies: dict[int, str] = {}
        self.places: dict[int, tuple[Record, Record]] = {}
        puts: list[Record] = []
        for record in self.records:
            if record.kind == "PUT":
                puts.append(record)
            elif record.kind in {"COMMIT", "KEEP"}:
                for sequence, put, index in _own_events(record, puts):
                    self.bodies[sequence] = put.message["events"][index]["body"]
                    self.places[sequence] = put, record
                puts = []
        events, _ = opened_again(copied(home, home.parent.parent / "intact" / NAME).parent, **limits)
        self.queued = {sequence for sequence, _ in events}
        logged = {sequence for sequence, (_, by) in self.places.items() if by.kind == "COMMIT"}
        self.unlogged = set(range(1, max(self.bodies) + 1)) - logged

    def damaged(self, spots: Iterable[tuple[Path, int]]) -> list[Record]:
        """The records at some places."""
        return [
            one for one in self.records if any(one.segment == path and one.start <= at < one.end for path, at in spots)
        ]


def known(base: Path, make: Callable[..., Coroutine[Any, Any, None]], **limits: Any) -> Known:
    """A channel with these limits that a coroutine has made."""
    asyncio.run(make(base / "made", **limits))
    return Known(base / "made" / NAME, **limits)


def salvaged(home: Path, codec: PayloadCodec) -> tuple[Salvage, dict[int, str]]:
    """What a log still has, with the bodies of its events."""
    with open_view(find_layout([home]), is_live=False) as view:
        found = salvage(view, codec)
        reader = PieceReader(view, codec)
        bodies: dict[int, str] = {}
        for piece in found.pieces:
            columns = reader.read(piece)
            assert columns is not None
            start = 0
            for sequence, size in enumerate(columns.body_sizes, piece.first_sequence):
                bodies[sequence] = b64encode(columns.bodies[start : start + size]).decode()
                start += size
    return found, bodies


def members(ranges: Iterable[tuple[int, int]], last: int) -> set[int]:
    """The sequences of ranges, up to the last that was put: what a log's end lost may be millions behind it."""
    return {sequence for first, end in ranges for sequence in range(first, min(end, last) + 1)}


def damage(before: Known, home: Path, spots: list[Spot], *, keeps_checkpoints: bool) -> list[Record]:
    """Changes bytes of a copy: for each spot, at most four from this byte of this record on; returns what that hits."""
    copied(before.home, home)
    if not keeps_checkpoints:
        for name in (NEWEST, PREVIOUS):
            (home / name).unlink(missing_ok=True)
    hit = []
    # Damage to the last SYNC_POINT is a torn tail, and makes one of other damage to the last group.
    *records, sync_point = before.records
    for index, offset in spots:
        record = records[index % len(records)]
        path = home / record.segment.name
        content = bytearray(path.read_bytes())
        start = min(record.start + offset, record.end - 1)
        end = sync_point.start if record.segment == sync_point.segment else len(content)
        for position in range(start, min(start + 4, end)):
            content[position] ^= 0x5A
            hit.append((record.segment, position))
        path.write_bytes(content)
    return before.damaged(hit)
