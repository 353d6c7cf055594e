import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from millrace.dead_letters import DEAD_LETTER_PREFIX
from millrace_server.agent.components import ComponentState
from millrace_server.agent.events import EventTable, part_of
from millrace_server.agent.interceptors.interceptor import EventsRefusedError, QuickInterceptor
from millrace_server.agent.selectors import LoadBalancingConfig, MultiplexingConfig, ReplicatingConfig
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import ChannelNotFoundError, DiskFullError, InternalError
from tests.channel_events import append
from tests.slow_commits import SlowCommits
from tests.source_writers import (
    MESSAGE_BYTES_MAX,
    batch_stamp,
    component_of,
    held,
    memory,
    outcomes_of,
    ranges_of,
    registry_of,
    rows_in,
    table_of,
    writer_of,
)
from tests.virtual_clock import settle, started

HAS_VIRTUAL_CLOCK = True

LONG_SECONDS = 100.0
"""Longer than any delay between two attempts."""


def letters_in(registry: ChannelRegistry, name: str = "dead") -> list[tuple[dict[str, str], bytes]]:
    """Returns the dead letters in a channel: the fields of each except the time, and the body."""
    letters = []
    for headers, body in rows_in(registry, name):
        reported = {
            k.removeprefix(DEAD_LETTER_PREFIX): v for k, v in headers.items() if k.startswith(DEAD_LETTER_PREFIX)
        }
        assert reported.pop("time").endswith("+00:00")
        letters.append((reported, body))
    return letters


class Mark(QuickInterceptor):
    """Sets a header of all events, and drops the first one if asked to."""

    def __init__(self, *, drops_first: bool = False) -> None:
        self.calls = 0
        self._drops_first = drops_first

    def intercept(self, table: EventTable) -> EventTable:
        self.calls += 1
        table.headers["marked"] = str(self.calls)
        return table.chosen([index > 0 for index in range(table.count)]) if self._drops_first else table


class Refuse(QuickInterceptor):
    """Refuses some events, once."""

    def __init__(self, *bodies: bytes) -> None:
        self._bodies = bodies

    def intercept(self, table: EventTable) -> EventTable:
        reasons = {index: "never liked" for index, body in enumerate(table.bodies) if body in self._bodies}
        if reasons:
            raise EventsRefusedError(reasons)
        return table


