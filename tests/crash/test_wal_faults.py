"""Errors of the disk at each Nth call that a log makes."""

import errno
import random
from contextlib import suppress

import pytest

from millrace_server.wal.records import LogFailedError, LogFullError
from tests.log_histories import DATA, TWO_DIRECTORIES, Moment, RunningLog, check_recovery, recorded, replay
from tests.simulated_disk import Call, SimulatedDisk

pytestmark = pytest.mark.usefixtures("small_logs")

_CHANGING_KINDS = ["create", "open_directory", "list", "rename", "write", "reserve", "truncate", "unlink"]
_SYNC_KINDS = ["sync", "sync_directory"]
_OPENING_KINDS = ["list", "open", "read", "size", "truncate", "write", *_SYNC_KINDS]
# The log treats the first two alike.
_PASSING_ERRORS = [errno.ENOSPC, pytest.param(errno.EDQUOT, marks=pytest.mark.torture), errno.EMFILE]


def _work(log: RunningLog) -> None:
    """Performs all kinds of calls, whatever the results."""
    for segment in range(3):
        log.submit(b"state %d" % segment * 200, begins_segment=True).exception()
        log.submit(b"alone in segment %d" % segment).exception()
        log.submit(b"unsynced" * 100, needs_sync=False).exception()
        with log.together():
            responses = [log.submit(b"%d in segment %d" % (number, segment) * 50) for number in range(4)]
        for response in responses:
            response.exception()
    if log.log._segments:
        for _attempt in range(2):
            with suppress(OSError):
                log.remove_before(max(log.log._segments))


def _work_with_fault(disk: SimulatedDisk, kind: str, nth: int, error_number: int) -> tuple[list[Moment], RunningLog]:
    logs: list[RunningLog] = []

    def history(log: RunningLog) -> None:
        logs.append(log)
        log.append(b"first state", begins_segment=True)
        disk.fail(kind, nth, error_number)
        _work(log)
        disk.heal()
        log.submit(b"the next state", begins_segment=True).exception()
        log.submit(b"at last").exception()

    return recorded(disk, history, TWO_DIRECTORIES), logs[0]


def _count_of(kind: str) -> int:
    """The number of calls of a kind if nothing fails."""
    disk = SimulatedDisk(TWO_DIRECTORIES)
    _work_with_fault(disk, "none", 1, 0)
    calls = [call for call in disk.calls if call.kind == kind]
    return len(calls)


def _check_crashes(moments: list[Moment], chance: random.Random) -> None:
    for moment in [*chance.sample(moments, 2), moments[-1]]:
        check_recovery(moment.disk.copy(), moment.account, TWO_DIRECTORIES, chance)
        check_recovery(moment.disk.crashed(chance.randrange(1 << 32)), moment.account, TWO_DIRECTORIES, chance)


