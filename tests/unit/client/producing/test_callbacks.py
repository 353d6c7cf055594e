import threading
import time

from millrace_client.producing.callbacks import CallbackThreads
from millrace_client.producing.metrics import ProducerCounters


def test_jobs_of_a_kind_run_in_order_on_one_thread() -> None:
    """Each kind has a thread, so the two kinds do not wait for each other."""
    threads = CallbackThreads(ProducerCounters())
    reported: list[tuple[int, int]] = []
    unblock = threading.Event()
    threads.submit(lambda: unblock.wait(60), is_success=False)
    for index in range(50):
        threads.submit(lambda index=index: reported.append((index, threading.get_ident())), is_success=True)  # type: ignore[misc] # a default argument
    give_up = time.monotonic() + 60
    while len(reported) < 50:
        assert time.monotonic() < give_up
        time.sleep(0.001)
    assert [index for index, _ in reported] == list(range(50))
    assert len({ident for _, ident in reported}) == 1
    assert threads.waiting_count == 1
    unblock.set()
    threads.end()
    threads.join(time.monotonic() + 60)
    assert threads.waiting_count == 0


def test_job_after_the_end_runs_all_the_same() -> None:
    """No job is forgotten, however late."""
    threads = CallbackThreads(ProducerCounters())
    threads.end()
    reported = threading.Event()
    threads.submit(reported.set, is_success=True)
    assert reported.wait(60)
    threads.join(time.monotonic() + 60)


def test_job_that_raises_is_counted() -> None:
    """The exception is counted, and the next job runs."""
    counters = ProducerCounters()
    threads = CallbackThreads(counters)
    reported = threading.Event()

    def fail() -> None:
        raise SystemExit

    threads.submit(fail, is_success=True)
    threads.submit(reported.set, is_success=True)
    assert reported.wait(60)
    assert counters.callback_errors == 1
    threads.end()
    threads.join(time.monotonic() + 60)


def test_end_without_jobs_needs_no_thread() -> None:
    """A producer without callbacks has no threads for them."""
    threads = CallbackThreads(ProducerCounters())
    threads.end()
    threads.join(time.monotonic() + 1)
    assert (threads.waiting_count, threads.left_count) == (0, 0)