class Fail(QuickInterceptor):
    """Raises its errors one by one."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def intercept(self, table: EventTable) -> EventTable:
        if self.errors:
            raise self.errors.pop()
        return table


async def test_deliver_to_several_channels_stores_in_all_and_counts_once() -> None:
    """The source delivered its events once, wherever they were stored."""
    registry, component = registry_of(a=memory(), b=memory()), component_of()
    writer = writer_of(registry, ["a", "b"], component=component)
    await writer.deliver(table_of(b"1", b"22"), writer.next_stamp(2))
    assert held(registry, "a", "b") == {"a": [b"1", b"22"], "b": [b"1", b"22"]}
    assert (component.event_count, component.batch_count, component.byte_count) == (2, 1, 3)
    assert component.state is ComponentState.RUNNING
    assert outcomes_of(component) == {}


async def test_deliver_again_is_acknowledged_and_counts_nothing() -> None:
    """A batch that is already stored is not counted again."""
    registry, component, mark = registry_of(a=memory()), component_of(), Mark()
    writer = writer_of(registry, ["a"], mark, component=component)
    for _ in range(2):
        await writer.deliver(table_of(b"1"), batch_stamp(0, 9))
    assert (held(registry, "a"), component.event_count, mark.calls) == ({"a": [b"1"]}, 1, 1)


async def test_deliver_of_no_events_has_the_channels_accept_the_numbers() -> None:
    """A range of a file may contain no event to store."""
    registry = registry_of(a=memory(), b=memory())
    writer = writer_of(registry, ["a", "b"])
    await writer.deliver(table_of(), batch_stamp(0, 9))
    assert writer.stored_ranges("file") == [[(0, 9)], [(0, 9)]]


async def test_deliver_when_a_channel_is_full_waits_and_reports_it() -> None:
    """The state names the channel; once there is space the source runs again."""
    registry, component = registry_of(a=memory(), b=memory(capacity=1)), component_of()
    await append(registry.get("b"), b"x")
    writer = writer_of(registry, ["a", "b"], component=component)
    delivering = await started(writer.deliver(table_of(b"1"), writer.next_stamp(1)))
    await asyncio.sleep(LONG_SECONDS)
    assert not delivering.is_done
    assert (component.state, component.reason[:24]) == (ComponentState.BACKING_OFF, "channel b: CHANNEL_FULL:")
    assert component.failure_count > 3
    assert held(registry, "a", "b") == {"a": [], "b": [b"x"]}
    await registry.get("b").purge()
    await delivering.result()
    assert held(registry, "a", "b") == {"a": [b"1"], "b": [b"1"]}
    assert component.state is ComponentState.RUNNING


async def test_deliver_when_cancelled_while_it_waits_has_stored_nothing() -> None:
    """Its source reads the whole batch again."""
    registry = registry_of(a=memory(), b=memory(capacity=1))
    await append(registry.get("b"), b"x")
    writer = writer_of(registry, ["a", "b"])
    delivering = await started(writer.deliver(table_of(b"1"), batch_stamp(0, 9)))
    delivering.cancel()
    await settle()
    await writer.wait_open()
    assert writer.stored_ranges("file") == [[], []]
    assert len(registry.get("b")._contents.capacity.waiters) == 0


@pytest.mark.parametrize("is_refused", [False, True])
async def test_wait_open_after_a_cancelled_delivery_waits_for_its_outcome(*, is_refused: bool) -> None:
    """A pending commit counts as accepted: if it has failed, its events will not be read again."""
    registry = registry_of(a=memory(), b=memory())
    slow = SlowCommits(registry.get("b"))
    writer = writer_of(registry, ["a", "b"])
    delivering = await started(writer.deliver(table_of(b"1"), batch_stamp(0, 9)))
    delivering.cancel()
    opening = await started(writer.wait_open())
    assert not opening.is_done
    if is_refused:
        slow.refuse(DiskFullError("no space"))
    else:
        slow.let_last()
    await opening.result()
    assert writer.stored_ranges("file") == [[(0, 9)], [] if is_refused else [(0, 9)]]


async def test_deliver_leaves_the_source_s_table_unchanged() -> None:
    """A source may deliver the same table again: its events are not changed twice."""
    registry = registry_of(a=memory(capacity=1))
    writer = writer_of(registry, ["a"], Mark())
    table = table_of(b"1", host="h")
    await writer.deliver(table, writer.next_stamp(1))
    assert (table.headers, table.bodies, table.batch_indexes) == ({"host": "h"}, [b"1"], None)
    assert rows_in(registry, "a") == [({"host": "h", "marked": "1"}, b"1")]


async def test_deliver_tries_storing_again_without_intercepting_again() -> None:
    """Interceptors get each batch once, however long storing it takes."""
    registry, mark = registry_of(a=memory(capacity=1)), Mark()
    await append(registry.get("a"), b"x")
    delivering = await started(writer_of(registry, ["a"], mark).deliver(table_of(b"1"), batch_stamp(0, 0)))
    await asyncio.sleep(LONG_SECONDS)
    await registry.get("a").purge()
    await delivering.result()
    assert mark.calls == 1


async def test_deliver_counts_what_interceptors_drop() -> None:
    """Filtered events count as received."""
    registry, component = registry_of(a=memory()), component_of()
    await writer_of(registry, ["a"], Mark(drops_first=True), component=component).deliver(
        table_of(b"1", b"2"), batch_stamp(0, 1)
    )
    assert (held(registry, "a"), component.event_count, outcomes_of(component)) == ({"a": [b"2"]}, 2, {"filtered": 1})
    assert ranges_of(registry.get("a")) == [(0, 1)]


# Events and batches that are too large.


async def test_events_max_follows_the_channels() -> None:
    """It is the current minimum of the source's and all channels' limits, including optional ones."""
    registry = registry_of(a=memory(capacity=50, transaction_capacity=50), b=memory(capacity=40))
    selector = ReplicatingConfig(type="replicating", optional=["b"])
    writer = writer_of(registry, ["a", "b"], selector=selector, events_max=100)
    assert writer.events_max == 40
    assert not await registry.get("a").update(memory(capacity=50, transaction_capacity=7))
    assert writer.events_max == 7


async def test_body_bytes_max_follows_the_channels() -> None:
    """Interceptors may enlarge bodies, so it is half of the smallest channel's limit."""
    registry = registry_of(a=memory(body_bytes_max=1_000), b=memory())
    writer = writer_of(registry, ["a", "b"])
    assert writer.body_bytes_max == 500
    assert not await registry.get("a").update(memory(body_bytes_max=100))
    assert writer.body_bytes_max == 50
    assert writer_of(registry_of(a=memory()), ["a"]).body_bytes_max == 8 << 20


