"""The interceptors of a source run on a thread."""

from typing import Any

import pytest

from millrace_server.agent.events import EventTable
from millrace_server.agent.interceptors.interceptor import EventsRefusedError
from millrace_server.agent.interceptors.regexes import RegexFilterConfig
from millrace_server.channels.commit import Receipt
from millrace_server.channels.registry import ChannelRegistry
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import BadArgumentError, EventTooLargeError, InternalError
from tests.channel_events import append
from tests.source_writers import component_of, held, memory, outcomes_of, ranges_of, registry_of, writer_of
from tests.unit.agent.sources.grpc.grpc_sources import BY_KIND, REPEATED, STORED, both, of_kinds, opened_entrance

DROPPING = RegexFilterConfig(type="regex_filter", pattern="^drop", action="drop")


def refusing_writer(registry: ChannelRegistry, *interceptors: Any, **more: Any) -> Any:
    """A writer whose source tells its callers what it can never store."""
    writer = writer_of(registry, ["a", "b"], *interceptors, **more)
    writer.router._has_callers = True
    return writer


async def test_append_that_overlaps_earlier_ones_is_cut_where_each_channel_needs_it() -> None:
    """A dropped event, and one that went elsewhere, are known as repeats too, whatever the bounds of the batches."""
    registry = registry_of(a=memory(), b=memory())
    component = component_of()
    writer = writer_of(registry, ["a", "b"], DROPPING.make(), selector=BY_KIND, component=component)
    async with opened_entrance(writer) as entrance:

        async def send(stamp: Stamp, **kinds: str) -> Receipt:
            return await entrance.appends.append([of_kinds(**kinds)], stamp)

        assert await send(Stamp("p", 1, 3), e1="a", drop2="b", e3="b") == STORED
        assert await send(Stamp("p", 2, 5), drop2="b", e3="b", e4="both", e5="a") == REPEATED
        assert await send(Stamp("p", 1, 6), e1="a", drop2="b", e3="b", e4="both", e5="a", e6="b") == REPEATED
    assert held(registry, "a", "b") == {"a": [b"e1", b"e4", b"e5"], "b": [b"e3", b"e4", b"e6"]}
    assert [ranges_of(registry.get(name), "p") for name in "ab"] == [[(1, 6)]] * 2
    assert outcomes_of(component) == {"filtered": 1}
    assert component.event_count == 6


class _Refusing:
    def intercept(self, table: EventTable) -> EventTable:
        reasons = {index: "no good" for index, body in enumerate(table.bodies) if body == b"bad"}
        if reasons:
            raise EventsRefusedError(reasons)
        return table


async def test_append_that_an_interceptor_refuses_in_part_is_refused_whole() -> None:
    """Nothing is lost: the caller has it."""
    registry = registry_of(a=memory(), b=memory())
    async with opened_entrance(refusing_writer(registry, _Refusing())) as entrance:
        with pytest.raises(BadArgumentError, match=r"interceptors\[0\] refuses 1 of them: no good"):
            await append(entrance, b"good", b"bad")
    assert held(registry, "a", "b") == {"a": [], "b": []}


@pytest.mark.parametrize("stamp", [None, Stamp("p", 1, 2)])
async def test_append_that_an_interceptor_refuses_in_part_is_divided_with_a_dead_letter_channel(
    stamp: Stamp | None,
) -> None:
    """The refused events are set aside, and the others stored."""
    registry = registry_of(a=memory(), b=memory(), dead=memory())
    writer = refusing_writer(registry, _Refusing(), dead_letter_channel="dead")
    async with opened_entrance(writer) as entrance:
        assert await append(entrance, b"good", b"bad", stamp=stamp) == STORED
    assert held(registry, "a", "b", "dead") == {"a": [b"good"], "b": [b"good"], "dead": [b"bad"]}


class _Broken:
    def intercept(self, _table: EventTable) -> EventTable:
        raise ValueError("a secret of the interceptor")


async def test_append_whose_interceptor_is_broken_is_refused_without_its_internals() -> None:
    """Only the server's log and the source's state have them."""
    registry = registry_of(a=memory(), b=memory())
    component = component_of()
    async with opened_entrance(writer_of(registry, ["a", "b"], _Broken(), component=component)) as entrance:
        with pytest.raises(InternalError) as caught:
            await append(entrance, b"1")
    assert "secret" not in str(caught.value)
    assert "secret" in component.reason


class _Enlarging:
    def intercept(self, table: EventTable) -> EventTable:
        table.bodies = [body * 3 for body in table.bodies]
        return table


async def test_append_whose_events_become_too_large_for_a_channel_is_refused_whole() -> None:
    """The channel is named, since the caller has not sent such a large event."""
    registry = registry_of(a=memory(), b=memory(body_bytes_max=4))
    async with opened_entrance(refusing_writer(registry, _Enlarging())) as entrance:
        with pytest.raises(EventTooLargeError, match="channel 'b' can never accept 1 of them"):
            await append(entrance, b"1", b"12")
    assert held(registry, "a", "b") == both([])
