from concurrent.futures import Future

import pytest

from millrace_server.wal import reading
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, Kind
from millrace_server.wal.reading import Gap, ScannedRecord, SegmentScanner
from millrace_server.wal.records import Location, Submission
from millrace_server.wal.segments import LogCorruptError
from tests.log_histories import DATA, RunningLog, files_on
from tests.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("small_logs")

FIRST = DATA / "segment-000000000001.log"
WINDOW_BYTES = 100


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes scanners read small blocks, so that boundaries are everywhere."""
    monkeypatch.setattr(reading, "_READ_BYTES", WINDOW_BYTES)


def _written(*payloads: bytes) -> tuple[SimulatedDisk, list[Location]]:
    """A segment with a STATE and these records, each synced, and no SYNC_POINT."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        locations = [log.append(payload).locations[0] for payload in payloads]
        return disk.copy(), locations


def _scanner(disk: SimulatedDisk) -> SegmentScanner:
    (segment,) = files_on(disk).find()
    return SegmentScanner(segment.file, segment.header)


def _scanned(disk: SimulatedDisk, synced_length: int = 0, position: int = SEGMENT_HEADER_BYTES) -> list[ScannedRecord]:
    """Returns a segment's records up to its end, which must not be damage."""
    scanner = _scanner(disk)
    records = list(scanner.records(position))
    scanner.check_end(records[-1].end if records else position, synced_length)
    return records


def _flip(disk: SimulatedDisk, position: int) -> None:
    content = bytearray(disk.content(FIRST))
    content[position] ^= 1
    disk.set_content(FIRST, content)


def test_records_across_the_borders_of_windows_are_read_whole() -> None:
    """Records are found at any position and with any length."""
    for length in [*range(WINDOW_BYTES), 10 * WINDOW_BYTES + 7]:
        payloads = [b"x" * length, b"y" * length, b"z"]
        disk, locations = _written(*payloads)
        records = _scanned(disk)
        assert [(record.position, bytes(record.payload)) for record in records[1:]] == [
            (location.position, load) for location, load in zip(locations, payloads, strict=True)
        ]
        assert records[-1].end == locations[-1].position + 32 + 1
        assert records[-1].head.synced_position == locations[-1].position


def test_records_with_rot_before_a_good_one_find_it_wherever_that_lies() -> None:
    """The record that proves the damage is found at any distance from it."""
    for length in range(2 * WINDOW_BYTES):
        disk, (_first, rotten, proof) = _written(b"before", b"x" * length, b"proves it")
        _flip(disk, rotten.position)
        with pytest.raises(LogCorruptError, match=f"at byte {rotten.position}; .* up to byte {proof.position}"):
            _scanned(disk)


@pytest.mark.parametrize("kind", Kind)
def test_records_with_rot_before_a_good_one_find_it_whatever_it_says(kind: Kind) -> None:
    """Any record contains the synced position before it."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        rotten = log.append(b"rotten").locations[0]
        written: Future[Submission] = Future()
        log.log.submit(
            [(kind, [b"proves it"])], needs_sync=True, done=lambda submission, _error: written.set_result(submission)
        )
        proof = written.result().locations[0]
        killed = disk.copy()
    _flip(killed, rotten.position)
    with pytest.raises(LogCorruptError, match=f"at byte {rotten.position}; .* up to byte {proof.position}"):
        _scanned(killed)
    assert [record.head.kind for record in _scanner(killed).records_behind(rotten.position)] == [kind]


@pytest.mark.parametrize("filling", [b"\1\0\0\0", b"\0\0\0\0", b"MILLRACE", b"\7\3\0\0"])
def test_records_behind_a_hole_that_look_like_heads_prove_nothing(filling: bytes) -> None:
    """Bytes in the form of a head are not a record."""
    disk, locations = _written(b"torn" + filling * 100)
    _flip(disk, locations[0].position)
    (state,) = _scanned(disk)
    assert state.end == locations[0].position


def test_records_of_another_place_behind_a_hole_prove_nothing() -> None:
    """A payload may contain a copy of a log, whose records have other positions."""
    disk, locations = _written(b"first", b"second")
    disk, locations = _written(b"first", disk.content(FIRST))
    _flip(disk, locations[1].position)
    assert len(_scanned(disk)) == 2


def test_records_with_a_length_beyond_the_file_end_there() -> None:
    """A file that was cut inside a record ends before it."""
    disk, locations = _written(b"first", b"second" * 100)
    disk.set_content(FIRST, disk.content(FIRST)[: locations[1].position + 300])
    assert len(_scanned(disk)) == 2


def test_records_up_to_where_the_file_was_synced_must_be_good() -> None:
    """The synced length in other files counts as that in records."""
    disk, locations = _written(b"last")
    end = locations[0].position + 32 + 4
    assert len(_scanned(disk, end)) == 2
    with pytest.raises(LogCorruptError, match=f"damaged at byte {end}; it was synced up to byte {end + 1}"):
        _scanned(disk, end + 1)


def test_records_from_a_position_are_those_behind_it() -> None:
    """Reading may start at any record."""
    disk, locations = _written(b"one", b"two")
    assert [bytes(record.payload) for record in _scanned(disk, position=locations[1].position)] == [b"two"]


def test_records_and_gaps_of_a_damaged_segment_continue_behind_each_gap() -> None:
    """A gap contains the position of the next valid record, or None."""
    disk, (first, rotten, last) = _written(b"first", b"rotten", b"last")
    _flip(disk, rotten.position)
    found = [item if isinstance(item, Gap) else item.position for item in _scanner(disk).records_and_gaps(64, 1 << 20)]
    end = last.position + 32 + 4
    assert found == [64, first.position, Gap(rotten.position, last.position), last.position, Gap(end, None)]
    assert list(_scanner(disk).records_and_gaps(last.position, end))[1:] == []
