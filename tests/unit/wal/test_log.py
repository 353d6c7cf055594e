import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millrace_server.wal.disk import OsDisk, OsFile
from millrace_server.wal.format import Flags, Kind
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.payload_codec import KeyMismatchError, KeyMissingError, PayloadCodec
from millrace_server.wal.records import LogFailedError, LogFullError, LogPosition, Record, Submission
from millrace_server.wal.segments import LogCorruptError, SegmentFiles
from tests.log_histories import CHANNEL_ID, CODECS, DATA, KEYS, TWO_DIRECTORIES, RunningLog, files_on, replay
from tests.simulated_disk import SimulatedDisk

pytestmark = pytest.mark.usefixtures("small_logs")

STATE = (Kind.STATE, [b"state"])


def _put(payload: bytes) -> Record:
    return Kind.PUT, [payload]


def _submit(
    log: WriteAheadLog, *records: Record, needs_sync: bool = True, begins_segment: bool = False
) -> asyncio.Future[Submission]:
    """Submits from the event loop; the future ends with the submission."""
    future: asyncio.Future[Submission] = asyncio.get_running_loop().create_future()

    def done(submission: Submission, error: Exception | None) -> None:
        if error is None:
            future.set_result(submission)
        else:
            future.set_exception(error)

    log.submit(records, needs_sync=needs_sync, begins_segment=begins_segment, done=done)
    return future


@pytest.fixture
def log(tmp_path: Path) -> Iterator[WriteAheadLog]:
    """A started log on the real disk, in two directories."""
    directories = [tmp_path / "left", tmp_path / "right"]
    for directory in directories:
        directory.mkdir()
    log = WriteAheadLog(SegmentFiles(OsDisk(), directories, CHANNEL_ID))
    assert list(log.replay()) == []
    log.start()
    yield log
    log.close()


async def test_submit_from_an_event_loop_tells_where_the_records_lie(log: WriteAheadLog) -> None:
    """Submitted records can be read back."""
    await _submit(log, STATE, begins_segment=True)
    submission = await _submit(log, _put(b"one"), _put(b"two"), _put(b""))
    assert log.read_run(submission.locations) == [b"one", b"two", b""]


async def test_submit_of_large_records_stores_them(log: WriteAheadLog) -> None:
    """A record of many pieces that exceeds the size of a group is stored like others."""
    await _submit(log, STATE, begins_segment=True)
    pieces = [os.urandom(10_000)] * 3000
    submission = await _submit(log, (Kind.PUT, pieces))
    assert log.read_run(submission.locations[:1]) == [b"".join(pieces)]