@pytest.mark.parametrize("error_number", [errno.EIO, *_PASSING_ERRORS], ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", [*_CHANGING_KINDS, *_SYNC_KINDS])
def test_submit_with_any_call_failing_acknowledges_nothing_falsely(
    kind: str, error_number: int, chance: random.Random
) -> None:
    """Whichever call fails, acknowledged records are found after a kill or power cut, and refused ones are not."""
    for nth in range(1, _count_of(kind)):
        disk = SimulatedDisk(TWO_DIRECTORIES, chance.randrange(1 << 32))
        moments, _log = _work_with_fault(disk, kind, nth, error_number)
        _check_crashes(moments, chance)


@pytest.mark.parametrize("error_number", _PASSING_ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", _CHANGING_KINDS)
def test_submit_once_there_is_space_again_goes_on(kind: str, error_number: int) -> None:
    """A call without space refuses some records at most; the log continues with the next ones."""
    for nth in range(1, _count_of(kind)):
        disk = SimulatedDisk(TWO_DIRECTORIES)
        _moments, log = _work_with_fault(disk, kind, nth, error_number)
        assert log.account.entries[-1].is_durable


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_sync_after_one_failed_is_never_retried(error_number: int) -> None:
    """After a failed sync of a file, with whatever error, nothing relies on another sync of that file."""
    for nth in range(1, _count_of("sync")):
        disk = SimulatedDisk(TWO_DIRECTORIES, nth)
        _moments, log = _work_with_fault(disk, "sync", nth, error_number)
        syncs = [call for call in disk.calls if call.kind == "sync"]
        failed = next((call for call in syncs if call.is_refused), None)
        if failed is not None and failed.name.endswith(".new"):
            # The file was not a part of the log yet, and never became one.
            assert Call("unlink", failed.name, is_refused=False) in disk.calls
        elif failed is not None:
            assert syncs[-1] is failed
            assert not log.account.entries[-1].is_durable


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOSPC, errno.EMFILE], ids=errno.errorcode.get)
@pytest.mark.parametrize("kind", _OPENING_KINDS)
def test_replay_with_any_call_failing_changes_nothing_for_the_next(
    kind: str, error_number: int, chance: random.Random
) -> None:
    """An error during the opening is raised, and the log opens with all records once the error is gone."""
    moments, _log = _work_with_fault(SimulatedDisk(TWO_DIRECTORIES), "none", 1, 0)
    moment = chance.choice(moments[len(moments) // 2 :])
    for nth in range(1, 8):
        disk = moment.disk.copy()
        disk.fail(kind, nth, error_number)
        with suppress(OSError):
            moment.account.check(replay(disk, TWO_DIRECTORIES))
        disk.heal()
        check_recovery(disk.copy(), moment.account, TWO_DIRECTORIES, chance)
        check_recovery(disk.crashed(chance.randrange(1 << 32)), moment.account, TWO_DIRECTORIES, chance)


def test_submit_on_a_full_disk_refuses_until_there_is_space() -> None:
    """Records without space are refused and never found; small ones are accepted; once there is space, all are."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        disk.capacity_bytes = 1000
        with pytest.raises(LogFullError, match="No space left on device"):
            log.append(b"large" * 1000)
        log.append(b"small")
        with pytest.raises(LogFullError, match="a new segment could not be created: No space"):
            log.append(b"next state" * 1000, begins_segment=True)
        log.append(b"small again")
        assert log.log.first_segment_id == max(log.log._segments) == 1
        disk.capacity_bytes = 1 << 20
        log.append(b"large" * 1000)
        log.append(b"next state", begins_segment=True)
        account = log.account_now()
    account.check(replay(disk))
    assert disk.paths() == [DATA / "segment-000000000001.log", DATA / "segment-000000000002.log"]


def test_submit_that_is_refused_is_not_found_whatever_the_disk_keeps() -> None:
    """After a refusal was reported, no power cut restores what a short write left."""
    for seed in range(100):
        disk = SimulatedDisk([DATA], seed)
        with RunningLog(disk) as log:
            log.append(b"state", begins_segment=True)
            disk.capacity_bytes = 500
            # The first record alone would fit.
            log.submit(b"whole", b"too large" * 100).exception()
            crashed = disk.crashed(seed)
            account = log.account_now()
        account.check(replay(crashed))


def test_submit_when_its_rest_cannot_be_cut_fails_the_log() -> None:
    """If a refused record might still be found, the log fails instead of refusing."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        disk.fail("write", 1, errno.ENOSPC)
        disk.fail("truncate", 1, errno.EIO)
        with pytest.raises(LogFailedError, match="could not be truncated after a failed write: Input/output error"):
            log.append(b"doubtful")
        account = log.account_now()
    account.check(replay(disk))


def test_submit_after_a_failed_sync_is_refused_until_the_log_is_opened_again() -> None:
    """A failed sync fails what waited for it and everything later; a replay decides what is stored."""
    disk = SimulatedDisk([DATA])
    with RunningLog(disk) as log:
        log.append(b"state", begins_segment=True)
        log.append(b"before")
        disk.fail("sync", 1, errno.EIO)
        with pytest.raises(LogFailedError, match="a sync of the log failed: Input/output error"):
            log.append(b"doubtful")
        disk.heal()
        for needs_sync in (True, False):
            with pytest.raises(LogFailedError, match="a sync of the log failed"):
                log.append(b"refused", needs_sync=needs_sync)
        with pytest.raises(LogFailedError):
            log.append(b"refused", begins_segment=True)
        account = log.account_now()
    account.check(replay(disk.crashed(1)))
    # Without a crash the kernel shows data that the disk does not have, so the opening writes it again.
    found = replay(disk)
    assert found == replay(disk.crashed(2))
