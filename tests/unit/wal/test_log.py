import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace_server.wal.disk import OsDisk
from millrace_server.wal.format import Flags, Kind
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.segments import SegmentFiles
from millrace_server.wal.writer import LogFailedError, LogFullError, LogPosition, Submission
from tests.log_histories import CHANNEL_ID, DATA, TWO_DIRECTORIES, RunningLog, files_on, replay
from tests.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("small_logs")

_PLAIN = Flags(0)
STATE = (Kind.STATE, _PLAIN, [b"state"])


def _put(payload: bytes, flags: Flags = _PLAIN) -> tuple[Kind, Flags, list[bytes]]:
    return Kind.PUT, flags, [payload]


@pytest.fixture
def log(tmp_path: Path) -> Iterator[WriteAheadLog]:
    """A started log in the operating system's files, in two directories."""
    directories = [tmp_path / "left", tmp_path / "right"]
    for directory in directories:
        directory.mkdir()
    log = WriteAheadLog(SegmentFiles(OsDisk(), directories, CHANNEL_ID))
    assert list(log.replay()) == []
    log.start()
    yield log
    log.close()


async def test_submit_from_an_event_loop_tells_where_the_records_lie(log: WriteAheadLog) -> None:
    """What was submitted can be read back, with the flags that it had."""
    await log.submit([STATE], needs_sync=True, begins_segment=True)
    records = [_put(b"one"), _put(b"two", Flags.COMPRESSED), _put(b"", Flags.ENCRYPTED)]
    submission = await log.submit(records, needs_sync=True)
    read = [log.read(location) for location in submission.locations]
    assert read == [(Flags(0), b"one"), (Flags.COMPRESSED, b"two"), (Flags.ENCRYPTED, b"")]


async def test_submit_of_large_records_stores_them(log: WriteAheadLog) -> None:
    """A record of many pieces and of more than a group's size is one like others."""
    await log.submit([STATE], needs_sync=True, begins_segment=True)
    pieces = [os.urandom(10_000)] * 3000
    submission = await log.submit([(Kind.PUT, Flags(0), pieces)], needs_sync=True)
    assert log.read(submission.locations[0]) == (Flags(0), b"".join(pieces))


async def test_submit_of_many_at_once_answers_all(log: WriteAheadLog) -> None:
    """Commits that wait at the same time are answered each with its own place, over several segments."""
    await log.submit([STATE], needs_sync=True, begins_segment=True)
    answers = []
    for number in range(300):
        if number % 100 == 50:
            answers.append(log.submit([STATE], needs_sync=True, begins_segment=True))
        answers.append(log.submit([_put(b"%d" % number)], needs_sync=number % 3 > 0))
    submissions = await asyncio.gather(*answers)
    payloads = [log.read(submission.locations[0])[1] for submission in submissions]
    assert [payload for payload in payloads if payload != b"state"] == [b"%d" % number for number in range(300)]
    assert log.first_segment_id == 1
    assert {submission.locations[0].segment_id for submission in submissions} == {1, 2, 3, 4}


async def test_submit_that_is_cancelled_goes_in_all_the_same(log: WriteAheadLog) -> None:
    """Who does not wait any more is not told; the log and the others go on."""
    begun = log.submit([STATE], needs_sync=True, begins_segment=True)
    begun.cancel()
    submission = await log.submit([_put(b"record")], needs_sync=True)
    assert log.read(submission.locations[0])[1] == b"record"


def test_close_after_the_event_loop_was_closed_still_writes(tmp_path: Path) -> None:
    """Answers that nobody can hear do not end the writer."""
    files = SegmentFiles(OsDisk(), [tmp_path], CHANNEL_ID)
    unheard = WriteAheadLog(files)
    assert list(unheard.replay()) == []
    unheard.start()
    assert unheard._writer is not None

    async def submit() -> list[asyncio.Future[Submission]]:
        begun = unheard.submit([STATE], needs_sync=True, begins_segment=True)
        return [begun, unheard.submit([_put(b"record")], needs_sync=True)]

    with unheard._writer._condition:
        answers = asyncio.run(submit())
    unheard.close()
    assert not any(answer.done() for answer in answers)
    again = WriteAheadLog(files)
    assert [record.kind for record in again.replay()] == [Kind.STATE, Kind.PUT, Kind.MARK]
    again.close()


async def test_submit_when_the_disk_refuses_raises(tmp_path: Path) -> None:
    """The error comes to whoever waits."""
    disk = SimulatedDisk([DATA])
    log = WriteAheadLog(files_on(disk))
    assert list(log.replay()) == []
    log.start()
    disk.fail("write", 1, errno.ENOSPC)
    with pytest.raises(LogFullError, match="a new segment could not be made: No space left"):
        await log.submit([STATE], needs_sync=True, begins_segment=True)
    disk.fail("write", 1, errno.EIO)
    with pytest.raises(LogFailedError, match="a new segment could not be made: Input/output error"):
        await log.submit([STATE], needs_sync=True, begins_segment=True)
    log.close()