async def test_deliver_of_a_large_numbered_batch_stores_it_in_pieces() -> None:
    """A source that ignores the limits has its events stored nevertheless, in order."""
    registry = registry_of(a=memory(capacity=10, transaction_capacity=3, body_bytes_max=100))
    writer = writer_of(registry, ["a"])
    bodies = [b"%d" % number for number in range(10)]
    await writer.deliver(EventTable(bodies, {"n": [str(number) for number in range(10)]}), writer.next_stamp(10))
    assert rows_in(registry, "a") == [({"n": str(number)}, body) for number, body in enumerate(bodies)]
    assert [batch.count for batch in registry.get("a")._contents.queue] == [3, 3, 3, 1]


async def test_deliver_of_a_batch_that_grows_too_large_cuts_it_further() -> None:
    """Interceptors may make a part larger than the channel's limit."""
    registry = registry_of(a=memory(body_bytes_max=100))

    class Grow(QuickInterceptor):
        def intercept(self, table: EventTable) -> EventTable:
            table.bodies = [body * 10 for body in table.bodies]
            return table

    writer = writer_of(registry, ["a"], Grow())
    delivering = await started(writer.deliver(table_of(*[bytes(5)] * 4), writer.next_stamp(4)))
    await asyncio.sleep(1)
    assert held(registry, "a") == {"a": [bytes(50)] * 2}
    await registry.get("a").purge()
    await delivering.result()
    assert held(registry, "a") == {"a": [bytes(50)] * 2}


async def test_deliver_of_a_batch_that_cannot_be_cut_has_it_read_again_in_smaller_ones() -> None:
    """The number of each event is unknown, so only the source can cut the batch; nothing of it is stored."""
    registry = registry_of(a=memory(), b=memory(capacity=4))
    writer = writer_of(registry, ["a", "b"])
    with pytest.raises(ComponentError, match="channel b: TXN_CAPACITY"):
        await writer.deliver(table_of(*[b"1"] * 5), batch_stamp(0, 99))
    assert held(registry, "a", "b") == {"a": [], "b": []}
    assert writer.events_max == 2
    for number in range(100):
        await writer.deliver(table_of(b"1"), batch_stamp(number, number, "other"))
        for name in "ab":
            await registry.get(name).purge()
    assert writer.events_max == 4


async def test_deliver_of_a_batch_that_overlaps_in_part_has_the_source_read_again() -> None:
    """A retry would never help; the next run reads what is stored."""
    registry = registry_of(a=memory())
    writer = writer_of(registry, ["a"])
    await writer.deliver(table_of(b"1"), batch_stamp(0, 9))
    with pytest.raises(ComponentError, match="does not match what is stored: channel a: BAD_ARGUMENT"):
        await writer.deliver(table_of(b"2"), batch_stamp(5, 14))


