import errno
from pathlib import Path

import pytest

from millrace_server.wal.disk import OsDisk
from millrace_server.wal.format import SegmentHeader
from millrace_server.wal.segments import NameUnsyncedError, SegmentFiles, segment_name
from tests.log_histories import CHANNEL_ID, DATA, TWO_DIRECTORIES, files_on
from tests.simulated_disk import Call, SimulatedDisk


def _header(segment_id: int, previous_length: int = 0) -> SegmentHeader:
    return SegmentHeader(CHANNEL_ID, segment_id, segment_id, previous_length)


def test_create_of_several_segments_uses_the_directories_in_turn() -> None:
    """Each directory gets its share, and each name contains the segment's id."""
    disk = SimulatedDisk(TWO_DIRECTORIES)
    files = files_on(disk, TWO_DIRECTORIES)
    for segment_id in range(1, 5):
        files.create(_header(segment_id, 64 * (segment_id > 1)), [])
    assert [str(path) for path in disk.paths()] == [
        "left/segment-000000000002.log",
        "left/segment-000000000004.log",
        "right/segment-000000000001.log",
        "right/segment-000000000003.log",
    ]
    assert [segment.segment_id for segment in files.find()] == [1, 2, 3, 4]


def test_create_of_a_segment_syncs_it_before_it_has_its_name() -> None:
    """The content is durable before the name exists, and the name before it is used."""
    disk = SimulatedDisk([DATA])
    files_on(disk).create(_header(1), [b"record"])
    name, temporary = "segment-000000000001.log", "segment-000000000001.new"
    assert [(call.kind, call.name) for call in disk.calls] == [
        ("open_directory", "data"),
        ("list", "data"),
        ("create", temporary),
        ("write", temporary),
        ("sync", temporary),
        ("rename", name),
        ("sync_directory", "data"),
    ]
    assert disk.content(DATA / name) == _header(1).encode() + b"record"


def test_create_where_a_crash_left_the_same_starts_over() -> None:
    """The leftovers of an incomplete segment are removed."""
    disk = SimulatedDisk([DATA])
    disk.set_content(DATA / "segment-000000000001.new", b"longer than what is to be written" * 10)
    files_on(disk).create(_header(1), [])
    assert disk.content(DATA / segment_name(1)) == _header(1).encode()
    assert len(disk.paths()) == 1


@pytest.mark.parametrize("kind", ["open_directory", "list", "create", "write", "sync", "rename"])
def test_create_when_a_call_fails_leaves_nothing(kind: str) -> None:
    """After an error before the rename there is no segment, and no file remains."""
    disk = SimulatedDisk([DATA])
    disk.fail(kind, 1, errno.ENOSPC)
    with pytest.raises(OSError, match="No space left on device"):
        files_on(disk).create(_header(1), [b"record"])
    assert disk.paths() == []


def test_create_when_it_cannot_clean_up_tells_the_first_error() -> None:
    """The next attempt removes the remaining file."""
    disk = SimulatedDisk([DATA])
    disk.fail("write", 1, errno.ENOSPC)
    disk.fail("unlink", 1, errno.EIO)
    with pytest.raises(OSError, match="No space left on device"):
        files_on(disk).create(_header(1), [b"record"])
    files_on(disk).create(_header(1), [])
    assert disk.paths() == [DATA / segment_name(1)]


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC])
def test_create_when_the_sync_of_the_name_fails_says_so(error_number: int) -> None:
    """Whatever the error, the segment exists, but a crash may still remove it."""
    disk = SimulatedDisk([DATA])
    disk.fail("sync_directory", 1, error_number)
    with pytest.raises(NameUnsyncedError):
        files_on(disk).create(_header(1), [])
    assert disk.paths() == [DATA / segment_name(1)]


def test_create_without_descriptors_meets_that_before_there_is_a_name() -> None:
    """The directory that must be synced in the end is opened first."""
    disk = SimulatedDisk([DATA])
    disk.fail("open_directory", 1, errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        files_on(disk).create(_header(1), [])
    assert disk.calls == [Call("open_directory", "data", is_refused=True)]


def test_find_in_the_operating_systems_files_finds_what_was_created(tmp_path: Path) -> None:
    """The real disk behaves like the simulated one."""
    files = SegmentFiles(OsDisk(), [tmp_path], CHANNEL_ID)
    made = [files.create(_header(1), [b"record"]), files.create(_header(2, 70), [])]
    found = files.find()
    assert [(segment.path, segment.header) for segment in found] == [(segment.path, segment.header) for segment in made]
    assert found[0].file.read(100, 64) == b"record"
