import threading
from collections.abc import Iterator
from concurrent.futures import Future
from operator import attrgetter
from pathlib import Path

import pytest

from millrace_server.wal import group_writer, writer_threads
from millrace_server.wal.format import Kind
from millrace_server.wal.log import WriteAheadLog
from millrace_server.wal.records import Submission
from millrace_server.wal.segments import SegmentFiles
from millrace_server.wal.writer_threads import WriterThreads
from tests.log_histories import CHANNEL_ID
from tests.simulated_disk import SimulatedDisk

_WAIT_SECONDS = 60.0


class _SharingLog:
    """A log on a disk of its own, on shared threads; its syncs wait while its disk is stalled."""

    def __init__(self, threads: WriterThreads, number: int) -> None:
        directory = Path(f"data-{number}")
        self.disk = SimulatedDisk([directory])
        self.may_respond = threading.Event()
        self.may_respond.set()
        self.is_asked = threading.Event()
        self.writers: set[threading.Thread] = set()
        """Threads that have written it."""
        self.disk.before_call = self._before_call
        self._log = WriteAheadLog(SegmentFiles(self.disk, [directory], CHANNEL_ID))
        assert list(self._log.replay()) == []
        self._log.start(lambda complete: complete(), threads)
        self.append(begins_segment=True).result(_WAIT_SECONDS)

    def _before_call(self, kind: str, _name: str) -> None:
        if kind == "sync":
            self.writers.add(threading.current_thread())
            self.is_asked.set()
            assert self.may_respond.wait(_WAIT_SECONDS)

    def append(self, *, begins_segment: bool = False) -> "Future[Submission]":
        response: Future[Submission] = Future()

        def done(submission: Submission, error: Exception | None) -> None:
            assert error is None
            response.set_result(submission)

        kind = Kind.STATE if begins_segment else Kind.PUT
        self._log.submit([(kind, [b"some"])], needs_sync=True, begins_segment=begins_segment, done=done)
        return response

    def stall(self) -> "Future[Submission]":
        """Appends, and returns once the disk was asked for a sync that does not return."""
        self.may_respond.clear()
        self.is_asked.clear()
        response = self.append()
        assert self.is_asked.wait(_WAIT_SECONDS)
        return response

    def wait_until_marked(self) -> None:
        """Waits until a SYNC_POINT is behind all else."""
        end, marked = attrgetter("_end.position"), attrgetter("_sync_point_position")
        while marked(self._log._writer) != end(self._log._writer):
            self.is_asked.wait(0.001)

    @property
    def sync_count(self) -> int:
        return sum(call.kind == "sync" for call in self.disk.calls)

    def close(self) -> None:
        self._log.close()


@pytest.fixture
def threads() -> WriterThreads:
    """At most three threads."""
    return WriterThreads(3)


@pytest.fixture
def logs(threads: WriterThreads) -> Iterator[list[_SharingLog]]:
    """Ten logs on these threads."""
    opened = [_SharingLog(threads, number) for number in range(10)]
    yield opened
    for log in opened:
        log.may_respond.set()
        log.close()


def test_append_to_many_logs_takes_no_more_threads_than_allowed(logs: list[_SharingLog]) -> None:
    """Logs share threads, however many of them have something to write."""
    for _ in range(20):
        for response in [log.append() for log in logs]:
            response.result(_WAIT_SECONDS)
    writers = set[threading.Thread]().union(*(log.writers for log in logs))
    assert 0 < sum(writer.is_alive() for writer in writers) <= 3


def test_append_beside_stalled_disks_does_not_wait_for_them(logs: list[_SharingLog]) -> None:
    """As long as a thread is left, the other logs go on."""
    stalled = [log.stall() for log in logs[:2]]
    for _ in range(5):
        for response in [log.append() for log in logs[2:]]:
            response.result(_WAIT_SECONDS)
    assert not any(response.done() for response in stalled)
    for log, response in zip(logs, stalled, strict=False):
        log.may_respond.set()
        response.result(_WAIT_SECONDS)


