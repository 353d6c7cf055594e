import asyncio
import gc
import weakref
from typing import Any

import pytest

from millrace.dead_letters import DEAD_LETTER_PREFIX
from millrace_server.agent import channel_writer as writer_module
from millrace_server.agent.batch_router import STEP_TRIES_MAX
from millrace_server.agent.components import ComponentState
from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptor_run import InterceptorRun, StepError
from millrace_server.agent.interceptors.interceptor import EventsRefusedError
from millrace_server.agent.selectors import CustomSelectorConfig, Replicating
from millrace_server.agent.supervision import ComponentError
from tests.custom_interceptors import Blocking, FailingOn, Uppercase
from tests.source_writers import (
    batch_stamp,
    component_of,
    held,
    memory,
    outcomes_of,
    registry_of,
    rows_in,
    table_of,
    writer_of,
)
from tests.waiting import until


class NoBackoff:
    """Retries at once."""

    def next_seconds(self) -> float:
        return 0.0


@pytest.fixture
def quick_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets writers retry at once."""
    monkeypatch.setattr(writer_module, "Backoff", NoBackoff)


class Refuse:
    """Refuses some events, once."""

    def __init__(self, reasons: dict[int, str]) -> None:
        self._reasons = reasons

    def intercept(self, table: EventTable) -> EventTable:
        if self._reasons:
            reasons, self._reasons = self._reasons, {}
            raise EventsRefusedError(reasons)
        return table


class RefuseFirst:
    """Refuses the first event of each batch."""

    def intercept(self, table: EventTable) -> EventTable:
        raise EventsRefusedError({0: "the first"})


def run_of(*interceptors: Any, bodies: tuple[bytes, ...] = (b"0", b"1", b"2", b"3")) -> InterceptorRun:
    return InterceptorRun(interceptors, None, table_of(*bodies))


def test_resume_when_events_are_refused_passes_the_others_to_the_same_interceptor_again() -> None:
    """Refused events are reported with their indexes in the batch, grouped by reason."""
    run = run_of(Refuse({1: "too old", 3: "too new", 2: "too old"}))
    run.resume()
    assert run.table.bodies == [b"0"]
    described = [
        (refusal.reason, refusal.step, refusal.table.bodies, refusal.table.batch_indexes) for refusal in run.refusals
    ]
    assert described == [
        ("too old", "interceptors[0]", [b"1", b"2"], [1, 2]),
        ("too new", "interceptors[0]", [b"3"], [3]),
    ]


def test_resume_keeps_batch_indexes_through_filters() -> None:
    """Events dropped by an earlier interceptor do not change the indexes of refused ones."""

    class DropFirst:
        def intercept(self, table: EventTable) -> EventTable:
            return table.chosen([index > 0 for index in range(table.count)])

    run = run_of(DropFirst(), Refuse({0: "no"}))
    run.resume()
    assert run.refusals[0].table.batch_indexes == [1]
    assert run.filtered_count == 1


@pytest.mark.parametrize("reasons", [{9: "unknown"}, {-1: "unknown"}])
def test_resume_when_unknown_events_are_refused_raises(reasons: dict[int, str]) -> None:
    """A user's interceptor may refuse events that it was never given; that must not cause an endless loop."""
    with pytest.raises(StepError, match="interceptors\\[0\\] raised EventsRefusedError: unknown"):
        run_of(Refuse(reasons)).resume()


def test_resume_when_abandoned_stops() -> None:
    """A slow batch must not run for minutes after its source has ended."""
    run = run_of(RefuseFirst())
    refuse, refused = RefuseFirst.intercept, []

    def abandon_after_two(interceptor: RefuseFirst, table: EventTable) -> EventTable:
        refused.append(table.bodies[0])
        if len(refused) == 2:
            run.abandon()
        return refuse(interceptor, table)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RefuseFirst, "intercept", abandon_after_two)
        run.resume()
    assert refused == [b"0", b"1"]


def test_resume_of_no_events_calls_no_step() -> None:
    """There is nothing to do for them."""
    failing = FailingOn()
    run_of(failing, bodies=()).resume()
    assert failing.calls == 0


def test_refuse_failing_events_finds_those_that_raise_alone() -> None:
    """Bisection: two of a thousand events cost a few dozen calls, not a thousand."""
    failing = FailingOn(b"7", b"900")
    run = run_of(failing, bodies=tuple(b"%d" % number for number in range(1_000)))
    with pytest.raises(StepError):
        run.resume()
    run.refuse_failing_events()
    [refusal] = run.refusals
    assert (refusal.table.bodies, refusal.reason) == ([b"7", b"900"], "ValueError: cannot be read")
    run.resume()
    assert run.table.count == 998
    assert failing.calls < 50


def test_refuse_failing_events_where_each_event_alone_is_good_refuses_none() -> None:
    """An interceptor that raises only for the whole batch keeps its events; the source backs off."""

    class OnlySmall:
        def intercept(self, table: EventTable) -> EventTable:
            if table.count > 1:
                raise ValueError("too many")
            return table

    run = run_of(OnlySmall())
    run.refuse_failing_events()
    assert run.refusals == []


