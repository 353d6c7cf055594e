import errno
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from millrace_server.histograms import Histograms
from millrace_server.wal import group_writer, writer
from millrace_server.wal.format import Kind
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import LogFailedError, LogFullError, LogPosition, Submission
from millrace_server.wal.segments import Segment
from millrace_server.wal.writer import LogWriter
from millrace_server.wal.writer_threads import WriterThreads
from tests.log_histories import DATA, RunningLog, files_on, replay
from tests.simulated_disk import SimulatedDisk
from tests.unit.wal.gate import Gate

pytestmark = pytest.mark.usefixtures("small_logs")

FIRST = DATA / "segment-000000000001.log"
SECOND = DATA / "segment-000000000002.log"
_WAIT_SECONDS = 60.0


def _count(disk: SimulatedDisk, kind: str) -> int:
    return sum(call.kind == kind for call in disk.calls)


def test_submit_while_a_sync_lasts_gathers_a_group_that_shares_the_next(disk: SimulatedDisk) -> None:
    """All commits that wait for a sync need only one more write and one more sync."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        gate = Gate(disk, "sync")
        first = log.submit(b"first")
        gate.wait()
        responses = [log.submit(b"waits %d" % number) for number in range(20)]
        assert not any(response.done() for response in [first, *responses])
        writes, syncs = _count(disk, "write"), _count(disk, "sync")
        gate.open()
        for response in responses:
            response.result()
        # One sync for the first, and one for the twenty.
        assert (_count(disk, "write"), _count(disk, "sync")) == (writes + 1, syncs + 2)
    assert len(replay(disk)) == 22


def test_submit_of_a_lone_record_does_not_wait(disk: SimulatedDisk) -> None:
    """A single commit takes one write and one sync, without a delay."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        log.append(b"reserves")
        before = len(disk.calls)
        log.append(b"lone")
        assert [call.kind for call in disk.calls[before:]] == ["write", "sync"]