def test_append_while_every_thread_is_stalled_goes_on_with_the_first_that_is_free(logs: list[_SharingLog]) -> None:
    """A log that found no thread is written as soon as there is one, and nothing is lost."""
    stalled = [log.stall() for log in logs[:3]]
    waiting = [log.append() for log in logs[3:]]
    logs[1].may_respond.set()
    for response in [stalled[1], *waiting]:
        response.result(_WAIT_SECONDS)
    assert not stalled[0].done()


def test_close_while_every_thread_is_stalled_needs_none(logs: list[_SharingLog]) -> None:
    """A log without a thread closes on that of its caller."""
    for log in logs[:3]:
        log.stall()
    closing = threading.Thread(target=logs[5].close, daemon=True)
    closing.start()
    closing.join(_WAIT_SECONDS)
    assert not closing.is_alive()


def test_close_on_several_threads_at_once_ends_each_after_the_last_write(logs: list[_SharingLog]) -> None:
    """No close returns while the log still writes."""
    log = logs[0]
    response = log.stall()
    closings = [threading.Thread(target=log.close, daemon=True) for _ in range(3)]
    for closing in closings:
        closing.start()
    assert all(closing.is_alive() for closing in closings)
    log.may_respond.set()
    for closing in closings:
        closing.join(_WAIT_SECONDS)
        assert not closing.is_alive()
    assert response.done()


def test_idle_logs_without_a_thread_write_their_sync_points(
    threads: WriterThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where too many logs fall idle at once to keep their threads, each SYNC_POINT is written all the same."""
    monkeypatch.setattr(group_writer, "SYNC_POINT_DELAY_SECONDS", 0.001)
    logs = [_SharingLog(threads, number) for number in range(10)]
    for response in [log.append() for log in logs]:
        response.result(_WAIT_SECONDS)
    for log in logs:
        log.wait_until_marked()
        syncs = log.sync_count
        # Nothing is left for it to do.
        log.close()
        assert log.sync_count == syncs


def test_thread_without_work_ends(threads: WriterThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server whose channels are idle has no threads for them."""
    monkeypatch.setattr(writer_threads, "IDLE_SECONDS", 0.001)
    ran: list[threading.Thread] = []
    is_done = threading.Event()

    def work() -> None:
        ran.append(threading.current_thread())
        is_done.set()

    threads.run(work)
    assert is_done.wait(_WAIT_SECONDS)
    ran[0].join(_WAIT_SECONDS)
    assert not ran[0].is_alive()
    # Further work gets a new one.
    is_done.clear()
    threads.run(is_done.set)
    assert is_done.wait(_WAIT_SECONDS)


def test_may_linger_while_nobody_waits_for_a_thread(threads: WriterThreads) -> None:
    """A thread that is done is given to those that have something to write."""
    threads._threads_max = 2
    have_begun, may_end, is_done = threading.Barrier(3), threading.Event(), threading.Event()

    def occupy() -> None:
        have_begun.wait(_WAIT_SECONDS)
        assert may_end.wait(_WAIT_SECONDS)

    for _ in range(2):
        threads.run(occupy)
    have_begun.wait(_WAIT_SECONDS)
    assert threads.may_linger()
    threads.end_lingering()
    threads.run(is_done.set)
    assert not threads.may_linger()
    may_end.set()
    assert is_done.wait(_WAIT_SECONDS)


def test_run_when_the_system_has_no_thread_left_is_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work waits, and the next call starts a thread for both."""
    threads = WriterThreads(threads_max=1)
    done = threading.Event()
    order: list[int] = []

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        threads.run(lambda: order.append(1))
    assert order == []
    threads.run(lambda: order.append(2))
    threads.run(done.set)
    assert done.wait(_WAIT_SECONDS)
    assert order == [1, 2]
