"""A sink of type `files` between its channel and its files."""

import asyncio
import errno
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace_server.agent.sinks.files import sink
from millrace_server.agent.sinks.files.local_target import LocalTarget
from millrace_server.agent.sinks.sink import SinkContext
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.config import MemoryChannelConfig
from millrace_server.channels.deliveries import Deliveries
from millrace_server.channels.transaction import Transaction
from millrace_server.errors import ChannelLogFailedError, ChannelNotFoundError
from tests.files_sink import SinkBench, config_of, files_below, lines_below, rows_of, unfinished_below
from tests.waiting import WAIT_SECONDS_MAX

LOOKS_INTO_THE_LOOP = True
LONG_SECONDS = 3_600.0
"""Longer than any test takes."""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The directory for finished files."""
    path = tmp_path / "out"
    path.mkdir()
    return path


def _bench(tmp_path: Path, path: str = "", channel: MemoryChannelConfig | None = None, **settings: Any) -> SinkBench:
    settings = {"roll_seconds": LONG_SECONDS, **settings}
    return SinkBench(config_of(tmp_path / "out" / path, **settings), tmp_path / "state", channel)


def _lines(*numbers: int) -> list[bytes]:
    return [str(number).encode() for number in numbers]


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110 - only the disk shows which files there are
        await asyncio.sleep(0.005)


async def test_run_with_events_keeps_them_in_the_channel_until_the_file_has_its_name(tmp_path: Path, out: Path) -> None:
    """An event leaves its channel only when a complete file has it."""
    bench = _bench(tmp_path)
    await bench.put(rows_of(_lines(*range(10))))
    async with bench.running():
        await _until(lambda: bool(unfinished_below(out)))
        assert bench.unsettled == 10
        assert files_below(out) == []
        bench.reader.request_flush()
        await bench.until_settled()
    assert lines_below(out) == _lines(*range(10))
    assert (bench.component.event_count, bench.component.state.value) == (10, "running")


async def test_run_beyond_the_time_of_a_file_settles_by_itself(tmp_path: Path, out: Path) -> None:
    """A file is finished on time even if no more events arrive."""
    bench = _bench(tmp_path, roll_seconds=0.1)
    await bench.put(rows_of(_lines(1)))
    async with bench.running():
        await bench.until_settled()
        await bench.put(rows_of(_lines(2)))
        await bench.until_settled()
    assert [path.read_bytes() for path in files_below(out)] == [b"1\n", b"2\n"]


async def test_run_under_constant_load_finishes_files_in_their_time(tmp_path: Path, out: Path) -> None:
    """A file without new events is finished while others receive some without end."""
    bench = _bench(tmp_path, "{header:host}", roll_seconds=0.2, batch_events_max=1)
    await bench.put(rows_of(_lines(0), host="quiet"))

    async def load() -> None:
        while True:
            if bench.channel._contents.queue.event_count < 1_000:
                await bench.put(rows_of(_lines(*range(1_000)), host="loud"))
            await asyncio.sleep(0)

    async with bench.running():
        loading = asyncio.create_task(load())
        await _until(lambda: bool(files_below(out / "quiet")))
        loading.cancel()
        assert bench.channel._contents.queue.event_count


async def test_run_closed_finishes_and_settles_all(tmp_path: Path, out: Path) -> None:
    """A clean stop leaves no unfinished files and no unsettled events."""
    bench = _bench(tmp_path, "{header:host}")
    await bench.put(rows_of(_lines(1), host="a"), rows_of(_lines(2), host="b"))
    async with bench.running() as run:
        await _until(lambda: len(unfinished_below(out)) == 2)
        bench.reader.close()
        await run
        assert bench.unsettled == 0
    assert lines_below(out) == _lines(1, 2)
    assert not (out / ".millrace").exists()


async def test_run_cancelled_nacks_what_is_unfinished(tmp_path: Path, out: Path) -> None:
    """If there is no more time, nothing is lost: the events are in the channel for the next run."""
    bench = _bench(tmp_path)
    await bench.put(rows_of(_lines(1, 2)))
    async with bench.running():
        await _until(lambda: bool(unfinished_below(out)))
    assert bench.unsettled == 2
    assert unfinished_below(out) == files_below(out) == []
    await bench.drain()
    assert lines_below(out) == _lines(1, 2)


async def test_run_with_small_deliveries_holds_one_transaction(tmp_path: Path, out: Path) -> None:
    """Events that trickle in do not become thousands of open transactions, nor as many commits."""
    bench = _bench(tmp_path)
    async with bench.running():
        for number in range(50):
            await bench.put(rows_of(_lines(number)))
            await _until(lambda: bench.channel._contents.queue.event_count == 0)
        # One more may have been taken that is not written yet.
        await _until(lambda: bench.channel.open_transactions == 1)
        bench.reader.request_flush()
        await bench.until_settled()
    assert lines_below(out) == _lines(*range(50))
    assert bench.component.batch_count < 5


async def test_run_holding_half_of_the_channel_finishes_files_early(tmp_path: Path, out: Path) -> None:
    """Large files must not fill the channel for its producers."""
    channel = MemoryChannelConfig(
        type="memory", capacity=100, transaction_capacity=10, keep_alive_seconds=WAIT_SECONDS_MAX
    )
    bench = _bench(tmp_path, channel=channel)
    async with bench.running():
        for first in range(0, 1_000, 10):
            await bench.put(rows_of(_lines(*range(first, first + 10))))
        assert len(lines_below(out)) >= 900
        bench.reader.request_flush()
        await bench.until_settled()
    assert lines_below(out) == _lines(*range(1_000))
    assert len(files_below(out)) <= 30


async def test_run_holding_space_that_producers_wait_for_finishes_files(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that needs more than half of the channel does not wait for a file's deadline."""
    monkeypatch.setattr(sink, "SPACE_CHECK_SECONDS", 0.05)
    channel = MemoryChannelConfig(type="memory", capacity=100, keep_alive_seconds=WAIT_SECONDS_MAX)
    bench = _bench(tmp_path, channel=channel)
    async with bench.running():
        await bench.put(rows_of(_lines(*range(40))))
        await _until(lambda: bool(unfinished_below(out)))
        await bench.put(rows_of(_lines(*range(40, 120))))
        bench.reader.request_flush()
        await bench.until_settled()
    assert lines_below(out) == _lines(*range(120))