def test_submit_behind_a_lone_record_does_not_wait(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single acknowledged caller may never submit again."""
    monkeypatch.setattr(group_writer, "COMMIT_DELAY_SECONDS", _WAIT_SECONDS)
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        gate = Gate(disk, "sync")
        lone = log.submit(b"lone")
        gate.wait()
        following = log.submit(b"following")
        gate.open()
        lone.result()
        started = time.monotonic()
        following.result()
        assert time.monotonic() - started < _WAIT_SECONDS / 2


def _append_two_together(log: RunningLog) -> None:
    with log.together():
        responses = [log.submit(b"one"), log.submit(b"other")]
    for response in responses:
        response.result()


def test_submit_after_several_were_acknowledged_waits_for_as_many(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two callers whose commits shared a sync submit again one after the other, and share the next."""
    monkeypatch.setattr(group_writer, "COMMIT_DELAY_SECONDS", _WAIT_SECONDS)
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        _append_two_together(log)
        writes, syncs = _count(disk, "write"), _count(disk, "sync")
        first = log.submit(b"one again")
        assert not first.done()
        log.submit(b"other again").result()
        assert first.done()
        assert (_count(disk, "write"), _count(disk, "sync")) == (writes + 1, syncs + 1)


def test_submit_before_the_thread_goes_on_from_a_response_is_counted_once(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that submits again at once is counted only once."""
    monkeypatch.setattr(group_writer, "COMMIT_DELAY_SECONDS", _WAIT_SECONDS)
    log = WriteAheadLog(files_on(disk))
    assert list(log.replay()) == []
    done = threading.Event()

    def come_again(_submission: Submission, _error: Exception | None) -> None:
        log.submit([(Kind.PUT, [b"again"])], needs_sync=True, done=lambda _submission, _error: done.set())

    def complete_at_once(complete: Callable[[], None]) -> None:
        complete()

    log.start(complete_at_once)
    started = time.monotonic()
    log.submit([(Kind.STATE, [b"state"])], needs_sync=True, begins_segment=True, done=come_again)
    assert done.wait(_WAIT_SECONDS)
    assert time.monotonic() - started < _WAIT_SECONDS / 2
    log.close()


@pytest.mark.parametrize(("seconds", "bytes_max"), [(0.001, 1000), (_WAIT_SECONDS, 10)])
def test_submit_after_several_waits_neither_long_nor_where_they_wrote_much(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch, seconds: float, bytes_max: int
) -> None:
    """The delay ends for callers that do not submit again, and there is none after a large group."""
    monkeypatch.setattr(group_writer, "COMMIT_DELAY_SECONDS", seconds)
    monkeypatch.setattr(group_writer, "COMMIT_DELAY_BYTES_MAX", bytes_max)
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        _append_two_together(log)
        started = time.monotonic()
        log.append(b"alone now")
        assert time.monotonic() - started < _WAIT_SECONDS / 2


def test_close_while_others_are_waited_for_writes_what_is_there(
    disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A closing log waits for no more submissions."""
    monkeypatch.setattr(group_writer, "COMMIT_DELAY_SECONDS", _WAIT_SECONDS)
    started = time.monotonic()
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        _append_two_together(log)
        log.submit(b"one again")
    assert time.monotonic() - started < _WAIT_SECONDS / 2
    assert replay(disk)[-1][1] == b"one again"


def test_submit_without_sync_is_acknowledged_before_any(disk: SimulatedDisk) -> None:
    """A submission without sync causes none; the next sync covers it."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        syncs = _count(disk, "sync")
        for _ in range(3):
            log.append(b"no haste", needs_sync=False)
        assert _count(disk, "sync") == syncs
        log.append(b"now")
        assert _count(disk, "sync") == syncs + 1
        cut = disk.crashed(1)
    assert len(replay(cut)) == 5


def test_submit_beside_others_that_need_no_sync_is_synced(disk: SimulatedDisk) -> None:
    """A submission with sync gets one, wherever it is in its group."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        for _ in range(2):
            with log.together():
                responses = [log.submit(b"record", needs_sync=needs_sync) for needs_sync in (False, True, False)]
            for response in responses:
                response.result()
            account = log.account_now()
            for seed in range(10):
                account.check(replay(disk.crashed(seed)))


def test_submit_of_no_records_is_a_barrier(disk: SimulatedDisk) -> None:
    """It writes nothing, has the log's end, and everything before it is durable."""
    with RunningLog(disk) as log:
        begun = log.append(b"state", begins_segment=True)
        unsynced = log.append(b"no haste", needs_sync=False)
        writes = _count(disk, "write")
        barrier = log.append()
        assert _count(disk, "write") == writes
        assert barrier.end == unsynced.end != begun.end
        assert barrier.locations == []
        cut = disk.crashed(1)
    assert len(replay(cut)) == 2


def test_submit_that_begins_a_segment_ends_the_group_before_it(disk: SimulatedDisk) -> None:
    """Earlier submissions stay in the old segment, later ones go to the new one."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        with log.together():
            responses = [log.submit(b"%d" % number, begins_segment=number in {2, 4}) for number in range(6)]
        assert [response.result().locations[0].segment_id for response in responses] == [1, 1, 2, 2, 3, 3]
    assert [payload for _kind, payload in replay(disk)] == [b"state", b"0", b"1", b"2", b"3", b"4", b"5"]


def test_submit_of_much_at_once_is_written_in_groups(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group has a limit; a larger submission is a group of its own."""
    monkeypatch.setattr(writer, "GROUP_BYTES_MAX", 1000)
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        before = len(disk.calls)
        with log.together():
            responses = [log.submit(bytes(length)) for length in (400, 400, 400, 5000, 10)]
        for response in responses:
            response.result()
        sizes = [call.kind for call in disk.calls[before:] if call.kind in {"write", "sync"}]
        assert sizes == ["write", "sync"] * 4


def test_submit_from_many_threads_gives_each_its_own_place(disk: SimulatedDisk) -> None:
    """Records never mix, and all are found."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        with ThreadPoolExecutor(8) as threads:
            submissions = list(threads.map(lambda number: log.append(b"%d" % number, b"x" * number), range(200)))
        locations = [location for submission in submissions for location in submission.locations]
        assert len(set(locations)) == 400
        for number, submission in enumerate(submissions):
            assert log.log.read_run(submission.locations) == [b"%d" % number, b"x" * number]
    assert len(replay(disk)) == 401


def test_submit_ahead_of_the_reserve_extends_it(disk: SimulatedDisk) -> None:
    """Space is reserved ahead of the writes, in large steps."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        for _ in range(10):
            log.append(bytes(300))
        assert _count(disk, "reserve") == 3
        assert len(disk.content(FIRST)) >= 10 * 332 + 64
        log.append(b"state", begins_segment=True)
        log.append(b"first to be reserved for")
        assert _count(disk, "reserve") == 4


def _fill(disk: SimulatedDisk) -> None:
    """Fills a disk to the last byte, as other programs may do."""
    disk.capacity_bytes -= disk.free_bytes(DATA)


def _submit_take(log: RunningLog) -> "Future[Exception | None]":
    response: Future[Exception | None] = Future()
    log.log.resume()
    log.log.submit(
        [(Kind.TAKE, [bytes(18)])],
        needs_sync=True,
        begins_segment=False,
        done=lambda _, error: response.set_result(error),
    )
    return response


@pytest.mark.parametrize("has_puts_before", [True, False])
def test_submit_without_puts_to_a_full_disk_uses_what_puts_have_reserved(
    disk: SimulatedDisk, *, has_puts_before: bool
) -> None:
    """Takes, which free space, are written; puts are refused until they can leave the reserve again."""
    with RunningLog(disk) as log:
        log.append(b"state", b"put", begins_segment=True)
        if has_puts_before:
            log.append(b"put")
        _fill(disk)
        assert all(_submit_take(log).result(_WAIT_SECONDS) is None for _ in range(2))
        with pytest.raises(LogFullError, match="space could not be allocated for the log: No space left on device"):
            log.append(bytes(1200))
        assert isinstance([_submit_take(log).result(_WAIT_SECONDS) for _ in range(50)][-1], LogFullError), (
            "the reserve has an end"
        )
        disk.capacity_bytes += 2000
        log.append(bytes(1200))
        _fill(disk)
        assert _submit_take(log).result(_WAIT_SECONDS) is None


def test_submit_without_puts_after_a_new_segment_was_refused_finds_the_reserve(disk: SimulatedDisk) -> None:
    """The full segment is truncated before that, and is used further."""
    with RunningLog(disk) as log:
        log.append(b"state", b"put", begins_segment=True)
        disk.fail("create", 1, errno.ENOSPC)
        with pytest.raises(LogFullError):
            log.append(b"state", b"put", begins_segment=True)
        _fill(disk)
        assert _submit_take(log).result(_WAIT_SECONDS) is None


def test_submit_of_a_segment_without_space_for_the_reserve_is_refused(disk: SimulatedDisk) -> None:
    """Otherwise the first events of a channel could not be taken from a disk that is full."""
    with RunningLog(disk) as log:
        disk.capacity_bytes = 150
        with pytest.raises(LogFullError):
            log.append(b"state", b"put", begins_segment=True)
        assert disk.paths() == []
        log.append(b"state", begins_segment=True)


def test_submit_on_a_disk_that_cannot_reserve_grows_the_file(disk: SimulatedDisk) -> None:
    """Reserved space is an optimization only."""
    disk.fail("reserve", 1, errno.EOPNOTSUPP, count=100)
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        for _ in range(3):
            log.append(b"record")
        cut = disk.crashed(1)
    assert len(replay(cut)) == 4


def test_submit_after_close_is_refused(disk: SimulatedDisk) -> None:
    """A submission to a closed log gets an error."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
    with pytest.raises(LogFailedError, match="the log is closed"):
        log.append(b"too late")


def test_close_with_submissions_waiting_writes_them(disk: SimulatedDisk) -> None:
    """Closing a log responds to everything submitted before."""
    log = RunningLog(disk)
    log.append(b"state", begins_segment=True)
    with log.together():
        responses = [log.submit(b"%d" % number, begins_segment=number == 5) for number in range(10)]
    log.log.close()
    assert all(response.done() and response.exception() is None for response in responses)
    assert len(replay(disk.crashed(1))) == 11


def test_close_with_records_that_were_not_synced_syncs_them(disk: SimulatedDisk) -> None:
    """After the close, a power cut loses nothing."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        log.append(b"synced")
        log.append(b"no haste", needs_sync=False)
    assert len(replay(disk.crashed(1))) == 3


def test_submit_of_first_records_that_begin_no_segment_fails_the_log(disk: SimulatedDisk) -> None:
    """An error in a caller's payload is returned, and the writer's thread continues."""
    with RunningLog(disk) as log:
        for _ in range(2):
            with pytest.raises(LogFailedError, match="the log failed: AssertionError"):
                log.append(b"no segment yet")


def test_submit_of_a_segment_without_records_fails_the_log(disk: SimulatedDisk) -> None:
    """A segment without a first record would look damaged."""
    response: Future[Exception | None] = Future()
    with RunningLog(disk) as log:
        log.log.submit(
            [], needs_sync=True, begins_segment=True, done=lambda _submission, error: response.set_result(error)
        )
        assert isinstance(response.result(_WAIT_SECONDS), LogFailedError)
    assert disk.paths() == []


def test_submit_to_a_failed_log_raises_a_new_error_each_time(disk: SimulatedDisk) -> None:
    """An exception that is raised repeatedly would keep growing its traceback."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        disk.fail("sync", 1, errno.EIO)
        errors = [log.submit(b"record").exception() for _ in range(3)]
        assert len(set(map(id, errors))) == 3
        assert len(set(map(str, errors))) == 1


def _full_once(disk: SimulatedDisk, log: RunningLog, *, waiting: int = 0) -> list["Future[Submission]"]:
    """Makes a write find no space; returns the results of that submission and of later ones."""
    gate = Gate(disk, "write")
    responses = [log.submit(b"refused" * 10)]
    gate.wait()
    disk.fail("write", 1, errno.ENOSPC)
    responses += [log.submit(b"waits %d" % number) for number in range(waiting)]
    gate.open()
    for response in responses:
        response.exception()
    return responses


def test_submit_behind_a_refused_one_is_refused_until_the_log_is_resumed(disk: SimulatedDisk) -> None:
    """Submissions that may depend on missing records are refused, even if there is space for them."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        responses = _full_once(disk, log, waiting=3)
        responses += [log.submit(b"built on it", resumes=False), log.submit(needs_sync=True, resumes=False)]
        responses.append(log.submit(b"state", begins_segment=True, resumes=False))
        errors = [response.exception() for response in responses]
        assert all(isinstance(error, LogFullError) for error in errors)
        assert {str(error) for error in errors} == {"a write to the log failed: No space left on device"}
        # One error raised repeatedly would have a growing traceback.
        assert len(set(map(id, errors[1:]))) > 1
        log.append(b"goes on")
    assert [payload for _kind, payload in replay(disk)] == [b"state", b"goes on"]


def test_submit_once_resumed_goes_in_though_older_ones_wait_to_be_refused(disk: SimulatedDisk) -> None:
    """A generation is never written together with an older one that may be refused."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        _full_once(disk, log)
        with log.together():
            old = [log.submit(b"built on it %d" % number, resumes=False) for number in range(3)]
            new = [log.submit(b"new %d" % number) for number in range(3)]
        assert all(isinstance(response.exception(), LogFullError) for response in old)
        assert all(response.exception() is None for response in new)
        # Another refusal belongs to the later generation.
        responses = _full_once(disk, log, waiting=1)
        assert all(isinstance(response.exception(), LogFullError) for response in responses)
        log.append(b"goes on")
    assert [payload for _kind, payload in replay(disk)] == [b"state", b"new 0", b"new 1", b"new 2", b"goes on"]


def test_submit_of_two_generations_at_once_refuses_the_first_alone(disk: SimulatedDisk) -> None:
    """If the older of two generations finds no space, the later one is written all the same."""
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        with log.together():
            old = log.submit(b"old")
            log.log.resume()
            new = log.submit(b"new")
            disk.fail("write", 1, errno.ENOSPC)
        assert isinstance(old.exception(), LogFullError)
        assert new.exception() is None
    assert [payload for _kind, payload in replay(disk)] == [b"state", b"new"]


def test_submit_to_a_log_that_grows_reserves_more_at_once(disk: SimulatedDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small segment preallocates little, a large one as much as it has, up to a limit."""
    monkeypatch.setattr(writer, "PREALLOCATE_BYTES_MIN", 1000)
    monkeypatch.setattr(writer, "PREALLOCATE_BYTES_MAX", 5000)
    sizes = []
    with RunningLog(disk) as log:
        monkeypatch.setattr(writer, "RESERVE_BYTES", 0)
        log.append(b"state", begins_segment=True)
        for _ in range(40):
            log.append(bytes(468))
            sizes.append(len(disk.content(FIRST)))
    assert sorted(set(sizes)) == [1601, 4202, 9202, 14601, 20101]


def test_start_behind_records_goes_on_with_their_numbers(disk: SimulatedDisk) -> None:
    """A writer needs only the end of the log."""
    segments: dict[int, Segment] = {}
    responses: list[tuple[LogPosition | None, Exception | None]] = []

    def respond(group: Sequence[Submission], error: Exception | None) -> None:
        responses.extend((submission.end, error) for submission in group)

    log = LogWriter(files_on(disk), segments, LogPosition(0, 0, 1), PayloadCodec(), respond)
    log.count_in(Histograms())
    log.start(WriterThreads(), ends_with_sync_point=False)
    log.submit(Submission([(Kind.STATE, [])], True, True, 0, _ignore))
    log.submit(Submission([(Kind.PUT, [b"a", b"b"])], True, False, 0, _ignore))
    log.close()
    assert responses == [(LogPosition(1, 96, 2), None), (LogPosition(1, 130, 3), None)]
    assert [segment.header.first_lsn for segment in segments.values()] == [1]


def _ignore(_submission: Submission, _error: Exception | None) -> None:
    """Ignores a response."""
