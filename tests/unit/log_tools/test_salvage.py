"""What is kept of a damaged log: each event whose record is intact; all others are named."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace_server.channels.stamps import Stamp
from millrace_server.log_tools.layout import find_layout
from millrace_server.log_tools.salvage import PieceReader, Salvage, salvage
from millrace_server.log_tools.view import open_view
from millrace_server.wal.checkpoints import NEWEST, PREVIOUS
from millrace_server.wal.format import RECORD_HEAD_BYTES
from millrace_server.wal.payload_codec import PayloadCodec
from tests.channel_events import append, begin_with_takes
from tests.unit.log_tools.kept_channels import NAME, copied, make_channel, open_channel, opened_again, run


@dataclass(frozen=True, eq=False)
class Record:
    """A record of an intact log."""

    segment: Path
    start: int
    end: int
    kind: str
    message: Any


@dataclass(frozen=True)
class Known:
    """A channel before it is damaged."""

    home: Path
    records: list[Record]
    bodies: dict[int, str]
    """All events that were ever put, in base64."""
    places: dict[int, tuple[Record, Record]]
    """The PUT and COMMIT of each."""
    queued: set[int]

    def damaged(self, spots: Iterable[tuple[Path, int]]) -> list[Record]:
        """The records at some places."""
        return [
            one for one in self.records if any(one.segment == path and one.start <= at < one.end for path, at in spots)
        ]


def known(home: Path) -> Known:
    """Reads all of an intact log."""
    lines = run("log", "dump", home, "--json", "--bodies").stdout.splitlines()
    records = []
    for document in map(json.loads, lines):
        segment = home / f"segment-{document['segment']:012}.log"
        end = document["position"] + RECORD_HEAD_BYTES + document["payload_bytes"]
        records.append(Record(segment, document["position"], end, document["kind"], document["message"]))
    bodies: dict[int, str] = {}
    places: dict[int, tuple[Record, Record]] = {}
    puts: list[Record] = []
    for record in records:
        if record.kind == "PUT":
            puts.append(record)
        if record.kind != "COMMIT":
            continue
        sequence = record.message["first_sequence"]
        for put in puts[len(puts) - len(record.message.get("put_counts", [])) :]:
            for event in put.message["events"]:
                bodies[sequence] = event["body"]
                places[sequence] = put, record
                sequence += 1
        puts = []
    events, _ = opened_again(copied(home, home.parent.parent / "intact" / NAME).parent)
    return Known(home, records, bodies, places, {sequence for sequence, _ in events})


async def _single_events(base: Path) -> None:
    async with open_channel(base, segment_bytes_max=4_000) as channel:
        for number in range(60):
            await append(channel, b"%d" % number, stamp=Stamp("lone", number, number))
            if number % 7 == 6:
                txn_id = await begin_with_takes(channel, 3)
                await channel.transactions.commit([txn_id], None)


@pytest.fixture(scope="module", params=["batches", "runs"])
def before(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Known:
    """A channel of batches, or one of lone events, which become runs."""
    base = tmp_path_factory.mktemp("salvage")
    if request.param == "batches":
        make_channel(base / "made")
    else:
        asyncio.run(_single_events(base / "made"))
    return known(base / "made" / NAME)


def salvaged(home: Path) -> tuple[Salvage, dict[int, str]]:
    """What a log still has, with the bodies of its events."""
    with open_view(find_layout([home]), is_live=False) as view:
        found = salvage(view, PayloadCodec())
        reader = PieceReader(view, PayloadCodec())
        bodies: dict[int, str] = {}
        for piece in found.pieces:
            columns = reader.read(piece)
            assert columns is not None
            start = 0
            for sequence, size in enumerate(columns.body_sizes, piece.first_sequence):
                bodies[sequence] = b64encode(columns.bodies[start : start + size]).decode()
                start += size
    return found, bodies


def members(ranges: Iterable[tuple[int, int]]) -> set[int]:
    """The sequences of ranges."""
    return {sequence for first, last in ranges for sequence in range(first, last + 1)}


def damage(before: Known, home: Path, spots: list[tuple[int, int]], *, keeps_checkpoints: bool) -> list[Record]:
    """Changes bytes of a copy: for each spot, at most four from this byte of this record on; returns what that hits."""
    copied(before.home, home)
    if not keeps_checkpoints:
        for name in (NEWEST, PREVIOUS):
            (home / name).unlink(missing_ok=True)
    hit = []
    for index, offset in spots:
        record = before.records[index]
        path = home / record.segment.name
        content = bytearray(path.read_bytes())
        start = min(record.start + offset, record.end - 1)
        for position in range(start, min(start + 4, len(content))):
            content[position] ^= 0x5A
            hit.append((record.segment, position))
        path.write_bytes(content)
    return before.damaged(hit)


OFFSETS = st.one_of(st.integers(0, 200), st.sampled_from([0, 12, 31, 32]))
EACH = settings(
    max_examples=25,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@EACH
@given(data=st.data())
def test_salvage_of_one_damage_keeps_each_intact_record_and_names_the_others(
    before: Known, tmp_path: Path, data: st.DataObject
) -> None:
    """Exactly the events of damaged PUT records are lost; what may come back was taken by a damaged record."""
    # Damage to the last SYNC_POINT is a torn tail, and makes one of other damage to the last group.
    spot = data.draw(st.integers(0, len(before.records) - 2)), data.draw(OFFSETS)
    damaged = damage(before, tmp_path / NAME, [spot], keeps_checkpoints=data.draw(st.booleans()))
    found, bodies = salvaged(tmp_path / NAME)
    assert bodies.items() <= before.bodies.items()
    assert bodies.keys() >= {sequence for sequence in before.queued if before.places[sequence][0] not in damaged}
    # At the log's end nothing tells how many events a lost PUT had whose COMMIT is lost, too.
    last = max(before.bodies)
    assert {sequence for sequence in members(found.lost) if sequence <= last} == before.queued - bodies.keys()
    redelivered = members(found.redelivered)
    assert bodies.keys() - before.queued <= redelivered <= bodies.keys()
    assert not redelivered or len(damaged) > 1 or damaged[0].kind in {"TAKE", "COMMIT"}
    assert found.recovered.next_sequence > last


@EACH
@given(data=st.data())
def test_salvage_of_many_damages_loses_and_redelivers_nothing_unnamed(
    before: Known, tmp_path: Path, data: st.DataObject
) -> None:
    """Whatever is hit, each event is kept with its sequence or named, and each that comes back is named."""
    spots = data.draw(st.lists(st.tuples(st.integers(0, len(before.records) - 2), OFFSETS), min_size=2, max_size=8))
    damaged = damage(before, tmp_path / NAME, spots, keeps_checkpoints=data.draw(st.booleans()))
    found, bodies = salvaged(tmp_path / NAME)
    assert bodies.items() <= before.bodies.items()
    assert before.queued <= bodies.keys() | members(found.lost)
    assert not bodies.keys() & members(found.lost)
    assert bodies.keys() - before.queued <= members(found.redelivered) <= bodies.keys()
    intact = {sequence for sequence in before.queued if not {*before.places[sequence]} & {*damaged}}
    assert bodies.keys() >= intact
    assert found.recovered.next_sequence > max(before.queued)