@pytest.mark.parametrize("is_encodable", [True, False])
async def test_deliver_with_an_event_that_no_channel_takes_dead_letters_it(*, is_encodable: bool) -> None:
    """A bad event does not end the source: it goes to the dead-letter channel with the reason."""
    registry, component = registry_of(a=memory(body_bytes_max=100), b=memory(), dead=memory()), component_of()
    writer = writer_of(registry, ["a", "b"], component=component, dead_letter_channel="dead")
    bad = bytes(101) if is_encodable else b"bad"
    headers = {} if is_encodable else {f"h{number}": [None, "x", None] for number in range(300)}
    await writer.deliver(EventTable([b"1", bad, b"2"], headers), batch_stamp(0, 9))
    expected = [b"1", b"2"]
    if is_encodable:
        assert held(registry, "a", "b") == {"a": expected, "b": [b"1", bad, b"2"]}
        reported = {
            "reason": "events: a body has 101 bytes; byte_capacity allows 100 in all",
            "channel": "a",
            "source": "app",
        }
        assert letters_in(registry) == [(reported, bad)]
        assert outcomes_of(component) == {"dead_lettered": 1}
    else:
        # A dead letter holds the headers for which there is no space in one of its own, for each of the channels.
        assert held(registry, "a", "b", "dead") == {"a": expected, "b": expected, "dead": [bad, bad]}
        assert [reported["channel"] for reported, _ in letters_in(registry)] == ["a", "b"]
        assert outcomes_of(component) == {"dead_lettered": 2}
    assert component.state is ComponentState.RUNNING
    assert component.event_count == 3


async def test_deliver_again_after_a_crash_dead_letters_an_event_once() -> None:
    """A dead letter may be stored before its batch is; its own stamp prevents a second copy."""
    registry, component = registry_of(a=memory(body_bytes_max=10), b=memory(capacity=1), dead=memory()), component_of()
    await append(registry.get("b"), b"x")
    table = table_of(b"1", bytes(11), b"2", bytes(12), bytes(13))
    for _ in range(2):
        writer = writer_of(registry, ["a", "b"], component=component, dead_letter_channel="dead")
        delivering = await started(writer.deliver(table, batch_stamp(100, 199)))
        delivering.cancel()
        await settle()
    assert [body for _, body in letters_in(registry)] == [bytes(11), bytes(12), bytes(13)]
    assert outcomes_of(component) == {"dead_lettered": 3}


async def test_deliver_when_the_dead_letter_channel_is_full_waits_with_the_batch() -> None:
    """No event is lost for lack of space for dead letters; the batch is stored after them."""
    registry, component = registry_of(a=memory(body_bytes_max=10), dead=memory(capacity=1)), component_of()
    await append(registry.get("dead"), b"x")
    writer = writer_of(registry, ["a"], component=component, dead_letter_channel="dead")
    delivering = await started(writer.deliver(table_of(b"1", bytes(11)), batch_stamp(0, 9)))
    await asyncio.sleep(LONG_SECONDS)
    assert not delivering.is_done
    assert held(registry, "a") == {"a": []}
    assert component.reason.startswith("channel dead: CHANNEL_FULL:")
    await registry.get("dead").purge()
    await delivering.result()
    assert held(registry, "a", "dead") == {"a": [b"1"], "dead": [bytes(11)]}


async def test_deliver_without_a_dead_letter_channel_drops_what_no_channel_takes_and_reports_it_once() -> None:
    """The event is logged, with a limited rate, and counted."""
    registry, component = registry_of(a=memory(body_bytes_max=10)), component_of()
    writer = writer_of(registry, ["a"], component=component)
    with capture_logs() as entries:
        for number in range(5):
            await writer.deliver(table_of(b"1", bytes(11)), writer.next_stamp(2))
            assert outcomes_of(component) == {"dropped": number + 1}
    [entry] = [entry for entry in entries if entry["event"] == "events were dropped"]
    assert (entry["log_level"], entry["source"], entry["channel"], entry["events"]) == ("error", "app", "a", 1)
    assert entry["largest_body_bytes"] == "11"
    assert held(registry, "a") == {"a": [b"1"] * 5}