async def test_submit_of_a_payload_that_is_too_long_is_refused_at_once(
    log: WriteAheadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it is written, and the log continues; several payloads may exceed the limit together."""
    monkeypatch.setattr("millrace_server.wal.submitting.PAYLOAD_BYTES_MAX", 100)
    await _submit(log, STATE, begins_segment=True)
    await _submit(log, _put(bytes(100)), (Kind.PUT, [bytes(60), bytes(40)]))
    with pytest.raises(ValueError, match="a record's payload may have 100 bytes; one has 101"):
        await _submit(log, _put(b"fits"), (Kind.PUT, [bytes(60), bytes(41)]))
    submission = await _submit(log, _put(b"goes on"))
    assert submission.locations[0].position == 64 + 37 + 132 + 132


async def test_submit_of_many_at_once_responds_to_all(log: WriteAheadLog) -> None:
    """Concurrent commits each get their own position, over several segments."""
    await _submit(log, STATE, begins_segment=True)
    responses = []
    for number in range(300):
        if number % 100 == 50:
            responses.append(_submit(log, STATE, begins_segment=True))
        responses.append(_submit(log, _put(b"%d" % number), needs_sync=number % 3 > 0))
    submissions = await asyncio.gather(*responses)
    payloads = log.read_run([submission.locations[0] for submission in submissions])
    assert [payload for payload in payloads or () if payload != b"state"] == [b"%d" % number for number in range(300)]
    assert (log.first_segment_id, log.segment_count) == (1, 4)
    assert {submission.locations[0].segment_id for submission in submissions} == {1, 2, 3, 4}


async def test_submit_of_many_at_once_is_acknowledged_with_one_call_to_the_loop() -> None:
    """However large a group is, the event loop is woken once, and responds come in the order of submissions."""
    log = WriteAheadLog(files_on(SimulatedDisk([DATA])))
    assert list(log.replay()) == []
    loop = asyncio.get_running_loop()
    calls: list[Callable[[], None]] = []

    def deliver(call: Callable[[], None]) -> None:
        calls.append(call)
        loop.call_soon_threadsafe(call)

    log.start(deliver)
    order: list[asyncio.Future[Submission]] = []
    begun = _submit(log, STATE, begins_segment=True)
    await begun
    assert log._writer is not None
    with log._writer._lock:
        responses = [_submit(log, _put(b"%d" % number)) for number in range(20)]
        for response in responses:
            response.add_done_callback(order.append)
    await asyncio.gather(*responses)
    assert order == responses
    assert len(calls) == 2
    log.close()


async def test_submit_whose_response_raises_keeps_no_response_from_others(log: WriteAheadLog) -> None:
    """The event loop reports an error in one callback; all others are called."""
    mistakes: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: mistakes.append(context["exception"]))

    def done(_submission: Submission, _error: Exception | None) -> None:
        raise LookupError("a mistake")

    assert log._writer is not None
    with log._writer._lock:
        begun = _submit(log, STATE, begins_segment=True)
        log.submit([_put(b"one")], needs_sync=True, done=done)
        behind = _submit(log, _put(b"two"))
    await asyncio.gather(begun, behind)
    (mistake,) = mistakes
    assert isinstance(mistake, ExceptionGroup)
    assert mistake.subgroup(LookupError) is not None


def test_close_after_the_event_loop_was_closed_still_writes(tmp_path: Path) -> None:
    """Responses to a closed event loop do not end the writer."""
    files = SegmentFiles(OsDisk(), [tmp_path], CHANNEL_ID)
    unheard = WriteAheadLog(files)
    assert list(unheard.replay()) == []
    unheard.start()
    assert unheard._writer is not None

    async def submit() -> list[asyncio.Future[Submission]]:
        return [_submit(unheard, STATE, begins_segment=True), _submit(unheard, _put(b"record"))]

    with unheard._writer._lock:
        responses = asyncio.run(submit())
    unheard.close()
    assert not any(response.done() for response in responses)
    again = WriteAheadLog(files)
    assert [record.kind for record in again.replay()] == [Kind.STATE, Kind.PUT, Kind.SYNC_POINT]
    again.close()


async def test_submit_when_the_disk_refuses_raises(tmp_path: Path) -> None:
    """The waiting caller gets the error."""
    disk = SimulatedDisk([DATA])
    log = WriteAheadLog(files_on(disk))
    assert list(log.replay()) == []
    log.start()
    disk.fail("write", 1, errno.ENOSPC)
    with pytest.raises(LogFullError, match="a new segment could not be created: No space left"):
        await _submit(log, STATE, begins_segment=True)
    log.resume()
    disk.fail("write", 1, errno.EIO)
    with pytest.raises(LogFailedError, match="a new segment could not be created: Input/output error"):
        await _submit(log, STATE, begins_segment=True)
    log.close()


async def test_replay_of_a_closed_log_tells_all_records_with_their_places(log: WriteAheadLog) -> None:
    """Kinds, positions and payloads are returned in the order of submission."""
    submissions = [
        await _submit(log, STATE, begins_segment=True),
        await _submit(log, _put(b"one"), (Kind.COMMIT, [b"co", b"mmit"])),
        await _submit(log, STATE, begins_segment=True),
        await _submit(log, _put(b"two"), needs_sync=False),
    ]
    log.close()
    again = WriteAheadLog(log._files)
    found = [(record.kind, record.flags, record.location, bytes(record.payload)) for record in again.replay()]
    locations = [location for submission in submissions for location in submission.locations]
    assert [location for _kind, _flags, location, _payload in found[:-1]] == locations
    assert [(kind, flags, payload) for kind, flags, _location, payload in found] == [
        (Kind.STATE, Flags(0), b"state"),
        (Kind.PUT, Flags(0), b"one"),
        (Kind.COMMIT, Flags(0), b"commit"),
        (Kind.STATE, Flags(0), b"state"),
        (Kind.PUT, Flags(0), b"two"),
        (Kind.SYNC_POINT, Flags(0), b""),
    ]
    assert again.byte_count() == sum(segment.path.stat().st_size for segment in again._files.find())
    assert (again.first_segment_id, again.segment_count) == (1, 2)
    *_others, last = found
    assert again.end == LogPosition(2, last[2].position + 32, 7)
    again.close()


def test_replay_that_does_not_settle_changes_nothing(tmp_path: Path) -> None:
    """A log can be read without write access; a torn tail stays."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as running:
        running.append(b"state", begins_segment=True)
        end = running.append(b"record").end
        killed = disk.copy()
    path = tmp_path / "segment-000000000001.log"
    path.write_bytes(killed.content(DATA / path.name) + b"torn")
    before = path.read_bytes()

    class ReadOnlyDisk(OsDisk):
        def open(self, path: Path, *, writable: bool = False) -> OsFile:
            assert not writable
            return super().open(path)

    log = WriteAheadLog(SegmentFiles(ReadOnlyDisk(), [tmp_path], CHANNEL_ID))
    assert [bytes(record.payload) for record in log.replay(read_only=True)] == [b"state", b"record"]
    assert log.end == end
    with pytest.raises(AssertionError, match="replayed to its end before it is started"):
        log.start()
    log.close()
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_replay_after_one_that_failed_starts_over() -> None:
    """After a replay that failed, the same log can be replayed from another start."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as running:
        running.append(b"state", begins_segment=True)
        end = running.append(b"record").end
    log = WriteAheadLog(files_on(disk))
    assert len(list(log.replay())) == 3
    with pytest.raises(LogCorruptError, match="segment 9, where replay begins, is missing"):
        next(log.replay(LogPosition(9, 64, 9)))
    assert log.end == LogPosition(0, 0, 1)
    with pytest.raises(AssertionError, match="replayed to its end before it is started"):
        log.start()
    assert [record.kind for record in log.replay(end)] == [Kind.SYNC_POINT]
    log.start()
    log.close()


def test_start_of_a_log_that_was_not_replayed_to_its_end_is_a_mistake() -> None:
    """Records may be written only after all existing ones were replayed."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as running:
        running.append(b"state", begins_segment=True)
    log = WriteAheadLog(files_on(disk))
    replaying = log.replay()
    next(replaying)
    with pytest.raises(AssertionError, match="replayed to its end before it is started"):
        log.start()
    assert [record.kind for record in replaying] == [Kind.SYNC_POINT]
    log.start()
    with pytest.raises(AssertionError, match="that was started is not replayed"):
        next(log.replay())
    log.close()


def test_replay_of_a_log_that_many_codecs_encoded_decodes_all() -> None:
    """Compression and keys may change at each start; older payloads stay readable."""
    disk = SimulatedDisk([DATA])
    for number, codec in enumerate(CODECS):
        with RunningLog(disk, codec=codec) as log:
            log.append(b"state" * 50, b"%d" % number * 100, begins_segment=not number)
    log_again = WriteAheadLog(files_on(disk), PayloadCodec(keys=KEYS))
    found = [
        (record.flags, record.location, bytes(record.payload))
        for record in log_again.replay()
        if record.kind is not Kind.SYNC_POINT
    ]
    assert [flags for flags, _location, _payload in found] == [
        flags
        for flags in (Flags(0), Flags.COMPRESSED, Flags.ENCRYPTED, Flags.COMPRESSED | Flags.ENCRYPTED)
        for _ in range(2)
    ]
    assert [payload for _flags, _location, payload in found] == [
        payload for number in range(4) for payload in (b"state" * 50, b"%d" % number * 100)
    ]
    assert log_again.read_run([location for _flags, location, _payload in found]) == [found[2] for found in found]
    log_again.close()


def test_replay_without_a_key_says_which_and_changes_nothing() -> None:
    """A missing key ends the opening before anything is written, even if only a PUT needs it."""
    disk = SimulatedDisk([DATA])
    for number, codec in enumerate(CODECS):
        with RunningLog(disk, codec=codec) as log:
            log.append(b"record" * 100, begins_segment=not number)
    disk.set_content(DATA / "segment-000000000001.log", disk.content(DATA / "segment-000000000001.log") + b"torn")
    before = disk.fingerprint()
    log_again = WriteAheadLog(files_on(disk), PayloadCodec(keys={"new": KEYS["new"]}))
    with pytest.raises(KeyMissingError, match="the encryption key 'old' is needed, and was not given") as raised:
        list(log_again.replay())
    assert raised.value.key_id == "old"
    assert disk.fingerprint() == before
    log_again.close()


def test_replay_with_another_key_of_the_same_name_says_so() -> None:
    """A wrong key is detected, and nothing is changed."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk, codec=CODECS[-1]) as log:
        log.append(b"state", begins_segment=True)
    before = disk.fingerprint()
    log_again = WriteAheadLog(files_on(disk), PayloadCodec(keys={"new": bytes(32)}))
    with pytest.raises(KeyMismatchError, match="the encryption key 'new' is needed, and the one given is most likely"):
        [record.payload for record in log_again.replay()]
    assert disk.fingerprint() == before
    log_again.close()


def test_replay_from_a_position_tells_what_was_submitted_behind_it() -> None:
    """The position in a checkpoint is the end of its submission."""
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
    """The log is read and settled without further space."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        log.append(b"record")
        killed = disk.copy()
    killed.capacity_bytes = 0
    assert len(replay(killed)) == 2


def test_replay_after_a_failed_sync_writes_again_what_the_disk_may_not_have() -> None:
    """After a failed sync the kernel shows data that it will not write, so replay writes what it found again."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        disk.fail("sync", 1, errno.EIO)
        log.submit(b"doubtful" * 1000).exception()
    found = replay(disk)
    assert len(found) == 2
    for seed in range(10):
        assert replay(disk.crashed(seed)) == found


def test_replay_after_a_kill_syncs_names_that_were_not_synced() -> None:
    """A segment whose name was not synced could be lost with later commits."""
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
    """Their names are removed durably, one after the other, and the remaining segments are reported."""
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
    """Segments that could not be removed are removed by the next call, before any later ones."""
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
    """The current segment is never removed."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        with pytest.raises(AssertionError, match="the segment that is written to stays"):
            log.log.remove_before(2)
        log.append(b"goes on")


async def test_read_while_its_segment_is_removed_ends_well(log: WriteAheadLog) -> None:
    """A read that began before the removal keeps its file open."""
    begun = await _submit(log, STATE, _put(b"record"), begins_segment=True)
    await _submit(log, STATE, begins_segment=True)
    segment = log._segments[1]
    assert log.remove_before(2) == 1
    assert segment.file.read(6, begun.locations[1].position + 32) == b"record"
    with pytest.raises(LogCorruptError, match="segment 1, which holds a record to be read, is missing"):
        log.read_run(begun.locations[1:2])


def test_close_of_a_log_that_was_not_started_adds_nothing() -> None:
    """A log that was only read does not grow, and may be read again."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
    for _ in range(2):
        only_read = WriteAheadLog(files_on(disk))
        assert [record.kind for record in only_read.replay()] == [Kind.STATE, Kind.SYNC_POINT]
        only_read.close()
    WriteAheadLog(files_on(disk)).close()
