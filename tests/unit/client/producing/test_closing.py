"""Closing a producer: from any thread, repeatedly, in time."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from millrace_client import BadArgumentError, MillraceError, Producer, ProducerClosedError, SendFailedError, SendResult
from millrace_client.producing.accumulator import Accumulator
from millrace_client.producing.servers import Batch
from millrace_client.producing.settling import BatchSettler
from tests.unit.client.fake_server import RefusalError
from tests.unit.client.producing.conftest import FakeChannels, MakeProducer
from tests.waiting import wait_until

THREAD_PREFIX = "millrace-producer"


def full() -> RefusalError:
    return RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "CHANNEL_FULL")


OwnThreads = Callable[[], list[str]]


@pytest.fixture
def own_threads() -> OwnThreads:
    """Returns the threads of the test's own producers; those of former tests may not be over yet."""
    former = set(threading.enumerate())

    def names() -> list[str]:
        started = set(threading.enumerate()) - former
        return [thread.name for thread in started if thread.name.startswith(THREAD_PREFIX)]

    return names


def test_close_settles_all_and_ends_the_threads(
    channels: FakeChannels, producer_of: MakeProducer, own_threads: OwnThreads
) -> None:
    """Once the close returns in time, all events are stored, all callbacks have run, and no thread is left."""
    reported: list[SendResult] = []
    producer = producer_of(channels, linger_seconds=60.0, batch_events_max=10)
    futures = [producer.send(b"a", callback=reported.append) for _ in range(25)]
    report = producer.close(60)
    assert report.is_complete
    assert all(future.done() for future in futures)
    assert len(reported) == 25
    assert own_threads() == []


