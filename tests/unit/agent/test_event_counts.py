"""What `millrace_component_events_total` counts: each event once, whatever happens on the way."""

import asyncio

import pytest

from millrace_server.agent.channel_reader import ChannelReader, ReaderLimits
from millrace_server.agent.components import Component, ComponentKind
from millrace_server.agent.supervision import ComponentError
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.errors import DiskFullError
from tests.channel_events import append
from tests.slow_commits import SlowCommits
from tests.source_writers import batch_stamp, component_of, memory, outcomes_of, registry_of, table_of, writer_of
from tests.virtual_clock import settle

HAS_VIRTUAL_CLOCK = True


def counts_of(component: Component) -> tuple[int, int]:
    return component.event_count, component.batch_count


async def test_source_that_repeats_a_batch_counts_it_once() -> None:
    """After a refusal of a disk it is tried again; when it is stored, a repeat is only recognized."""
    registry, component = registry_of(a=memory(), b=memory()), component_of()
    slow = SlowCommits(registry.get("a"))
    writer = writer_of(registry, ["a", "b"], component=component)
    delivering = asyncio.ensure_future(writer.deliver(table_of(b"1", b"2"), batch_stamp(0, 1)))
    await settle()
    slow.refuse(DiskFullError("no space"))
    await asyncio.sleep(1)
    slow.let_last()
    await delivering
    again = asyncio.ensure_future(writer.deliver(table_of(b"1", b"2"), batch_stamp(0, 1)))
    await settle()
    slow.let_last()
    await again
    assert counts_of(component) == (2, 1)


async def test_source_that_is_cancelled_while_its_batch_is_written_counts_it() -> None:
    """It is stored all the same, and a repeat does not count."""
    registry, component = registry_of(a=memory()), component_of()
    slow = SlowCommits(registry.get("a"))
    writer = writer_of(registry, ["a"], component=component)
    for _ in range(2):
        delivering = asyncio.ensure_future(writer.deliver(table_of(b"1", b"2"), batch_stamp(0, 1)))
        await settle()
        delivering.cancel()
        await settle()
    slow.let_last()
    assert (counts_of(component), registry.get("a").counters.put_successes) == ((2, 1), 2)


async def test_source_that_is_cancelled_while_its_batch_waits_for_space_counts_nothing() -> None:
    """Nothing is stored."""
    registry, component = registry_of(a=memory(capacity=1)), component_of()
    await append(registry.get("a"), b"x")
    delivering = asyncio.ensure_future(
        writer_of(registry, ["a"], component=component).deliver(table_of(b"1"), batch_stamp(0, 0))
    )
    await settle()
    delivering.cancel()
    await settle()
    assert counts_of(component) == (0, 0)


async def test_source_that_cuts_a_batch_drops_an_event_once() -> None:
    """An event that no channel takes counts with the smaller batch that is stored, not with the refused one."""
    registry, component = registry_of(a=memory(capacity=100, transaction_capacity=4, body_bytes_max=10)), component_of()
    writer = writer_of(registry, ["a"], component=component)
    bodies = [bytes(11), *[b"x"] * 6]
    with pytest.raises(ComponentError, match="too large"):
        await writer.deliver(table_of(*bodies), batch_stamp(0, 99))
    assert (counts_of(component), outcomes_of(component)) == ((0, 0), {})
    await writer.deliver(table_of(*bodies[:4]), batch_stamp(0, 49))
    await writer.deliver(table_of(*bodies[4:]), batch_stamp(50, 99))
    assert (counts_of(component), outcomes_of(component)) == ((7, 2), {"dropped": 1})
    assert registry.get("a").counters.put_successes == 6


class Sink:
    """A channel of two events, of which a sink has taken the first."""

    def __init__(self) -> None:
        self.registry: ChannelRegistry = registry_of(orders=memory())
        self.component = Component(ComponentKind.SINK, "out", "test", lambda _component: None)
        self.reader = ChannelReader(self.registry, "orders", ReaderLimits(1, 1, None), self.component)

    async def settling(self) -> "asyncio.Task[None]":
        """Begins to settle the next event; its removal waits for the disk."""
        delivery = await self.reader.take()
        assert delivery is not None
        task = asyncio.create_task(delivery.settle())
        await settle()
        return task


async def test_sink_that_is_cancelled_while_its_events_are_removed_counts_them() -> None:
    """As for a sink of a group that another one replaces."""
    sink = Sink()
    await append(sink.registry.get("orders"), b"1")
    slow = SlowCommits(sink.registry.get("orders"))
    settling = await sink.settling()
    settling.cancel()
    sink.reader.nack_all()
    assert counts_of(sink.component) == (0, 0)
    slow.let_last()
    await settle()
    assert (counts_of(sink.component), sink.registry.get("orders").counters.take_successes) == ((1, 1), 1)


async def test_sink_whose_events_return_counts_them_when_they_leave() -> None:
    """They are delivered twice, and left the channel once."""
    sink = Sink()
    await append(sink.registry.get("orders"), b"1")
    slow = SlowCommits(sink.registry.get("orders"))
    settling = await sink.settling()
    slow.refuse(DiskFullError("no space"))
    with pytest.raises(DiskFullError):
        await settling
    assert counts_of(sink.component) == (0, 0)
    settling = await sink.settling()
    slow.let_last()
    await settling
    assert counts_of(sink.component) == (1, 1)