async def test_deliver_of_an_event_that_fits_no_response_drops_it() -> None:
    """An event that no consumer could take is not stored, not even as a dead letter."""
    registry, component = registry_of(a=memory(), dead=memory()), component_of()
    writer = writer_of(registry, ["a"], component=component, dead_letter_channel="dead")
    await writer.deliver(table_of(b"1", bytes(MESSAGE_BYTES_MAX), b"2"), writer.next_stamp(3))
    assert held(registry, "a", "dead") == {"a": [b"1", b"2"], "dead": []}
    assert outcomes_of(component) == {"dropped": 1}


# Interceptors that raise; test_interceptor_run checks them with threads.


async def test_deliver_when_an_interceptor_refuses_events_dead_letters_them() -> None:
    """The dead letters name the interceptor; without a dead-letter channel the events are dropped."""
    registry, component = registry_of(a=memory(), dead=memory()), component_of()
    for dead_letter_channel in ("dead", None):
        writer = writer_of(
            registry, ["a"], Mark(), Refuse(b"2"), component=component, dead_letter_channel=dead_letter_channel
        )
        await writer.deliver(table_of(b"1", b"2", b"3"), writer.next_stamp(3))
    assert held(registry, "a") == {"a": [b"1", b"3", b"1", b"3"]}
    assert letters_in(registry) == [({"reason": "never liked", "step": "interceptors[1]", "source": "app"}, b"2")]
    assert outcomes_of(component) == {"dead_lettered": 1, "dropped": 1}


async def test_deliver_when_an_interceptor_raises_loses_nothing_and_says_why() -> None:
    """The batch is retried after a delay; the log has the traceback."""
    registry, component = registry_of(a=memory()), component_of()
    failing = Fail(KeyError("host"), KeyError("host"))
    mark = Mark()
    delivering = await started(
        writer_of(registry, ["a"], mark, failing, component=component).deliver(table_of(b"1"), batch_stamp(0, 0))
    )
    assert component.state is ComponentState.BACKING_OFF
    assert component.reason == "interceptors[1] raised KeyError: 'host'"
    await delivering.result()
    assert held(registry, "a") == {"a": [b"1"]}
    # The first interceptor is not called again.
    assert mark.calls == 1


async def test_deliver_when_an_interceptor_cannot_work_now_tries_for_as_long_as_it_takes() -> None:
    """A temporary condition never turns events into dead letters."""
    registry, component = registry_of(a=memory(), dead=memory()), component_of()
    failing = Fail(*[ComponentError("the name server does not respond")] * 20)
    writer = writer_of(registry, ["a"], failing, component=component, dead_letter_channel="dead")
    delivering = await started(writer.deliver(table_of(b"1"), batch_stamp(0, 0)))
    assert component.reason == "the name server does not respond"
    await delivering.result()
    assert held(registry, "a", "dead") == {"a": [b"1"], "dead": []}


async def test_offer_when_an_interceptor_raises_is_refused_and_can_be_repeated() -> None:
    """The caller gets a retryable error; an error of a user's own code does not end the source."""
    registry, component = registry_of(a=memory()), component_of()
    writer = writer_of(registry, ["a"], Fail(KeyError("x"), ComponentError("not now")), component=component)
    table, stamp = table_of(b"1"), writer.next_stamp(1)
    for said in ("not now", "interceptors\\[0\\] raised KeyError: 'x'"):
        with pytest.raises(InternalError, match=said):
            await writer.try_deliver(table, stamp)
        assert component.state is ComponentState.BACKING_OFF
    await writer.try_deliver(table, stamp)
    assert held(registry, "a") == {"a": [b"1"]}


# Routing.


async def test_wait_open_without_a_channel_raises() -> None:
    """Only required channels are waited for."""
    registry = registry_of(a=memory())
    with pytest.raises(ChannelNotFoundError):
        await writer_of(registry, ["a", "b"]).wait_open()
    optional = ReplicatingConfig(type="replicating", optional=["b"])
    await writer_of(registry, ["a", "b"], selector=optional).wait_open()


