"""Changed bytes and missing files: detected, or harmless."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from millrace_server.wal.format import (
    RECORD_HEAD_BYTES,
    SEGMENT_HEADER_BYTES,
    Flags,
    Kind,
    RecordHead,
    SegmentHeader,
    UnknownVersionError,
    payload_checksum,
)
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.records import Location, LogPosition
from millrace_server.wal.segments import LogCorruptError, segment_name
from tests.log_histories import DATA, TWO_DIRECTORIES, Found, RunningLog, files_on, make_small, replay
from tests.segment_versions import LATER_VERSION, VERSION_OFFSET, of_version
from tests.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("small_logs")

FIRST, SECOND, THIRD = (DATA / segment_name(segment_id) for segment_id in (1, 2, 3))


class WrittenLog:
    """Three segments with a few records each, closed in order."""

    def __init__(self) -> None:
        self.disk = SimulatedDisk([DATA])
        self.locations: list[Location] = []
        with RunningLog(self.disk) as log:
            for segment in range(3):
                self.locations += log.append(b"state %d" % segment, begins_segment=True).locations
                self.locations += log.append(b"one", b"").locations
                self.locations += log.append(b"last of %d" % segment).locations
            end = log.append().end
        assert end is not None
        self.end = end
        """Where the records end, before the SYNC_POINT."""
        self.found = replay(self.disk)

    def with_content(self, path: Path, content: bytes | bytearray) -> SimulatedDisk:
        """A copy of the disk with another content in one file."""
        disk = self.disk.copy()
        disk.set_content(path, content)
        return disk

    def location(self, path: Path, index: int) -> Location:
        """The location of a record of a segment."""
        return [location for location in self.locations if segment_name(location.segment_id) == path.name][index]


@pytest.fixture(scope="module")
def written() -> WrittenLog:
    """One log for all tests of this module, each of which damages a copy."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        make_small(monkeypatch)
        return WrittenLog()


def _damage_found(disk: SimulatedDisk, start: LogPosition | None = None) -> str:
    """The damage reported when the log is opened, which must change nothing; empty if it opens."""
    before = disk.fingerprint()
    try:
        replay(disk, start=start)
    except (LogCorruptError, UnknownVersionError) as error:
        assert disk.fingerprint() == before
        return str(error)
    return ""


