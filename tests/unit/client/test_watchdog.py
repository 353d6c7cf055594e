"""Deadlines of single responses."""

import gc
import threading
import weakref

from millrace_client._watchdog import Watchdog

WAIT_SECONDS = 60.0


def test_watch_that_is_armed_goes_off_once() -> None:
    """The alarm is raised once when the time is over."""
    alarms: list[int] = []
    rang = threading.Event()

    def alarm() -> None:
        alarms.append(1)
        rang.set()

    watchdog = Watchdog()
    watch = watchdog.watch(alarm)
    watch.arm(0.01)
    assert rang.wait(WAIT_SECONDS)
    assert watch.has_fired
    second = threading.Event()
    watchdog.watch(second.set).arm(0.05)
    assert second.wait(WAIT_SECONDS)
    assert alarms == [1]


def test_watch_that_is_disarmed_stays_quiet() -> None:
    """A response in time ends the wait; a later watch shows that the time has passed."""
    watchdog = Watchdog()
    quiet, later = threading.Event(), threading.Event()
    watch, last = watchdog.watch(quiet.set), watchdog.watch(later.set)

    def arm_and_disarm() -> None:
        # On the thread that would raise the alarm, so that it cannot do so in between.
        watch.arm(0.01)
        watch.disarm()
        last.arm(0.05)

    watchdog.watch(arm_and_disarm).arm(0.0)
    assert later.wait(WAIT_SECONDS)
    assert not quiet.is_set()


def test_watch_that_is_due_sooner_is_not_kept_waiting() -> None:
    """The thread wakes for a wait that ends earlier than the one it sleeps for."""
    watchdog = Watchdog()
    watchdog.watch(lambda: None).arm(3600)
    rang = threading.Event()
    watchdog.watch(rang.set).arm(0.01)
    assert rang.wait(WAIT_SECONDS)


def test_watch_may_be_armed_again_by_its_alarm() -> None:
    """An alarm can so be raised in two steps."""
    watchdog = Watchdog()
    rang = threading.Event()
    rings: list[int] = []

    def alarm() -> None:
        rings.append(1)
        if len(rings) == 2:
            rang.set()
        else:
            watch.arm(0.01)

    watch = watchdog.watch(alarm)
    watch.arm(0.01)
    assert rang.wait(WAIT_SECONDS)


def test_watch_that_is_closed_is_forgotten() -> None:
    """Watches of streams that ended do not accumulate."""
    watchdog = Watchdog()

    class Alarm:
        def __call__(self) -> None:
            raise AssertionError

    alarm = Alarm()
    gone = weakref.ref(alarm)
    watchdog.watch(alarm).close()
    del alarm
    rang = threading.Event()
    watchdog.watch(rang.set).arm(0.01)
    assert rang.wait(WAIT_SECONDS)
    gc.collect()
    assert gone() is None