async def test_deliver_through_a_multiplexing_selector_counts_what_goes_nowhere() -> None:
    """Unlike in Flume, such events are not dropped silently."""
    registry, component = registry_of(a=memory(), b=memory()), component_of()
    selector = MultiplexingConfig(type="multiplexing", header="kind", mapping={"x": ["a"], "y": ["b"]})
    writer = writer_of(registry, ["a", "b"], component=component, selector=selector)
    with capture_logs() as entries:
        await writer.deliver(table_of(b"1", b"2", b"3", b"4", kind=["x", "y", "z", None]), batch_stamp(0, 99))
    assert held(registry, "a", "b") == {"a": [b"1"], "b": [b"2"]}
    assert outcomes_of(component) == {"unrouted": 2}
    assert [entry["events"] for entry in entries if "no channel" in entry["event"]] == [2]
    assert writer.stored_ranges("file") == [[(0, 99)], [(0, 99)]]


@pytest.mark.parametrize("policy", ["round_robin", "random", "least_full"])
async def test_deliver_through_a_balancer_stores_each_batch_in_one_channel(policy: str) -> None:
    """All channels accept all batches, and each event is in one of them."""
    registry = registry_of(a=memory(), b=memory(), c=memory())
    selector = LoadBalancingConfig.model_validate({"type": "load_balancing", "policy": policy})
    writer = writer_of(registry, list("abc"), selector=selector)
    for number in range(60):
        await writer.deliver(table_of(b"%d" % number, b"%d+" % number), batch_stamp(10 * number, 10 * number + 9))
    stored = held(registry, *"abc")
    assert all(4 <= len(bodies) <= 80 for bodies in stored.values()), stored
    everything = sorted(body for bodies in stored.values() for body in bodies)
    assert everything == sorted(b"%d" % n + more for n in range(60) for more in (b"", b"+"))
    assert writer.stored_ranges("file") == [[(0, 599)]] * 3


async def test_deliver_through_a_balancer_dead_letters_what_none_of_its_channels_takes() -> None:
    """An event that is too large for all of them does not block the batch."""
    registry = registry_of(a=memory(body_bytes_max=10), b=memory(body_bytes_max=20), dead=memory())
    component = component_of()
    selector = LoadBalancingConfig(type="load_balancing")
    writer = writer_of(registry, ["a", "b"], component=component, selector=selector, dead_letter_channel="dead")
    await writer.deliver(table_of(b"1", bytes(30), b"2"), batch_stamp(0, 2))
    await writer.deliver(table_of(b"3", bytes(15)), batch_stamp(3, 4))
    assert held(registry, "a", "b", "dead") == {"a": [b"1", b"2"], "b": [b"3", bytes(15)], "dead": [bytes(30)]}
    assert outcomes_of(component) == {"dead_lettered": 1}


@pytest.mark.parametrize("filtered", [False, True])
async def test_deliver_through_a_balancer_without_events_counts_as_accepted_by_all(*, filtered: bool) -> None:
    """A batch without events needs no last channel."""
    registry = registry_of(a=memory(), b=memory())
    selector = LoadBalancingConfig(type="load_balancing")
    interceptors: Sequence[QuickInterceptor] = [Mark(drops_first=True)] if filtered else []
    writer = writer_of(registry, ["a", "b"], *interceptors, selector=selector)
    await writer.deliver(table_of(*([b"1"] if filtered else [])), Stamp("file", 0, 9))
    assert writer.stored_ranges("file") == [[(0, 9)], [(0, 9)]]
    assert held(registry, "a", "b") == {"a": [], "b": []}


async def test_part_of_has_the_numbers_of_its_events() -> None:
    """The rest of the stamp is unchanged."""
    part, stamp = part_of(table_of(b"0", b"1", b"2", n=["a", "b", "c"]), batch_stamp(10, 12), 1, 3)
    assert list(part.rows()) == [({"n": "b"}, b"1"), ({"n": "c"}, b"2")]
    assert stamp == batch_stamp(11, 12)