async def test_run_with_deliveries_in_two_files_settles_each_when_its_own_are_finished(
    tmp_path: Path, out: Path
) -> None:
    """A delivery does not wait for files without its events."""
    bench = _bench(tmp_path, "{header:host}", roll_events=2, batch_events_max=2)
    await bench.put(rows_of(_lines(1), host="a"))
    async with bench.running():
        await _until(lambda: len(unfinished_below(out)) == 1)
        await bench.put(rows_of(_lines(2, 3), host="b"))
        await _until(lambda: bench.unsettled == 1)
        assert lines_below(out) == _lines(2, 3)


async def test_run_when_the_channel_cannot_be_read_any_more_finishes_first(tmp_path: Path, out: Path) -> None:
    """Written events are still valid, so they are not discarded."""
    bench = _bench(tmp_path)
    await bench.put(rows_of(_lines(1)))
    async with bench.running() as run:
        await _until(lambda: bool(unfinished_below(out)))
        bench.channel.delete()
        with pytest.raises(ChannelNotFoundError):
            await run
    assert lines_below(out) == _lines(1)


async def test_run_whose_deliveries_cannot_be_settled_writes_nothing_twice(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the channel's disk fails between publish and commit, the file counts nevertheless."""
    bench = _bench(tmp_path)
    await bench.put(rows_of(_lines(1, 2)))

    def refuse(deliveries: Deliveries, delivery: Transaction) -> None:
        deliveries.nack(delivery)
        raise ChannelLogFailedError("the log has failed")

    with monkeypatch.context() as patch:
        patch.setattr(Deliveries, "settle", refuse)
        with pytest.raises(ChannelLogFailedError):
            await bench.drain()
    assert bench.unsettled == 2
    await bench.put(rows_of(_lines(3)))
    await bench.drain()
    assert bench.unsettled == 0
    assert sorted(lines_below(out)) == _lines(1, 2, 3)


async def test_run_without_the_directory_says_what_to_do(tmp_path: Path) -> None:
    """Nothing is written into the mount point of a disk that is not mounted."""
    bench = _bench(tmp_path)
    with pytest.raises(ComponentError, match=r"cannot write files to .*/out: is not a directory; create it, or mount"):
        await bench.drain()
    assert not (tmp_path / "out").exists()


async def test_run_whose_directory_goes_away_writes_on_when_it_is_back(tmp_path: Path, out: Path) -> None:
    """Each run fails while the directory is missing or another one has its name; then each event is written once."""
    bench = _bench(tmp_path, "{header:host}", roll_seconds=0.1)
    made = bench.config.make(SinkContext("archive", tmp_path / "state"))
    run = asyncio.create_task(made.run(bench.reader))
    await bench.put(rows_of(_lines(1), host="a"))
    await bench.until_settled()
    (tmp_path / "out").rename(tmp_path / "away")
    await bench.put(rows_of(_lines(2), host="b"))
    with pytest.raises(ComponentError, match="is not a directory; create it"):
        await run
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    bench.reader.nack_all()
    with pytest.raises(ComponentError, match="is no longer the same directory"):
        await made.run(bench.reader)
    assert list((tmp_path / "out").iterdir()) == []
    (tmp_path / "out").rmdir()
    (tmp_path / "away").rename(out)
    run = asyncio.create_task(made.run(bench.reader))
    await bench.until_settled()
    bench.reader.close()
    await run
    assert sorted(lines_below(out)) == _lines(1, 2)


async def test_run_after_a_failure_finishes_its_first_file_at_once(tmp_path: Path, out: Path) -> None:
    """The state shows that the outage is over, long before a file is due; files after that take their time."""
    bench = _bench(tmp_path)
    bench.component.mark_backing_off("the disk is full")
    await bench.put(rows_of(_lines(1)))
    async with bench.running():
        await bench.until_settled()
        assert bench.component.state.value == "running"
        await bench.put(rows_of(_lines(2)))
        await _until(lambda: bool(unfinished_below(out)))
        assert bench.unsettled == 1
    assert lines_below(out) == _lines(1)


async def test_run_without_permission_reports_it(tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the directory that must not be written."""

    def refuse(path: Path, mode: int, *, dir_fd: int) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    bench = _bench(tmp_path)
    (tmp_path / "state").mkdir()
    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(ComponentError, match=r"cannot write files to .*/out: Permission denied \(\.millrace\)"):
        await bench.drain()


@pytest.fixture
def failing_call(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Lets the nth next call of a function of `os` fail with a full disk."""

    def fail(name: str, nth: int) -> None:
        real = getattr(os, name)
        left = nth

        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **options)

        monkeypatch.setattr(os, name, call)

    return fail


@pytest.mark.parametrize("name", ["link", "fsync", "open", "mkdir", "replace"])
async def test_run_on_a_disk_that_is_sometimes_full_writes_each_event_once(
    name: str, tmp_path: Path, out: Path, failing_call: Callable[[str, int], None]
) -> None:
    """If any call fails, the run reports it, and the next run resumes from there."""
    (tmp_path / "state").mkdir()
    bench = _bench(tmp_path, "{header:host}", roll_events=10)
    reported = []
    for first in range(0, 200, 20):
        rows = [({"host": "ab"[number % 2]}, str(number).encode()) for number in range(first, first + 20)]
        await bench.put(rows)
        failing_call(name, 1 + first // 20)
        try:
            await bench.drain()
        except ComponentError as error:
            reported.append(str(error))
    while bench.unsettled:
        await bench.drain()
    assert reported
    assert all("No space left on device" in reason for reason in reported)
    assert sorted(map(int, lines_below(out))) == list(range(200))


async def test_run_with_no_space_for_the_events_resumes_when_there_is(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused write loses nothing, and leaves no partial file."""
    bench = _bench(tmp_path)
    await bench.put(rows_of([b"x" * 1_000_000]))
    real_open = os.open

    def open_full(path: Any, *arguments: Any, **options: Any) -> int:
        is_part = str(path).endswith(".part")
        return real_open("/dev/full", os.O_WRONLY) if is_part else real_open(path, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", open_full)
        with pytest.raises(ComponentError, match="No space left on device"):
            await bench.drain()
    assert bench.unsettled == 1
    await bench.drain()
    assert [path.stat().st_size for path in files_below(out)] == [1_000_001]


async def test_run_on_a_file_system_that_hangs_reports_it_and_continues_when_it_responds(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run does not block without limit; a late operation counts, and nothing is written twice."""
    hangs, responses = threading.Event(), threading.Event()
    real_publish = LocalTarget.publish

    def publish(target: LocalTarget, staged: Path, path: str) -> None:
        hangs.set()
        responses.wait(LONG_SECONDS)
        real_publish(target, staged, path)

    monkeypatch.setattr(LocalTarget, "publish", publish)
    monkeypatch.setattr(sink, "CLOSE_SECONDS", 0.1)
    bench = _bench(tmp_path, stall_seconds=0.1)
    await bench.put(rows_of(_lines(1, 2)))
    reasons: list[str] = []
    # On a machine under load, another operation may take as long.
    while not (hangs.is_set() and "an earlier run still waits" in reasons[-1]):
        with pytest.raises(ComponentError) as stalled:
            await bench.drain()
        reasons.append(str(stalled.value))
    assert re.search(r"the file system of .*/out has not responded for 0\.1 seconds", reasons[0])
    assert bench.unsettled == 2
    responses.set()
    await _until(lambda: not unfinished_below(out))
    await bench.put(rows_of(_lines(3)))
    while bench.unsettled:
        try:
            await bench.drain()
        except ComponentError:
            await asyncio.sleep(0.01)
    assert sorted(lines_below(out)) == _lines(1, 2, 3)


async def test_run_beside_another_sink_on_the_same_directory_shares_it(tmp_path: Path, out: Path) -> None:
    """Two sinks may share a directory: each removes and names only its own files."""
    first = _bench(tmp_path)
    second = SinkBench(config_of(out, roll_seconds=LONG_SECONDS), tmp_path / "other-state")
    await first.put(rows_of(_lines(1)))
    await second.put(rows_of(_lines(2)))
    async with first.running():
        await _until(lambda: len(unfinished_below(out)) == 1)
        await second.drain()
        assert len(unfinished_below(out)) == 1
        first.reader.request_flush()
        await first.until_settled()
    assert sorted(lines_below(out)) == _lines(1, 2)


async def test_run_with_nothing_to_do_waits_without_work(tmp_path: Path, out: Path) -> None:
    """An idle sink does nothing: no timer runs."""
    bench = _bench(tmp_path)
    async with bench.running():
        await _until((out / ".millrace").exists)
        loop: Any = asyncio.get_running_loop()

        def timers() -> list[Any]:
            return [timer for timer in loop._scheduled if not timer.cancelled() and timer.when() < loop.time() + 1e6]

        # Until the run has started, its thread may set timers.
        await _until(lambda: not timers())
        await asyncio.sleep(0.05)
        assert timers() == []