def test_replay_with_any_bit_flipped_finds_it_or_loses_nothing(written: WrittenLog) -> None:
    """Each flipped bit of each segment is detected, unless nothing that was acknowledged depends on it."""
    for path in written.disk.paths():
        content = bytearray(written.disk.content(path))
        for bit in range(len(content) * 8):
            content[bit // 8] ^= 1 << bit % 8
            disk = written.with_content(path, content)
            content[bit // 8] ^= 1 << bit % 8
            is_in_the_last_mark = path == THIRD and bit // 8 >= written.end.position
            assert bool(_damage_found(disk)) is not is_in_the_last_mark, f"bit {bit} of {path}"
            assert not is_in_the_last_mark or replay(disk) == written.found


def test_read_with_any_bit_of_the_record_flipped_finds_it(written: WrittenLog) -> None:
    """A read returns the record as written, or raises an error."""
    log = WriteAheadLog(files_on(written.disk))
    records = list(log.replay())
    for location in written.locations:
        payloads = log.read_run([location]) or []
        assert (Kind.PUT if location.position > SEGMENT_HEADER_BYTES else Kind.STATE, *payloads) in written.found
        content = bytearray(written.disk.content(DATA / segment_name(location.segment_id)))
        for bit in range(8 * location.position, 8 * (location.position + RECORD_HEAD_BYTES + location.payload_length)):
            content[bit // 8] ^= 1 << bit % 8
            damaged = WriteAheadLog(files_on(written.with_content(DATA / segment_name(location.segment_id), content)))
            damaged._segments.update({segment.segment_id: segment for segment in damaged._files.find()})
            content[bit // 8] ^= 1 << bit % 8
            with pytest.raises(LogCorruptError, match=f"the record at byte {location.position} is damaged"):
                damaged.read_run([location])
    assert len(records) == len(written.found) + 1


def test_replay_with_a_file_cut_finds_it_unless_it_may_be_a_torn_tail(written: WrittenLog) -> None:
    """Each truncation of a full segment is detected; of the last one all records before the cut stay."""
    for path in written.disk.paths():
        content = written.disk.content(path)
        for length in range(len(content)):
            disk = written.with_content(path, content[:length])
            if path != THIRD or length <= written.location(THIRD, 1).position - 1:
                assert _damage_found(disk), f"{path} cut to {length} bytes"
            else:
                found = replay(disk)
                assert found == written.found[: len(found)]
                assert len(found) > written.found.index((Kind.STATE, b"state 2"))
            # A checkpoint knows the synced position.
            assert bool(_damage_found(disk, written.end)) is (path != THIRD or length < written.end.position)


def _record(header: SegmentHeader, position: int, lsn: int, kind: int, payload: bytes = b"") -> bytes:
    head = RecordHead(payload_checksum([payload]), len(payload), Kind.PUT, Flags(0), lsn, 0)
    encoded = bytearray(head.encode(header.seed(position)))
    encoded[12] = kind
    encoded[:4] = zlib.crc32(encoded[4:], header.seed(position)).to_bytes(4, "little")
    return bytes(encoded) + payload


def _header(disk: SimulatedDisk, path: Path) -> SegmentHeader:
    return SegmentHeader.decode(disk.content(path))


def _with_header(disk: SimulatedDisk, path: Path, header: SegmentHeader) -> None:
    disk.set_content(path, header.encode() + disk.content(path)[SEGMENT_HEADER_BYTES:])


def _remove(path: Path) -> Callable[[SimulatedDisk, WrittenLog], None]:
    return lambda disk, _written: disk.remove(path)


def _copy(source: Path, target: Path) -> Callable[[SimulatedDisk, WrittenLog], None]:
    return lambda disk, _written: disk.set_content(target, disk.content(source))


def _another_channels_segment(disk: SimulatedDisk, _written: WrittenLog) -> None:
    _with_header(disk, SECOND, replace(_header(disk, SECOND), channel_id=b"another channel!"))


def _empty_file(disk: SimulatedDisk, _written: WrittenLog) -> None:
    disk.set_content(THIRD, b"")


def _no_magic(disk: SimulatedDisk, _written: WrittenLog) -> None:
    disk.set_content(FIRST, b"millrace" + disk.content(FIRST)[8:])


def _header_alone(disk: SimulatedDisk, _written: WrittenLog) -> None:
    disk.set_content(THIRD, disk.content(THIRD)[:SEGMENT_HEADER_BYTES])


def _first_record_gone(disk: SimulatedDisk, _written: WrittenLog) -> None:
    disk.set_content(THIRD, disk.content(THIRD)[:SEGMENT_HEADER_BYTES] + bytes(500))


def _something_behind_a_full_segment(disk: SimulatedDisk, _written: WrittenLog) -> None:
    header = _header(disk, FIRST)
    content = disk.content(FIRST)
    disk.set_content(FIRST, content + _record(header, len(content), 5, Kind.PUT))


def _zeros(path: Path, index: int) -> Callable[[SimulatedDisk, WrittenLog], None]:
    def change(disk: SimulatedDisk, written: WrittenLog) -> None:
        location = written.location(path, index)
        content = disk.content(path)
        end = location.position + RECORD_HEAD_BYTES + location.payload_length
        disk.set_content(path, content[: location.position] + bytes(end - location.position) + content[end:])

    return change


def _record_twice(disk: SimulatedDisk, written: WrittenLog) -> None:
    """One record's bytes replace another's."""
    content = disk.content(THIRD)
    here, there = written.location(THIRD, 1), written.location(THIRD, 2)
    length = RECORD_HEAD_BYTES
    stale = content[here.position : here.position + length]
    disk.set_content(THIRD, content[: there.position] + stale + content[there.position + length :])


def _record_of_another_segment(disk: SimulatedDisk, written: WrittenLog) -> None:
    """The previous segment has a record of the same size at the same position."""
    content, place = disk.content(THIRD), written.location(THIRD, 1)
    assert place.position == written.location(SECOND, 1).position
    end = place.position + RECORD_HEAD_BYTES + place.payload_length
    stale = disk.content(SECOND)[place.position : end]
    disk.set_content(THIRD, content[: place.position] + stale + content[end:])


def _number_left_out(disk: SimulatedDisk, written: WrittenLog) -> None:
    content, position = disk.content(THIRD), written.end.position
    skipping = _record(_header(disk, THIRD), position, written.end.lsn + 1, Kind.PUT)
    disk.set_content(THIRD, content[:position] + skipping)


def _older_segment(disk: SimulatedDisk, _written: WrittenLog) -> None:
    """The last segment is from another history, with the same length and fewer records."""
    header = replace(_header(disk, THIRD), first_lsn=7)
    disk.set_content(THIRD, header.encode() + _record(header, SEGMENT_HEADER_BYTES, 7, Kind.STATE))


def _next_version(disk: SimulatedDisk, _written: WrittenLog) -> None:
    disk.set_content(THIRD, of_version(disk.content(THIRD), LATER_VERSION))


def _damaged_version(disk: SimulatedDisk, _written: WrittenLog) -> None:
    content = bytearray(disk.content(THIRD))
    content[VERSION_OFFSET] ^= 4
    disk.set_content(THIRD, content)


def _kind_of_a_later_version(disk: SimulatedDisk, written: WrittenLog) -> None:
    content, position = disk.content(THIRD), written.end.position
    record = _record(_header(disk, THIRD), position, written.end.lsn, 99)
    disk.set_content(THIRD, content[:position] + record)


DAMAGES = [
    (_remove(SECOND), "the segments between are missing"),
    (_copy(FIRST, DATA / segment_name(4)), "its header says that it is segment 1 of channel .*; it must be segment 4"),
    (_copy(FIRST, SECOND), "its header says that it is segment 1 .*; it must be segment 2"),
    (_another_channels_segment, f"it is segment 2 of channel {b'another channel!'.hex()}; it must be segment 2"),
    (_empty_file, "a segment begins with 64 bytes; there are 0"),
    (_no_magic, "it does not begin with the magic of a segment"),
    (_header_alone, "has 64 bytes; it was synced up to byte 65"),
    (_first_record_gone, "is damaged at byte 64; it was synced up to byte 65"),
    (_something_behind_a_full_segment, r"segment-000000000001.log: has \d+ bytes; it had \d+ when it was full"),
    (_zeros(FIRST, 0), "is damaged at byte 64"),
    (_zeros(FIRST, 3), "is damaged at byte"),
    (_zeros(THIRD, 2), "is damaged at byte"),
    (_record_twice, "is damaged at byte"),
    (_record_of_another_segment, "is damaged at byte"),
    (_number_left_out, "the record at byte .* has LSN 14; it must be 13"),
    (_older_segment, "begins with LSN 7; it must be 9"),
    (_next_version, f"segment-000000000003.log: its format version is {LATER_VERSION}; this program knows 1 and 2"),
    (_damaged_version, "segment-000000000003.log: the format version in its header is damaged: 6 instead of 2"),
    (_kind_of_a_later_version, "segment-000000000003.log: it has a record of kind 99 with flags 0"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_replay_of_a_damaged_log_says_what_is_wrong_and_changes_nothing(
    written: WrittenLog, damage: Callable[[SimulatedDisk, WrittenLog], None], message: str
) -> None:
    """Each of these damages is reported with its file and position."""
    disk = written.disk.copy()
    damage(disk, written)
    before = disk.fingerprint()
    with pytest.raises((LogCorruptError, UnknownVersionError), match=message):
        replay(disk)
    assert disk.fingerprint() == before


def test_replay_with_a_segment_in_two_directories_refuses_both(written: WrittenLog) -> None:
    """Of two files for one segment, it is unknown which is right."""
    disk = SimulatedDisk(TWO_DIRECTORIES)
    for directory in TWO_DIRECTORIES:
        disk.set_content(directory / FIRST.name, written.disk.content(FIRST))
    with pytest.raises(LogCorruptError, match="the segments between are missing"):
        replay(disk, TWO_DIRECTORIES)


def test_replay_from_a_segment_that_is_missing_is_refused(written: WrittenLog) -> None:
    """A checkpoint that points nowhere shows that segments are missing."""
    with pytest.raises(LogCorruptError, match="segment 4, where replay begins, is missing"):
        replay(written.disk.copy(), start=LogPosition(4, SEGMENT_HEADER_BYTES, 14))


def test_replay_from_another_record_than_it_should_be_is_refused(written: WrittenLog) -> None:
    """A checkpoint with another count of records does not belong to this log."""
    with pytest.raises(LogCorruptError, match=r"the record at byte \d+ has LSN 13; it must be 12"):
        replay(written.disk.copy(), start=written.end._replace(lsn=12))


def test_replay_from_a_place_reads_only_what_is_behind_it(written: WrittenLog) -> None:
    """Damage before the start of replay is not noticed then; it is found when it is read."""
    disk = written.disk.copy()
    _zeros(FIRST, 1)(disk, written)
    location = written.location(SECOND, 2)
    start = LogPosition(location.segment_id, location.position, 7)
    assert replay(disk, start=start) == written.found[written.found.index((Kind.STATE, b"state 1")) + 2 :]


def test_replay_ignores_files_of_others(written: WrittenLog) -> None:
    """Files that are not segments stay unchanged, whatever their names."""
    disk = written.disk.copy()
    for name in ("checkpoint", "checkpoint.new", "segment-1.log", "segment-000000000004.log.bak", "notes.new"):
        disk.set_content(DATA / name, b"not ours")
    assert replay(disk) == written.found
    assert len(disk.paths()) == 3 + 5


class TornLog:
    """A last segment with a hole in its last group, and valid records after it."""

    def __init__(self, *, was_synced: bool) -> None:
        self.disk = SimulatedDisk([DATA])
        with RunningLog(self.disk) as log:
            log.append(b"state", begins_segment=True)
            log.append(b"before")
            hole = log.append(b"in the hole", needs_sync=was_synced).locations[0]
            log.append(b"good, behind the hole", needs_sync=was_synced)
            log.append(b"good too", needs_sync=was_synced)
            # Copied before the close, which marks the end.
            killed = self.disk.copy()
        content = bytearray(killed.content(FIRST))
        content[hole.position] ^= 1
        self.disk = killed
        self.disk.set_content(FIRST, content)


def _records(*payloads: bytes) -> list[Found]:
    return [(Kind.STATE, payloads[0]), *((Kind.PUT, payload) for payload in payloads[1:])]


def test_replay_of_a_hole_that_was_not_synced_cuts_what_is_behind_it() -> None:
    """Valid records after a hole that was never synced were never acknowledged, and never reappear."""
    torn = TornLog(was_synced=False)
    assert replay(torn.disk) == _records(b"state", b"before")
    with RunningLog(torn.disk) as log:
        # As long as the hole, so that the records after it would fit again, with their numbers.
        log.append(b"in the hole")
        killed = torn.disk.copy()
    assert replay(killed) == _records(b"state", b"before", b"in the hole")


def test_replay_of_a_hole_that_was_synced_finds_it() -> None:
    """A record written after a sync of the hole proves the damage, without any SYNC_POINT."""
    torn = TornLog(was_synced=True)
    with pytest.raises(LogCorruptError, match=r"is damaged at byte \d+; it was synced up to byte \d+"):
        replay(torn.disk)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_replay_of_a_last_record_that_rotted_finds_it_once_it_is_marked(count: int) -> None:
    """The SYNC_POINT at the end of a log covers the last record, which no other record does."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        last = log.append(b"last").locations[0]
    for _ in range(count):
        # Opened and closed repeatedly, each time with another SYNC_POINT.
        with RunningLog(disk):
            pass
    content = bytearray(disk.content(FIRST))
    content[last.position] ^= 1
    disk.set_content(FIRST, content)
    with pytest.raises(LogCorruptError, match="is damaged at byte"):
        replay(disk)


def test_replay_of_a_record_behind_a_window_reads_it_whole() -> None:
    """Records that exceed a read window or cross its end are read and checked like others."""
    disk = SimulatedDisk([DATA])
    payloads = [bytes([number]) * length for number, length in enumerate([7 << 20, 3 << 20, 20 << 20, 100])]
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        locations = [log.append(payload).locations[0] for payload in payloads]
    assert replay(disk) == _records(b"state", *payloads)
    content = bytearray(disk.content(FIRST))
    content[locations[1].position + 1000] ^= 1
    disk.set_content(FIRST, content)
    with pytest.raises(LogCorruptError, match=f"is damaged at byte {locations[1].position}; it was synced up to byte"):
        replay(disk)
