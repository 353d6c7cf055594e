import asyncio

from structlog.testing import capture_logs

from millrace_server.agent.components import ComponentState
from millrace_server.agent.selectors import ReplicatingConfig
from millrace_server.errors import ChannelLogFailedError, DiskFullError
from tests.channel_events import append
from tests.slow_commits import SlowCommits
from tests.source_writers import (
    batch_stamp,
    component_of,
    held,
    memory,
    outcomes_of,
    ranges_of,
    registry_of,
    table_of,
    writer_of,
)
from tests.virtual_clock import now, settle

HAS_VIRTUAL_CLOCK = True

OPTIONAL = ReplicatingConfig(type="replicating", optional=["b"])


async def test_deliver_stores_events_in_optional_channels_too() -> None:
    """They get no numbers: the source does not resume by them."""
    registry, component = registry_of(a=memory(), b=memory()), component_of()
    writer = writer_of(registry, ["a", "b"], component=component, selector=OPTIONAL)
    await writer.deliver(table_of(b"1"), batch_stamp(0, 9))
    assert held(registry, "a", "b") == {"a": [b"1"], "b": [b"1"]}
    assert writer.stored_ranges("file") == [[(0, 9)]]
    assert ranges_of(registry.get("b")) == []


async def test_deliver_again_stores_no_second_copy_in_an_optional_channel() -> None:
    """A repeat of a batch that is stored is not offered again."""
    registry = registry_of(a=memory(), b=memory())
    writer = writer_of(registry, ["a", "b"], selector=OPTIONAL)
    for _ in range(2):
        await writer.deliver(table_of(b"1"), batch_stamp(0, 9))
    assert held(registry, "b") == {"b": [b"1"]}


async def test_deliver_when_a_required_channel_fails_offers_nothing_yet() -> None:
    """A batch is offered once, when all required channels have stored it."""
    registry = registry_of(a=memory(), b=memory())
    slow = SlowCommits(registry.get("a"))
    writer = writer_of(registry, ["a", "b"], selector=OPTIONAL)
    delivering = asyncio.ensure_future(writer.deliver(table_of(b"1"), batch_stamp(0, 9)))
    await settle()
    slow.refuse(DiskFullError("no space"))
    await settle()
    assert held(registry, "b") == {"b": []}
    await asyncio.sleep(1)
    slow.let_last()
    await delivering
    assert held(registry, "a", "b") == {"a": [b"1"], "b": [b"1"]}


async def test_deliver_when_an_optional_channel_is_full_has_it_miss_the_events_at_once() -> None:
    """It causes no delay; the missed events are counted, and logged once."""
    registry, component = registry_of(a=memory(), b=memory(capacity=1)), component_of()
    await append(registry.get("b"), b"x")
    writer = writer_of(registry, ["a", "b"], component=component, selector=OPTIONAL)
    with capture_logs() as entries:
        for _ in range(3):
            await writer.deliver(table_of(b"1"), writer.next_stamp(1))
    assert now() == 0
    assert held(registry, "a", "b") == {"a": [b"1"] * 3, "b": [b"x"]}
    assert (outcomes_of(component), component.state) == ({"missed": 3}, ComponentState.RUNNING)
    [entry] = entries
    assert (entry["event"], entry["channel"]) == ("an optional channel missed events", "b")
    assert entry["reason"].startswith("CHANNEL_FULL:")


async def test_deliver_without_an_optional_channel_continues() -> None:
    """The same for a deleted channel, or one whose log has failed."""
    registry, component = registry_of(a=memory()), component_of()
    writer = writer_of(registry, ["a", "b"], component=component, selector=OPTIONAL)
    await writer.deliver(table_of(b"1"), writer.next_stamp(1))
    registry.create("b", memory())
    slow = SlowCommits(registry.get("b"))
    slow.refusal = ChannelLogFailedError("the log has failed")
    await writer.deliver(table_of(b"1"), writer.next_stamp(1))
    assert (outcomes_of(component), held(registry, "a", "b")) == ({"missed": 2}, {"a": [b"1"] * 2, "b": []})


async def test_deliver_of_an_event_that_an_optional_channel_never_takes_has_it_miss_that_one_only() -> None:
    """It gets the others of the batch; nothing becomes a dead letter because of it."""
    registry, component = registry_of(a=memory(), b=memory(body_bytes_max=10), dead=memory()), component_of()
    writer = writer_of(registry, ["a", "b"], component=component, selector=OPTIONAL, dead_letter_channel="dead")
    await writer.deliver(table_of(b"1", bytes(11), b"2"), batch_stamp(0, 9))
    assert held(registry, "b", "dead") == {"b": [b"1", b"2"], "dead": []}
    assert outcomes_of(component) == {"missed": 1}


async def test_deliver_when_the_disk_of_an_optional_channel_fails_counts_what_it_missed() -> None:
    """This holds even if the failure becomes known long after the batch was acknowledged."""
    registry, component = registry_of(a=memory(), b=memory()), component_of()
    slow = SlowCommits(registry.get("b"))
    writer = writer_of(registry, ["a", "b"], component=component, selector=OPTIONAL)
    await writer.deliver(table_of(b"1", b"2"), writer.next_stamp(2))
    assert outcomes_of(component) == {}
    slow.refuse(DiskFullError("no space"))
    await settle()
    assert outcomes_of(component) == {"missed": 2}


async def test_deliver_when_the_disk_of_an_optional_channel_is_slow_keeps_a_bounded_number_of_batches() -> None:
    """Pending batches are in memory; beyond the limit the channel misses them."""
    registry, component = registry_of(a=memory(), b=memory()), component_of()
    slow = SlowCommits(registry.get("b"))
    writer = writer_of(registry, ["a", "b"], component=component, selector=OPTIONAL)
    for _ in range(20):
        await writer.deliver(table_of(b"1"), writer.next_stamp(1))
    assert (len(slow.in_flight), outcomes_of(component)) == (16, {"missed": 4})
    slow.let_last()
    await settle()
    await writer.deliver(table_of(b"1"), writer.next_stamp(1))
    assert len(slow.in_flight) == 1