def test_refuse_failing_events_when_the_interceptor_cannot_work_now_refuses_none() -> None:
    """A temporary failure is not the fault of an event."""
    run = run_of(FailingOn(b"1", error=ComponentError("not now")))
    with pytest.raises(ComponentError):
        run.refuse_failing_events()
    assert run.refusals == []


@pytest.mark.usefixtures("quick_tries")
async def test_deliver_when_an_interceptor_always_raises_on_an_event_dead_letters_it() -> None:
    """After some attempts the other events pass, and the dead letter names the step and its error."""
    registry, component, failing = registry_of(a=memory(), dead=memory()), component_of(), FailingOn(b"2")
    writer = writer_of(registry, ["a"], failing, component=component, dead_letter_channel="dead")
    await writer.deliver(table_of(b"1", b"2", b"3"), batch_stamp(0, 9))
    assert held(registry, "a") == {"a": [b"1", b"3"]}
    [(headers, body)] = rows_in(registry, "dead")
    assert body == b"2"
    assert headers[DEAD_LETTER_PREFIX + "reason"] == "ValueError: cannot be read"
    assert headers[DEAD_LETTER_PREFIX + "step"] == "interceptors[0]"
    assert outcomes_of(component) == {"dead_lettered": 1}
    assert component.failure_count == STEP_TRIES_MAX - 1
    assert component.state is ComponentState.RUNNING


@pytest.mark.usefixtures("quick_tries")
async def test_deliver_when_an_interceptor_always_raises_and_there_is_no_dead_letter_channel_tries_on() -> None:
    """Nothing is lost because of a bug in an interceptor; the state shows it."""
    registry, component, failing = registry_of(a=memory()), component_of(), FailingOn(b"2")
    delivering = asyncio.create_task(
        writer_of(registry, ["a"], failing, component=component).deliver(table_of(b"1", b"2"), batch_stamp(0, 9))
    )
    await until(lambda: failing.calls > 20)
    assert component.reason == "interceptors[0] raised ValueError: cannot be read"
    assert (held(registry, "a"), outcomes_of(component)) == ({"a": []}, {})
    delivering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await delivering


@pytest.mark.usefixtures("quick_tries")
async def test_deliver_when_an_own_selector_raises_on_an_event_dead_letters_it() -> None:
    """A selector is the last step."""
    registry, component = registry_of(a=memory(), b=memory(), dead=memory()), component_of()
    selector = CustomSelectorConfig(type="custom", factory="tests.custom_interceptors:FirstLetter")
    writer = writer_of(registry, ["a", "b"], component=component, selector=selector, dead_letter_channel="dead")
    await writer.deliver(table_of(b"a1", b"x", b"b1"), batch_stamp(0, 9))
    assert held(registry, "a", "b", "dead") == {"a": [b"a1"], "b": [b"b1"], "dead": [b"x"]}
    [(headers, _)] = rows_in(registry, "dead")
    assert headers[DEAD_LETTER_PREFIX + "step"] == "selector"


async def test_deliver_while_an_interceptor_takes_its_time_leaves_the_loop_to_others() -> None:
    """It runs on a thread of the source's own."""
    registry, blocking = registry_of(a=memory()), Blocking()
    writer = writer_of(registry, ["a"], blocking)
    delivering = asyncio.create_task(writer.deliver(table_of(b"1"), batch_stamp(0, 0)))
    await until(blocking.is_entered.is_set)
    assert not delivering.done()
    blocking.is_released.set()
    await delivering
    assert held(registry, "a") == {"a": [b"1"]}


async def test_deliver_of_several_batches_has_interceptors_run_on_one_thread() -> None:
    """Users' interceptors need no locks, even with concurrent batches."""
    registry, uppercase = registry_of(a=memory()), Uppercase()
    writer = writer_of(registry, ["a"], uppercase, component=component_of("web"))
    await asyncio.gather(*(writer.deliver(table_of(b"x"), writer.next_stamp(1)) for _ in range(10)))
    assert uppercase.threads == {"interceptors-web"}
    assert held(registry, "a") == {"a": [b"X!"] * 10}


async def test_deliver_when_cancelled_during_an_interceptor_stores_nothing() -> None:
    """The interceptor's result is discarded."""
    registry, blocking = registry_of(a=memory()), Blocking()
    writer = writer_of(registry, ["a"], blocking)
    delivering = asyncio.create_task(writer.deliver(table_of(b"1"), batch_stamp(0, 0)))
    await until(blocking.is_entered.is_set)
    delivering.cancel()
    with pytest.raises(asyncio.CancelledError):
        await delivering
    blocking.is_released.set()
    await writer.deliver(table_of(b"2"), batch_stamp(1, 1))
    assert held(registry, "a") == {"a": [b"2"]}


def test_run_without_references_is_freed() -> None:
    """Its events must not wait for the garbage collector."""
    gc.disable()
    try:
        run = InterceptorRun([], Replicating(["orders"]), table_of(b"event"))
        run.resume()
        assert run.masks
        gone = weakref.ref(run)
        del run
        assert gone() is None
    finally:
        gc.enable()