def test_close_that_is_interrupted_is_not_repeated_with_more_time(
    channels: FakeChannels, producer_of: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that gets Ctrl-C for the second time ends, even if its channel is full."""
    channels.judge = lambda _bodies: full()
    producer = producer_of(channels, linger_seconds=0.0)
    producer.send(b"a")
    with monkeypatch.context() as patch:
        patch.setattr(Accumulator, "wait_settled", _interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.close(0.2)
    assert not producer._finalizer.alive
    assert not producer.close(0.0).is_complete


def _interrupted(*_arguments: Any) -> None:
    raise KeyboardInterrupt


def test_close_that_sees_the_last_event_fail_counts_it(
    channels: FakeChannels, producer_of: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both threads have the same deadline, and the one that fails the event may not have gone on since."""
    channels.judge = lambda _bodies: full()
    has_looked, fail, wait = threading.Event(), BatchSettler.fail_with_followers, Accumulator.wait_settled

    def fail_and_pause(settler: BatchSettler, batch: Batch, error: MillraceError) -> None:
        fail(settler, batch, error)
        has_looked.wait(60)

    monkeypatch.setattr(BatchSettler, "fail_with_followers", fail_and_pause)
    monkeypatch.setattr(Accumulator, "wait_settled", lambda self, pages, _seconds: wait(self, pages, 10))
    producer = producer_of(channels)
    producer.send(b"a")
    report = producer.close(0.1)
    has_looked.set()
    assert report.events_left == 1


def test_close_again_says_the_same(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Closing may be repeated, also before anything was sent, and nothing can be sent afterwards."""
    producer = producer_of(channels)
    producer.send(b"a")
    assert producer.close(60).is_complete
    assert producer.close(60).is_complete
    with pytest.raises(ProducerClosedError):
        producer.send(b"b")
    unused = producer_of(channels)
    assert unused.close().is_complete
    with pytest.raises(ProducerClosedError):
        unused.send(b"a")
    assert unused.flush() == 0


def test_close_waits_for_attempts_that_are_to_come(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Retries within the time of the close are still made."""
    channels.outcomes.extend([full(), full()])
    producer = producer_of(channels)
    future = producer.send(b"a")
    assert producer.close(60).is_complete
    assert future.result(0).attempt_count == 3


def test_close_whose_time_runs_out_says_what_is_left(
    channels: FakeChannels, producer_of: MakeProducer, own_threads: OwnThreads
) -> None:
    """The close returns in time; what is left fails, so that no caller waits without end, and the threads end."""
    channels.judge = lambda _bodies: full()
    reported: list[SendResult] = []
    producer = producer_of(channels)
    futures = [producer.send(b"a", key="k", callback=reported.append) for _ in range(3)]
    began = time.monotonic()
    report = producer.close(0.3)
    assert 0.25 < time.monotonic() - began < 60.0
    assert (report.events_left, report.is_complete) == (3, False)
    for future in futures:
        with pytest.raises(SendFailedError) as caught:
            future.result(60)
        assert isinstance(caught.value.__cause__, ProducerClosedError)
    wait_until(lambda: own_threads() == [])
    assert len(reported) == 3


def test_close_in_no_time_gives_up_what_is_under_way(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Events sent without a response have an unknown outcome."""
    channels.outcomes.append("hang")
    producer = producer_of(channels)
    future = producer.send(b"a")
    while not channels.batches:
        time.sleep(0.001)
    assert producer.close(0).events_left == 1
    with pytest.raises(SendFailedError) as caught:
        future.result(60)
    assert caught.value.result is not None
    assert not caught.value.result.is_outcome_known


@pytest.mark.parametrize("is_stored", [True, False])
def test_close_from_a_callback_does_not_wait_for_itself(
    channels: FakeChannels, producer_of: MakeProducer, own_threads: OwnThreads, *, is_stored: bool
) -> None:
    """The callback's own thread ends after the callback returns."""
    if not is_stored:
        channels.judge = lambda _bodies: RefusalError(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT")
    producer = producer_of(channels)
    reports = []
    closed = threading.Event()

    def close(_result: SendResult) -> None:
        reports.append(producer.close(60))
        closed.set()

    producer.send(b"a", callback=close)
    assert closed.wait(60)
    assert reports[0].is_complete
    assert producer.close(60).is_complete
    assert own_threads() == []


def test_close_from_many_threads_returns_in_all(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Concurrent sends are refused or stored."""
    # Full soon, so that little is left to be sent when the producer is closed.
    producer = producer_of(channels, buffer_bytes_max=100_000)
    taken, reports = [], []
    begin = threading.Barrier(12)

    def send() -> None:
        begin.wait()
        try:
            while True:
                taken.append(producer.send(b"a"))
        except ProducerClosedError:
            return

    def close() -> None:
        begin.wait()
        time.sleep(0.05)
        reports.append(producer.close(60))

    threads = [threading.Thread(target=act) for act in [send] * 4 + [close] * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [report.is_complete for report in reports] == [True] * 8
    assert all(future.result(0).stored for future in taken)
    assert len(channels.stored["orders"]) == len(taken)


def test_callback_that_raises_is_counted_and_the_next_one_runs(
    channels: FakeChannels, producer_of: MakeProducer
) -> None:
    """The exception of a callback, whatever its type, affects nothing else."""
    reported: list[SendResult] = []
    producer = producer_of(channels)

    def fail(_result: SendResult) -> None:
        raise KeyboardInterrupt

    producer.send(b"a", callback=fail)
    producer.send(b"b", callback=reported.append)
    assert producer.close(60).is_complete
    assert (len(reported), producer.metrics().callback_errors) == (1, 1)


def test_callback_that_blocks_harms_no_event(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Events continue to be sent, failures are reported, and the close reports the callback that is left."""
    channels.judge = lambda bodies: (
        RefusalError(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT") if bodies[0] == b"bad" else None
    )
    unblock, failed = threading.Event(), threading.Event()
    producer = producer_of(channels, batch_events_max=1)
    producer.send(b"a", callback=lambda _result: unblock.wait())
    futures = [producer.send(b"b") for _ in range(100)]
    producer.send(b"bad", callback=lambda _result: failed.set())
    assert failed.wait(60)
    assert all(future.result(60).stored for future in futures)
    report = producer.close(0.2)
    assert (report.events_left, report.callbacks_left) == (0, 1)
    unblock.set()


def test_producer_that_is_dropped_still_sends(channels: FakeChannels, own_threads: OwnThreads) -> None:
    """A producer that is garbage collected without a close sends its events and ends its threads."""
    producer = Producer(channels.address, "orders")
    producer.send(b"a")
    gone = weakref.ref(producer)
    del producer
    gc.collect()
    assert gone() is None
    wait_until(lambda: own_threads() == [])
    assert channels.stored["orders"] == [b"a"]


def test_program_that_ends_without_closing_sends_all(channels: FakeChannels) -> None:
    """Everything sent is stored before the interpreter exits."""
    code = f"""
from millrace_client import Producer, ProducerConfig
producer = Producer({channels.address!r}, "orders", config=ProducerConfig(linger_seconds=60))
for _ in range(5):
    producer.send(b"a")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert channels.stored["orders"] == [b"a"] * 5


def test_send_after_a_fork_is_refused() -> None:
    """A child gets ClientForkedError, whatever locks its parent's threads held."""
    code = """
import os, sys
from millrace_client import ClientForkedError, Producer, ProducerConfig
used = Producer("127.0.0.1:1", "orders", config=ProducerConfig(delivery_timeout_seconds=1))
unused = Producer("127.0.0.1:1", "orders")
used.send(b"a")
used._accumulator.lock.acquire()
child = os.fork()
if child == 0:
    codes = []
    for act in (lambda: used.send(b"b"), used.flush, lambda: unused.send(b"b")):
        try:
            act()
        except ClientForkedError:
            codes.append(1)
    used.close()
    os._exit(sum(codes))
used._accumulator.lock.release()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
used.close(0)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, check=True, text=True, timeout=60
    )
    assert done.stdout == "3\n"


def test_producer_without_a_place_to_go_is_refused(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Endpoints and channels must be given."""
    with pytest.raises(BadArgumentError, match="endpoints"):
        Producer([])
    with pytest.raises(BadArgumentError, match="channel: is empty"):
        Producer(channels.address).send(b"a")
    with pytest.raises(TypeError, match="event: is a int"):
        producer_of(channels).send(1)  # type: ignore[arg-type] # what this is about
    with pytest.raises(TypeError, match="key: is a int"):
        producer_of(channels).send(b"a", key=1)  # type: ignore[arg-type] # likewise


@pytest.mark.parametrize(("channel", "error"), [("\ud800", BadArgumentError), (5, TypeError)])
def test_send_to_a_channel_whose_name_cannot_be_sent_fails_no_other_event(
    channel: Any, error: type[Exception], channels: FakeChannels, producer_of: MakeProducer
) -> None:
    """The name may come from the program's input, and events of other channels are buffered at the same time."""
    producer = producer_of(channels, linger_seconds=60.0)
    future = producer.send(b"a")
    with pytest.raises(error, match="channel: is "):
        producer.send(b"b", channel=channel)
    assert producer.flush(60) == 0
    assert future.result(0).sequence == 1