async def test_replay_of_a_closed_log_tells_all_records_with_their_places(log: WriteAheadLog) -> None:
    """Kinds, flags, places and payloads come back, in the order in which they were submitted."""
    submissions = [
        await log.submit([STATE], needs_sync=True, begins_segment=True),
        await log.submit([_put(b"one"), (Kind.COMMIT, Flags.COMPRESSED, [b"co", b"mmit"])], needs_sync=True),
        await log.submit([STATE], needs_sync=True, begins_segment=True),
        await log.submit([_put(b"two")], needs_sync=False),
    ]
    log.close()
    again = WriteAheadLog(log._files)
    found = [(record.kind, record.flags, record.location, bytes(record.payload)) for record in again.replay()]
    locations = [location for submission in submissions for location in submission.locations]
    assert [location for _kind, _flags, location, _payload in found[:-1]] == locations
    assert [(kind, flags, payload) for kind, flags, _location, payload in found] == [
        (Kind.STATE, Flags(0), b"state"),
        (Kind.PUT, Flags(0), b"one"),
        (Kind.COMMIT, Flags.COMPRESSED, b"commit"),
        (Kind.STATE, Flags(0), b"state"),
        (Kind.PUT, Flags(0), b"two"),
        (Kind.MARK, Flags(0), b""),
    ]
    assert again.byte_count() == sum(segment.path.stat().st_size for segment in again._files.find())
    again.close()


def test_replay_from_a_position_tells_what_was_submitted_behind_it() -> None:
    """A checkpoint's position is where its submission ended."""
    disk = SimulatedDisk(TWO_DIRECTORIES)
    ends: list[LogPosition] = []
    with RunningLog(disk, TWO_DIRECTORIES) as log:
        for number in range(6):
            end = log.append(b"%d" % number, begins_segment=number % 2 == 0).end
            assert end is not None
            ends.append(end)
    for number, end in enumerate(ends):
        found = [payload for _kind, payload in replay(disk, TWO_DIRECTORIES, end)]
        assert found == [b"%d" % later for later in range(number + 1, 6)]


def test_replay_on_a_full_disk_opens_the_log() -> None:
    """What is there can be read and settled without room for more."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        log.append(b"record")
        killed = disk.copy()
    killed.capacity_bytes = 0
    assert len(replay(killed)) == 2


def test_replay_after_a_failed_sync_writes_again_what_the_disk_may_not_have() -> None:
    """The kernel shows what it could not write, and owes it no more; what replay found is on the disk afterwards."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        disk.fail("sync", 1, errno.EIO)
        log.submit(b"doubtful" * 1000).exception()
    found = replay(disk)
    assert len(found) == 2
    for seed in range(10):
        assert replay(disk.crashed(seed)) == found


def test_replay_after_a_kill_syncs_names_that_nobody_synced() -> None:
    """A segment whose name was not synced yet would take later commits with it."""
    disk = SimulatedDisk([DATA])
    killed: list[SimulatedDisk] = []
    with RunningLog(disk) as log:
        disk.before_call = lambda kind, _name: killed.append(disk.copy()) if kind == "sync_directory" else None
        log.append(b"state", begins_segment=True)
    with RunningLog(killed[0]) as log:
        log.append(b"record")
        crashed = [killed[0].crashed(seed) for seed in range(10)]
    assert all(len(replay(disk)) == 2 for disk in crashed)


def test_remove_before_a_segment_removes_those_in_front_of_it() -> None:
    """Their names are gone for good, one after the other; what remains is told."""
    disk = SimulatedDisk(TWO_DIRECTORIES)
    with RunningLog(disk, TWO_DIRECTORIES) as log:
        for number in range(4):
            log.append(b"state %d" % number, begins_segment=True)
        byte_count = log.log.byte_count()
        assert log.log.remove_before(1) == 0
        before = len(disk.calls)
        assert log.log.remove_before(3) == 2
        assert [(call.kind, call.name) for call in disk.calls[before:]] == [
            ("unlink", "segment-000000000001.log"),
            ("open_directory", "right"),
            ("sync_directory", "right"),
            ("unlink", "segment-000000000002.log"),
            ("open_directory", "left"),
            ("sync_directory", "left"),
        ]
        assert log.log.first_segment_id == 3
        assert log.log.byte_count() < byte_count
        log.append(b"goes on")
    assert [payload for _kind, payload in replay(disk, TWO_DIRECTORIES)] == [b"state 2", b"state 3", b"goes on"]


@pytest.mark.parametrize("kind", ["unlink", "open_directory", "sync_directory"])
def test_remove_before_when_a_call_fails_leaves_no_gap(kind: str) -> None:
    """What could not be removed is removed by the next call, and nothing behind it before."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        for number in range(4):
            log.append(b"state %d" % number, begins_segment=True)
        disk.fail(kind, 1, errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            log.log.remove_before(4)
        assert log.log.first_segment_id == 1
        replay(disk.copy())
        assert log.log.remove_before(4) == 3
    assert [payload for _kind, payload in replay(disk)] == [b"state 3"]


def test_remove_before_a_segment_that_is_yet_to_come_is_a_mistake() -> None:
    """The segment that is written to is never removed."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        with pytest.raises(AssertionError, match="the segment that is written to stays"):
            log.log.remove_before(2)
        log.append(b"goes on")


async def test_read_while_its_segment_is_removed_ends_well(log: WriteAheadLog) -> None:
    """A read that began before the removal has its file still."""
    begun = await log.submit([STATE, _put(b"record")], needs_sync=True, begins_segment=True)
    await log.submit([STATE], needs_sync=True, begins_segment=True)
    segment = log._segments[1]
    assert log.remove_before(2) == 1
    assert segment.file.read(6, begun.locations[1].position + 32) == b"record"


def test_close_of_a_log_that_was_not_started_adds_nothing() -> None:
    """A log that was only read is no longer than before, and may be read again."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
    for _ in range(2):
        only_read = WriteAheadLog(files_on(disk))
        assert [record.kind for record in only_read.replay()] == [Kind.STATE, Kind.MARK]
        only_read.close()
    WriteAheadLog(files_on(disk)).close()
