import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace_server.agent.components import Component, ComponentKind, Components, ComponentState
from millrace_server.agent.supervision import Backoff, ComponentError, ComponentFailedError, supervise
from millrace_server.errors import ChannelFullError, NotOwnerError
from tests.waiting import until


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with capture_logs() as entries:
        yield entries


@pytest.fixture
def component(log: list[Any]) -> Component:
    return Components().add(ComponentKind.SOURCE, "access", "exec")


def quick() -> Backoff:
    return Backoff(first_seconds=0.000_1, max_seconds=0.000_1)


class Work:
    """Raises its errors, one per run; then it works until it is cancelled."""

    def __init__(self, component: Component, errors: list[Exception]) -> None:
        self._component = component
        self._errors = errors
        self.runs = 0

    async def run(self) -> None:
        self.runs += 1
        if self._errors:
            raise self._errors.pop(0)
        self._component.record_progress(1, 1)


async def test_supervise_of_an_unreachable_target_retries_and_logs_it_once(
    component: Component, log: list[Any]
) -> None:
    """N failures are one line, and the recovery another one."""
    work = Work(component, [ComponentError("cannot reach the target")] * 30)
    await supervise(component, work.run, quick())
    assert work.runs == 31
    assert [entry["event"] for entry in log] == ["backs off", "works again"]
    assert component.failure_count == 30


@pytest.mark.parametrize(
    ("address", "state"), [("mill-1:7070", ComponentState.STANDING_BY), ("", ComponentState.BACKING_OFF)]
)
async def test_supervise_where_another_server_owns_the_channel_stands_by(
    component: Component, address: str, state: ComponentState
) -> None:
    """The component at that server works, so nothing is wrong; without an owner none works."""
    work = Work(component, [NotOwnerError("channel 'orders' is elsewhere", address=address)])
    supervising = asyncio.create_task(supervise(component, work.run, Backoff(first_seconds=60.0)))
    await until(lambda: component.state is state)
    assert component.reason == "NOT_OWNER: channel 'orders' is elsewhere"
    component.retry()
    await supervising


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ChannelFullError("no space"), "CHANNEL_FULL: no space"),
        (FileNotFoundError(2, "No such file", "/log"), "[Errno 2] No such file: '/log'"),
        (TimeoutError(), "TimeoutError"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
async def test_supervise_of_any_error_says_it_and_tries_again(
    component: Component, log: list[Any], error: Exception, reason: str
) -> None:
    """Even a bug in a user's own component ends neither the component nor anything else."""
    work = Work(component, [error])
    await supervise(component, work.run, quick())
    assert work.runs == 2
    assert log[0]["reason"] == reason


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ComponentFailedError("no such user"), ComponentState.FAILED),
        (ComponentError("cannot reach the target"), ComponentState.BACKING_OFF),
    ],
)
async def test_retry_while_a_component_waits_runs_it_at_once(
    component: Component, error: Exception, state: ComponentState
) -> None:
    """A permanent failure is not retried without it, and a back-off of hours ends."""
    work = Work(component, [error, error])
    task = asyncio.create_task(supervise(component, work.run, Backoff(1e6, 1e6)))
    for runs in (1, 2):
        await until(lambda runs=runs: work.runs == runs)  # type: ignore[misc] # bound at once
        assert (component.state, component.reason) == (state, str(error))
        component.retry()
    await task
    assert (work.runs, component.state) == (3, ComponentState.STOPPED)


async def test_supervise_of_work_that_is_done_stops(component: Component) -> None:
    """A source at the end of its input has stopped, and is not run again."""
    work = Work(component, [])
    await supervise(component, work.run, quick())
    assert (work.runs, component.state) == (1, ComponentState.STOPPED)


async def test_supervise_when_cancelled_ends_without_a_word(component: Component, log: list[Any]) -> None:
    """A cancellation is not a failure."""
    task = asyncio.create_task(supervise(component, asyncio.Event().wait, quick()))  # type: ignore[arg-type] # waits
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert log == []


def test_backoff_grows_with_jitter_up_to_its_cap() -> None:
    """Each delay lies between half of its nominal length and all of it; none exceeds the cap."""
    backoff = Backoff(first_seconds=1.0, max_seconds=30.0)
    delays = [backoff.next_seconds() for _ in range(200)]
    nominal = [min(2.0**number, 30.0) for number in range(200)]
    assert all(whole / 2 <= delay <= whole for delay, whole in zip(delays, nominal, strict=True))
    assert len({round(delay, 6) for delay in delays[10:]}) > 100
    backoff.reset()
    assert backoff.next_seconds() <= 1.0


async def test_supervise_of_work_that_fails_while_it_is_cancelled_ends(component: Component) -> None:
    """After a cancellation it does not start again, whatever it raises."""
    begun = asyncio.Event()
    runs = 0

    async def run() -> None:
        nonlocal runs
        runs += 1
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise OSError("the terminal is gone")

    task = asyncio.create_task(supervise(component, run, quick()))
    await begun.wait()
    task.cancel()
    await asyncio.wait({task})
    assert runs == 1


def test_next_seconds_doubles_up_to_its_maximum() -> None:
    """Each delay between half of its nominal length and all of it, however often one fails."""
    backoff = Backoff(first_seconds=1.0, max_seconds=10.0)
    for nominal in (1.0, 2.0, 4.0, 8.0, *[10.0] * 1_000):
        assert nominal / 2 <= backoff.next_seconds() <= nominal


def test_next_seconds_of_many_are_not_the_same() -> None:
    """Components that failed together do not retry together."""
    assert len({Backoff().next_seconds() for _ in range(20)}) > 1


@pytest.mark.parametrize(
    ("asked", "least", "most"), [(2.0, 2.0, 2.5), (0.0, 0.5, 0.625), (-1.0, 0.5, 0.625), (1e9, 10, 10)]
)
def test_next_seconds_requested_are_bounded(asked: float, least: float, most: float) -> None:
    """A requested delay is bounded in both directions, and does not lengthen later ones."""
    backoff = Backoff(first_seconds=1.0, max_seconds=10.0)
    for _ in range(5):
        assert least <= backoff.next_seconds(asked) <= most
    assert backoff.next_seconds() <= 1.0


def test_reset_begins_with_the_first_delay_again() -> None:
    """Old failures do not count."""
    backoff = Backoff(first_seconds=1.0, max_seconds=10.0)
    for _ in range(5):
        backoff.next_seconds()
    backoff.reset()
    assert backoff.next_seconds() <= 1.0


def test_next_seconds_with_count_done_start_over_only_after_progress() -> None:
    """A server that accepts connections and never responds takes long to fail, and must not be retried often."""
    done = 0
    backoff = Backoff(1.0, 10.0, lambda: done)
    for _ in range(5):
        backoff.next_seconds()
        backoff.reset()
    assert backoff.next_seconds() >= 5.0
    done = 1
    assert backoff.next_seconds() <= 1.0
    assert backoff.next_seconds() > 0.99
