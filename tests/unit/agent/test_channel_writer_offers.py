"""Batches that a source offers once, because a caller waits for the response."""

import asyncio

import pytest

from millrace_server.agent.components import ComponentState
from millrace_server.agent.selectors import LoadBalancingConfig, SelectorConfig
from millrace_server.errors import BadArgumentError, ChannelFullError, TxnCapacityError
from tests.channel_events import append
from tests.source_writers import batch_stamp, component_of, held, memory, registry_of, table_of, writer_of

HAS_VIRTUAL_CLOCK = True


async def test_offer_of_a_batch_that_cannot_be_cut_is_refused() -> None:
    """The batch is wrong: the source continues."""
    registry, component = registry_of(a=memory(capacity=4)), component_of()
    writer = writer_of(registry, ["a"], component=component)
    writer.report_running()
    with pytest.raises(TxnCapacityError):
        await writer.try_deliver(table_of(*[b"1"] * 5), batch_stamp(0, 99))
    assert component.state is ComponentState.RUNNING


async def test_offer_when_a_channel_is_full_is_refused_and_can_be_repeated() -> None:
    """The same events with the same stamp are stored once."""
    registry, component = registry_of(a=memory(), b=memory(capacity=1)), component_of()
    await append(registry.get("b"), b"x")
    writer = writer_of(registry, ["a", "b"], component=component)
    table, stamp = table_of(b"1"), writer.next_stamp(1)
    with pytest.raises(ChannelFullError):
        await writer.try_deliver(table, stamp)
    assert component.failure_count == 1
    await registry.get("b").purge()
    for _ in range(2):
        await writer.try_deliver(table, stamp)
    assert held(registry, "a", "b") == {"a": [b"1"], "b": [b"1"]}
    assert component.state is ComponentState.RUNNING


@pytest.mark.parametrize("selector", [None, LoadBalancingConfig(type="load_balancing")])
async def test_offer_that_was_refused_is_forgotten_once_there_is_space(selector: SelectorConfig | None) -> None:
    """The source is healthy again even if the caller does not return for long."""
    registry = registry_of(a=memory(capacity=2, keep_alive_seconds=0.0), b=memory(capacity=2, keep_alive_seconds=0.0))
    component = component_of()
    writer = writer_of(registry, ["a", "b"], component=component, selector=selector)
    for name in ("a", "b"):
        await append(registry.get(name), b"1", b"2")
    with pytest.raises(ChannelFullError):
        await writer.try_deliver(table_of(b"3", b"4"), batch_stamp(0, 1))
    await asyncio.sleep(10.0)
    assert not component.state.is_healthy
    await registry.get("a").purge()
    await asyncio.sleep(1.0)
    # If an event may go to any channel, one with space is enough.
    assert component.state.is_healthy is (selector is not None)
    await registry.get("b").purge()
    await asyncio.sleep(1.0)
    assert component.state.is_healthy


async def test_offer_that_was_refused_does_not_hide_what_went_wrong_later() -> None:
    """Space in the channels does not clear a later failure of the source itself."""
    registry, component = registry_of(a=memory(capacity=1, keep_alive_seconds=0.0)), component_of()
    writer = writer_of(registry, ["a"], component=component)
    await append(registry.get("a"), b"1")
    with pytest.raises(ChannelFullError):
        await writer.try_deliver(table_of(b"2"), batch_stamp(0, 0))
    component.mark_backing_off("its port is in use")
    await registry.get("a").purge()
    await asyncio.sleep(1.0)
    assert (component.state, component.reason) == (ComponentState.BACKING_OFF, "its port is in use")


async def test_offer_that_is_malformed_says_nothing_about_the_source() -> None:
    """A caller's mistake is not a failure of the source."""
    registry, component = registry_of(a=memory()), component_of()
    writer = writer_of(registry, ["a"], component=component)
    await writer.try_deliver(table_of(b"1"), batch_stamp(0, 9))
    with pytest.raises(BadArgumentError):
        await writer.try_deliver(table_of(b"2"), batch_stamp(5, 14))
    assert component.state is ComponentState.RUNNING
