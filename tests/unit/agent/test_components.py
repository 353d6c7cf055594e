from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from millrace_server.agent.components import Component, ComponentKind, Components, ComponentState


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with capture_logs() as entries:
        yield entries


@pytest.fixture
def component(log: list[Any]) -> Component:
    return Components().add(ComponentKind.SINK, "collector", "millrace")


def reported(log: list[Any]) -> list[tuple[str, str]]:
    return [(entry["event"], entry.get("reason", entry.get("after", ""))) for entry in log]


def test_mark_backing_off_for_long_is_one_line_and_one_more_at_its_end(component: Component, log: list[Any]) -> None:
    """The state has the reason all the while, and each attempt is counted."""
    for attempt in range(50):
        component.mark_backing_off(f"cannot reach collector-1:7070, attempt {attempt}")
    assert (component.state, component.failure_count) == (ComponentState.BACKING_OFF, 50)
    assert component.reason == "cannot reach collector-1:7070, attempt 49"
    component.record_progress(10, 100)
    assert (component.state, component.reason) == (ComponentState.RUNNING, "")
    assert reported(log) == [
        ("backs off", "cannot reach collector-1:7070, attempt 0"),
        ("works again", "cannot reach collector-1:7070, attempt 49"),
    ]
    assert {entry["sink"] for entry in log} == {"collector"}


def test_mark_backing_off_for_alternating_reasons_does_not_flood(component: Component, log: list[Any]) -> None:
    """Two reasons in turns are two lines."""
    for _ in range(100):
        component.mark_backing_off("it refused")
        component.mark_backing_off("it timed out")
    assert reported(log) == [("backs off", "it refused"), ("backs off", "it timed out")]


def test_mark_backing_off_and_running_in_turns_does_not_flood(component: Component, log: list[Any]) -> None:
    """If every other batch fails, a few failures are logged, each with its recovery."""
    for _ in range(200):
        component.mark_backing_off("it timed out")
        component.record_progress(1, 1)
    events = [event for event, _ in reported(log)]
    assert events == ["backs off", "works again"] * (len(events) // 2)
    assert 1 <= len(events) // 2 <= 5


def test_mark_backing_off_for_a_bug_logs_its_traceback_once(component: Component, log: list[Any]) -> None:
    """One traceback is enough to fix it."""
    error = ZeroDivisionError("division by zero")
    for _ in range(10):
        component.mark_backing_off("ZeroDivisionError: division by zero", unexpected=error)
    [entry] = log
    assert (entry["exc_info"], entry["log_level"]) == (error, "error")


def test_mark_backing_off_keeps_the_time_at_which_it_began(component: Component) -> None:
    """`since` shows how long the outage lasts, whatever the reasons were."""
    component.mark_backing_off("first")
    since = component.since
    component.mark_backing_off("second")
    assert component.since == since
    assert component.reason == "second"


def test_mark_failed_after_backing_off_for_the_same_reason_is_logged(component: Component, log: list[Any]) -> None:
    """The end of all retries is news."""
    component.mark_backing_off("no key")
    component.mark_failed("no key")
    assert reported(log) == [("backs off", "no key"), ("failed", "no key")]
    assert component.state is ComponentState.FAILED


def test_mark_failed_after_many_failures_is_logged_nevertheless(component: Component, log: list[Any]) -> None:
    """The rate limit does not hide it."""
    for number in range(100):
        component.mark_backing_off("x" * number)
    component.mark_failed("no key")
    assert reported(log)[-1] == ("failed", "no key")


def test_mark_stopped_is_final(component: Component) -> None:
    """A late task changes nothing, and breaks nothing."""
    component.mark_stopped("its work is done")
    component.record_progress(1, 1)
    component.mark_backing_off("late")
    component.mark_failed("late")
    assert (component.state, component.reason) == (ComponentState.STOPPED, "its work is done")


def test_mark_ready_after_a_failure_keeps_the_state(component: Component) -> None:
    """The start of an attempt is not a success."""
    component.mark_backing_off("it refused")
    component.mark_ready()
    assert (component.state, component.reason) == (ComponentState.BACKING_OFF, "it refused")
    component.mark_running()
    component.mark_ready()
    assert (component.state, component.reason) == (ComponentState.RUNNING, "")


def test_progress_age_before_any_progress_is_none(component: Component) -> None:
    """No value is invented."""
    assert component.progress_age_seconds is None
    component.record_progress(3, 30)
    assert component.progress_age_seconds is not None
    assert 0.0 <= component.progress_age_seconds < 60.0
    assert (component.event_count, component.batch_count, component.byte_count) == (3, 1, 30)


def test_watch_reports_states_and_not_reasons() -> None:
    """The health service is not called for each attempt."""
    components = Components()
    seen: list[tuple[str, ComponentState]] = []
    components.watch(lambda component: seen.append((component.name, component.state)))
    component = components.add(ComponentKind.SOURCE, "access", "taildir")
    component.mark_running()
    for reason in "abc":
        component.mark_backing_off(reason)
    component.mark_stopped()
    components.remove(component)
    assert [state for _, state in seen] == [
        ComponentState.STARTING,
        ComponentState.RUNNING,
        ComponentState.BACKING_OFF,
        ComponentState.STOPPED,
        ComponentState.STOPPED,
    ]
    assert list(components) == []


def test_remove_of_a_component_whose_place_was_taken_keeps_the_new_one() -> None:
    """A replaced component does not remove its successor."""
    components = Components()
    former = components.add(ComponentKind.SINK, "a", "null")
    newer = components.add(ComponentKind.SINK, "a", "null")
    components.remove(former)
    assert components.find(ComponentKind.SINK, "a") is newer
    assert components.find(ComponentKind.SOURCE, "a") is None
