"""The SYNC_POINTs that the log's writer adds behind what it has synced."""

import errno
import threading
from pathlib import Path

import pytest

from millrace_server.wal import group_writer
from millrace_server.wal.format import Kind, RecordHead, SegmentHeader
from millrace_server.wal.records import LogFailedError
from tests.log_histories import DATA, RunningLog, replay
from tests.simulated_disk import SimulatedDisk
from tests.unit.wal.gate import Gate
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("small_logs")

FIRST = DATA / "segment-000000000001.log"
SECOND = DATA / "segment-000000000002.log"
_WAIT_SECONDS = 60.0


def _begin_and_await_mark(log: RunningLog, disk: SimulatedDisk) -> None:
    """Begins the first segment with a large STATE; returns during the sync of the SYNC_POINT after it."""
    begun = Gate(disk, "sync_directory")
    response = log.submit(b"state" * 100, begins_segment=True)
    begun.wait()
    mark = Gate(disk, "sync")
    begun.open()
    mark.wait()
    mark.open()
    response.result()


def _marks(disk: SimulatedDisk, path: Path = FIRST) -> list[int]:
    """Returns the synced positions of a segment's SYNC_POINTs."""
    content = disk.content(path)
    header = SegmentHeader.decode(content)
    position, marks = 64, []
    while head := RecordHead.decode(content[position : position + 32], header.seed(position)):
        if head.kind is Kind.SYNC_POINT:
            assert head.synced_position == position
            marks.append(position)
        position += head.record_length
    return marks


def test_close_after_a_sync_marks_the_end_once(disk: SimulatedDisk) -> None:
    """The last record of a closed log says that everything before it is synced; opening alone adds no more."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        end = log.append(b"record").end
        assert end is not None
    assert _marks(disk) == [end.position]
    with RunningLog(disk):
        pass
    assert _marks(disk) == [end.position]
    with RunningLog(disk) as log:
        log.append(b"another")
    assert len(_marks(disk)) == 2


def test_sync_that_is_followed_by_nothing_is_marked_soon(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some time after the last sync, one SYNC_POINT is written and synced, and then nothing more."""
    monkeypatch.setattr(group_writer, "SYNC_POINT_DELAY_SECONDS", 0.001)
    syncs = 0
    is_marked = threading.Event()

    def count_syncs(kind: str, _name: str) -> None:
        nonlocal syncs
        syncs += kind == "sync"
        if syncs == 2:
            is_marked.set()

    with RunningLog(disk) as log:
        disk.before_call = count_syncs
        end = log.append(b"state", begins_segment=True).end
        assert end is not None
        assert is_marked.wait(_WAIT_SECONDS)
    assert _marks(disk) == [end.position]


def test_close_after_a_mark_syncs_what_came_behind_it(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A SYNC_POINT does not cover later records."""
    monkeypatch.setattr(group_writer, "SYNC_POINT_DELAY_SECONDS", 0.001)
    with RunningLog(disk) as log:
        _begin_and_await_mark(log, disk)
        log.append(b"no haste", needs_sync=False)
    for seed in range(10):
        assert len(replay(disk.crashed(seed))) == 2


def test_close_with_a_new_segment_marks_that_one_too(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mark of the previous segment does not cover this one."""
    monkeypatch.setattr(group_writer, "SYNC_POINT_DELAY_SECONDS", 0.001)
    with RunningLog(disk) as log:
        _begin_and_await_mark(log, disk)
        end = log.append(b"state", begins_segment=True).end
        assert end is not None
    assert _marks(disk, SECOND) == [end.position]


def test_mark_that_finds_no_space_is_harmless(disk: SimulatedDisk) -> None:
    """On a full disk the log closes without a last SYNC_POINT."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        disk.fail("write", 1, errno.ENOSPC)
    assert _marks(disk) == []
    assert len(replay(disk)) == 1


def test_mark_that_fails_fails_the_log(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk error fails the log even if only a SYNC_POINT met it."""
    monkeypatch.setattr(group_writer, "SYNC_POINT_DELAY_SECONDS", 0.001)
    gate = Gate(disk, "sync_directory")
    with RunningLog(disk) as log:
        begun = log.submit(b"state", begins_segment=True)
        gate.wait()
        disk.fail("sync", 1, errno.EIO)
        gate.open()
        begun.result()
        wait_until(lambda: any(call.kind == "sync" and call.is_refused for call in disk.calls))
        with pytest.raises(LogFailedError, match="a sync of the log failed"):
            log.append(needs_sync=False)


def test_mark_that_finds_no_space_refuses_nothing_else(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused SYNC_POINT refuses nothing else, since nothing builds on it."""
    monkeypatch.setattr(group_writer, "SYNC_POINT_DELAY_SECONDS", 0.001)
    with RunningLog(disk) as log:
        begun = Gate(disk, "sync_directory")
        response = log.submit(b"state", begins_segment=True)
        begun.wait()
        disk.fail("write", 1, errno.ENOSPC)
        mark = Gate(disk, "truncate")
        begun.open()
        response.result()
        mark.wait()
        mark.open()
        log.append(b"goes on", resumes=False)
    assert len(replay(disk)) == 2
