import asyncio
from pathlib import Path

import pytest

from millrace_server.agent.interceptors.headers import StaticConfig
from millrace_server.agent.selectors import LoadBalancingConfig, ReplicatingConfig
from millrace_server.agent.sources.grpc.source import GrpcSource
from millrace_server.agent.sources.source import SourceContext
from millrace_server.agent.supervision import ComponentFailedError
from millrace_server.channels.commit import Receipt
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import (
    BadArgumentError,
    BytesFullError,
    ChannelFullError,
    ChannelLogFailedError,
    DiskFullError,
    DrainingError,
    EventTooLargeError,
    ForbiddenError,
    InternalError,
    OffsetGapError,
    ReplayingError,
    TxnCapacityError,
)
from tests.channel_events import append, begin, begin_with_puts, make_space, stored, stored_rows
from tests.slow_commits import SlowCommits
from tests.source_writers import component_of, held, memory, outcomes_of, ranges_of, registry_of, rows_in, writer_of
from tests.unit.agent.sources.grpc.grpc_sources import (
    BY_KIND,
    REPEATED,
    STORED,
    both,
    entrance_of,
    of_kinds,
    opened_entrance,
)
from tests.virtual_clock import now, settle, started

HAS_VIRTUAL_CLOCK = True


async def test_append_is_stored_in_all_channels_as_it_came() -> None:
    """The caller's stamp is in each, and the response has no sequences, since each channel has its own."""
    registry = registry_of(a=memory(), b=memory())
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        assert await append(entrance, b"1", b"2", stamp=Stamp("p", 5, 6)) == STORED
        assert await append(entrance, b"3") == STORED
    assert held(registry, "a", "b") == both([b"1", b"2", b"3"])
    assert [ranges_of(registry.get(name), "p") for name in "ab"] == [[(5, 6)]] * 2
    assert entrance.event_count == 0


async def test_append_passes_columns_on_without_decoding_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """No event is touched where no interceptor or selector asks for it."""

    def refuse(_table: object) -> None:
        raise AssertionError("the events were decoded")

    monkeypatch.setattr("millrace_server.agent.column_table.ColumnTable._decode", refuse)
    registry = registry_of(a=memory(), b=memory())
    sent = stored_rows([({"host": "x"}, b"1"), ({"host": "y"}, b"2")])
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        await entrance.appends.append([sent], None)
    raws = [batch.window.stored.raw for name in "ab" for batch in registry.get(name)._contents.queue]
    assert raws == [sent.raw] * 2


async def test_append_behind_one_that_was_abandoned_at_once_is_stored() -> None:
    """What has not begun when its caller leaves has no effect, and holds up nothing of the same task."""
    registry = registry_of(a=memory())
    async with opened_entrance(writer_of(registry, ["a"])) as entrance:
        first = entrance.appends.begin_append([stored(b"1")], None)
        second = entrance.appends.begin_append([stored(b"2")], None)
        assert first is not None
        assert second is not None
        first.abandon()
        async with asyncio.timeout(60):
            assert await second == STORED
            with pytest.raises(InternalError):
                await first
    assert held(registry, "a") == {"a": [b"2"]}


async def test_repeat_of_an_append_stores_only_where_it_is_missing() -> None:
    """After a crash one channel has an append, and another has not."""
    registry = registry_of(a=memory(), b=memory())
    await append(registry.get("a"), b"1", b"2", stamp=Stamp("p", 1, 2))
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        assert await append(entrance, b"1", b"2", stamp=Stamp("p", 1, 2)) == STORED
        assert await append(entrance, b"1", b"2", stamp=Stamp("p", 1, 2)) == REPEATED
    assert held(registry, "a", "b") == both([b"1", b"2"])


async def test_append_whose_stamp_covers_it_as_a_whole_is_stored_once_as_a_whole() -> None:
    """Spark's writer numbers its batches, not its rows."""
    registry = registry_of(a=memory(), b=memory())
    async with opened_entrance(writer_of(registry, ["a", "b"], selector=BY_KIND)) as entrance:
        for expected in (STORED, REPEATED):
            response = await entrance.appends.append([of_kinds(e1="a", e2="b", e3="b")], Stamp("query", 7, 7))
            assert response == expected
        with pytest.raises(BadArgumentError, match="overlaps in part"):
            await entrance.appends.append([of_kinds(e1="a", e2="b", e3="b")], Stamp("query", 7, 8))
    assert held(registry, "a", "b") == {"a": [b"e1"], "b": [b"e2", b"e3"]}


@pytest.mark.parametrize("stamp", [None, Stamp("p", 1, 1)])
async def test_append_for_which_one_channel_has_no_space_leaves_nothing_behind(stamp: Stamp | None) -> None:
    """It waits as long as a commit may, and names the channel; what waits is stored once there is space."""
    registry = registry_of(a=memory(), b=memory(capacity=1))
    await append(registry.get("b"), b"x")
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        began = now()
        with pytest.raises(ChannelFullError) as caught:
            await append(entrance, b"1", stamp=stamp)
        assert (now() - began, caught.value.metadata) == (3.0, {"channel": "b"})
        assert str(caught.value).startswith("channel b: the channel holds 1 events of 1")
        assert caught.value.retry_delay_seconds is not None
        assert held(registry, "a", "b") == {"a": [], "b": [b"x"]}
        appending = await started(append(entrance, b"1", stamp=stamp))
        await make_space(registry.get("b"))
        assert await appending.result() == STORED
    assert held(registry, "a", "b") == both([b"1"])


async def test_append_without_a_stamp_for_which_a_disk_has_no_space_leaves_nothing_behind() -> None:
    """What a channel's disk would refuse is known before another channel commits."""
    registry = registry_of(a=memory(), b=memory())
    slow = SlowCommits(registry.get("b"))

    def refuse(_commit: object) -> None:
        raise DiskFullError("no space")

    slow.refuse_unfit = refuse  # type: ignore[method-assign] # as a log whose disk is full
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        with pytest.raises(DiskFullError):
            await append(entrance, b"1")
    assert held(registry, "a", "b") == {"a": [], "b": []}


async def test_append_whose_commit_fails_in_one_channel_is_refused_and_completed_by_its_repeat() -> None:
    """The caller learns that it is not everywhere."""
    registry = registry_of(a=memory(), b=memory())
    slow = SlowCommits(registry.get("b"))
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        appending = await started(append(entrance, b"1", stamp=Stamp("p", 1, 1)))
        slow.refuse(DiskFullError("gone"))
        with pytest.raises(DiskFullError):
            await appending.result()
        repeating = await started(append(entrance, b"1", stamp=Stamp("p", 1, 1)))
        slow.let_last()
        assert await repeating.result() == STORED
    assert held(registry, "a", "b") == both([b"1"])


async def test_append_to_a_channel_whose_log_has_failed_is_refused_before_it_begins() -> None:
    """What the failed log has on its disk is unknown, so the others store nothing either."""
    registry = registry_of(a=memory(), b=memory())
    SlowCommits(registry.get("b")).fault = ChannelLogFailedError("gone")
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        with pytest.raises(ChannelLogFailedError):
            await append(entrance, b"1")
    assert held(registry, "a", "b") == {"a": [], "b": []}


async def test_appends_of_one_task_are_stored_in_their_order() -> None:
    """One that waits for space is not overtaken by one that needs none there."""
    registry = registry_of(a=memory(capacity=1), b=memory())
    await append(registry.get("a"), b"x")
    async with opened_entrance(writer_of(registry, ["a", "b"], selector=BY_KIND)) as entrance:
        first, second = (
            entrance.appends.begin_append([of_kinds(**{name: kind})], Stamp("p", number, number, after=after))
            for name, kind, number, after in (("e1", "both", 1, None), ("e2", "b", 2, 1))
        )
        assert first is not None
        assert second is not None
        await settle()
        assert held(registry, "b") == {"b": []}
        await make_space(registry.get("a"))
        assert [await first, await second] == [STORED, STORED]
    assert held(registry, "a", "b") == {"a": [b"e1"], "b": [b"e1", b"e2"]}


async def test_appends_of_different_callers_do_not_wait_for_each_other() -> None:
    """A full channel holds up those who need it."""
    registry = registry_of(a=memory(capacity=1), b=memory())
    await append(registry.get("a"), b"x")
    async with opened_entrance(writer_of(registry, ["a", "b"], selector=BY_KIND)) as entrance:
        waiting = await started(entrance.appends.append([of_kinds(e1="a")], None))
        assert await (await started(entrance.appends.append([of_kinds(e2="b")], None))).result() == STORED
        with pytest.raises(ChannelFullError):
            await waiting.result()


async def test_appends_behind_one_that_waits_are_refused_together_with_it() -> None:
    """Each waits as long as a commit may since it came, not since the one before it has ended."""
    registry = registry_of(a=memory(capacity=1), b=memory())
    await append(registry.get("a"), b"x")
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        began = now()
        commits = [entrance.appends.begin_append([stored(b"%d" % number)], None) for number in range(5)]
        for commit in commits:
            assert commit is not None
            with pytest.raises(ChannelFullError):
                await commit
        assert now() - began == 3.0


async def test_append_after_a_number_that_is_missing_is_refused_everywhere() -> None:
    """The forwarding sink relies on it."""
    registry = registry_of(a=memory(), b=memory())
    await append(registry.get("a"), b"1", stamp=Stamp("p", 1, 1))
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        with pytest.raises(OffsetGapError):
            await append(entrance, b"2", stamp=Stamp("p", 2, 2, after=1))
    assert held(registry, "a", "b") == {"a": [b"1"], "b": []}


async def test_append_with_another_identitys_stamp_is_forbidden_and_leaves_the_source_running() -> None:
    """Stamps belong to the identity that used them first; one bad caller is no trouble of the source."""
    registry = registry_of(a=memory(), b=memory())
    component = component_of()
    async with opened_entrance(writer_of(registry, ["a", "b"], component=component)) as entrance:
        await append(entrance, b"1", stamp=Stamp("p", 1, 1, owner="alice"))
        with pytest.raises(ForbiddenError):
            await append(entrance, b"2", stamp=Stamp("p", 2, 2, owner="bob"))
        assert component.state.value == "running"
    assert held(registry, "a", "b") == both([b"1"])


async def test_append_whose_caller_leaves_while_it_waits_is_not_stored_later() -> None:
    """A deadline that has passed means that nothing is stored after it."""
    registry = registry_of(a=memory(), b=memory(capacity=1))
    await append(registry.get("b"), b"x")
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        appending = asyncio.ensure_future(append(entrance, b"1"))
        await settle()
        appending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await appending
        await make_space(registry.get("b"))
        await settle()
    assert held(registry, "a", "b") == {"a": [], "b": []}


async def test_stop_waits_for_what_has_begun_and_refuses_what_comes() -> None:
    """Callers are told to try again, and open transactions can still be committed."""
    registry = registry_of(a=memory(), b=memory())
    slow = SlowCommits(registry.get("b"))
    entrance = entrance_of()
    async with opened_entrance(writer_of(registry, ["a", "b"]), entrance) as channel:
        txn_id = begin_with_puts(channel, b"2")
        appending = await started(append(channel, b"1"))
        asyncio.get_running_loop().call_later(1.0, slow.let_last)
    assert await appending.result() == STORED
    with pytest.raises(DrainingError):
        entrance.accepting()
    with pytest.raises(DrainingError):
        await append(channel, b"3")
    committing = await started(channel.transactions.commit([txn_id], None))
    slow.let_last()
    assert await committing.result() == STORED
    assert held(registry, "a", "b") == both([b"1", b"2"])


async def test_entrance_before_the_source_has_started_tells_callers_to_try_again() -> None:
    """The name is known from the server's start on."""
    with pytest.raises(ReplayingError):
        entrance_of().accepting()


async def test_transactions_are_stored_together_in_all_channels() -> None:
    """A commit of several transactions may hold more than one of them may."""
    registry = registry_of(a=memory(transaction_capacity=2), b=memory(transaction_capacity=3))
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        txn_ids = [begin_with_puts(entrance, b"1", b"2"), begin_with_puts(entrance, b"3", b"4")]
        # What is too small is not the name that the caller uses.
        with pytest.raises(TxnCapacityError, match="transaction_capacity of channel 'a' is 2") as caught:
            entrance.transactions.put(txn_ids[0], [stored(b"5")], None)
        assert caught.value.metadata["channel"] == "a"
        for _ in range(2):
            assert await entrance.transactions.commit(txn_ids, Stamp("query", 1, 1)) == STORED
        again = [begin_with_puts(entrance, b"1", b"2"), begin_with_puts(entrance, b"3", b"4")]
        assert await entrance.transactions.commit(again, Stamp("query", 1, 1)) == REPEATED
        assert entrance.open_transactions == 0
        assert await entrance.transactions.commit([begin(entrance)], None) == STORED
    assert held(registry, "a", "b") == both([b"1", b"2", b"3", b"4"])


async def test_put_of_too_many_bytes_names_the_channel_that_takes_the_least() -> None:
    """It need not be the one with the smallest transaction capacity."""
    registry = registry_of(a=memory(transaction_capacity=2), b=memory(body_bytes_max=4))
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        with pytest.raises(TxnCapacityError, match=r"byte_capacity of channel 'b' .* 4 at once") as caught:
            entrance.transactions.put(begin(entrance), [stored(b"123", b"45")], None)
        assert caught.value.metadata["channel"] == "b"
        with pytest.raises(EventTooLargeError, match="byte_capacity of channel 'b' allows 4 in all") as too_large:
            entrance.transactions.put(begin(entrance), [stored(b"12345")], None)
        assert too_large.value.metadata["channel"] == "b"


async def test_transaction_whose_commit_finds_no_space_stays_open() -> None:
    """It can be committed again, or rolled back."""
    registry = registry_of(a=memory(), b=memory(capacity=1))
    await append(registry.get("b"), b"x")
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        txn_id = begin_with_puts(entrance, b"1")
        with pytest.raises(ChannelFullError):
            await entrance.transactions.commit([txn_id], None)
        await make_space(registry.get("b"))
        assert await entrance.transactions.commit([txn_id], None) == STORED
    assert held(registry, "a", "b") == both([b"1"])


async def test_put_beyond_what_the_channels_hold_open_is_refused() -> None:
    """Open transactions of a source are in memory too."""
    registry = registry_of(a=memory(body_bytes_max=10), b=memory())
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        begin_with_puts(entrance, b"123456")
        with pytest.raises(BytesFullError):
            begin_with_puts(entrance, b"12345")


async def test_limits_of_the_entrance_follow_those_of_the_channels() -> None:
    """An operator changes them while the source runs."""
    registry = registry_of(a=memory(transaction_capacity=5), b=memory(transaction_capacity=3))
    entrance = entrance_of()
    async with opened_entrance(writer_of(registry, ["a", "b"]), entrance):
        assert entrance.not_a_channel().metadata["transaction_capacity"] == "3"
        assert await registry.get("b").update(memory(transaction_capacity=9)) == ""
        assert entrance.accepting().config.transaction_capacity == 5


async def test_append_with_an_optional_channel_does_not_wait_for_it() -> None:
    """It misses what it cannot take at once, and that is counted."""
    registry = registry_of(a=memory(), b=memory(capacity=1))
    component = component_of()
    selector = ReplicatingConfig(type="replicating", optional=["b"])
    writer = writer_of(registry, ["a", "b"], component=component, selector=selector)
    async with opened_entrance(writer) as entrance:
        for number in range(3):
            assert await append(entrance, b"%d" % number, stamp=Stamp("p", number, number)) == STORED
        assert await append(entrance, b"0", stamp=Stamp("p", 0, 0)) == REPEATED
    assert held(registry, "a", "b") == {"a": [b"0", b"1", b"2"], "b": [b"0"]}
    assert outcomes_of(component) == {"missed": 2}


async def test_append_to_a_load_balanced_source_is_stored_in_one_channel() -> None:
    """A repeat finds it, although the next channel in turn is another one; without a stamp nothing else is written."""
    registry = registry_of(a=memory(), b=memory())
    selector = LoadBalancingConfig(type="load_balancing")
    async with opened_entrance(writer_of(registry, ["a", "b"], selector=selector)) as entrance:
        for expected in (STORED, REPEATED):
            assert await append(entrance, b"1", b"2", stamp=Stamp("p", 1, 2)) == expected
        for _ in range(2):
            assert await append(entrance, b"3") == STORED
    both = held(registry, "a", "b")
    assert sorted(both["a"] + both["b"]) == [b"1", b"2", b"3", b"3"]
    assert all(sum(body == b"3" for body in bodies) == 1 for bodies in both.values())


async def test_header_that_an_interceptor_sets_is_on_events_that_stay_in_columns() -> None:
    """It becomes a column."""
    registry = registry_of(a=memory(), b=memory())
    static = StaticConfig(type="static", headers={"site": "x"}).make()
    async with opened_entrance(writer_of(registry, ["a", "b"], static)) as entrance:
        await entrance.appends.append([stored_rows([({"k": "1"}, b"1"), ({}, b"2")])], None)
    assert rows_in(registry, "a") == [({"k": "1", "site": "x"}, b"1"), ({"site": "x"}, b"2")]


async def test_source_in_a_program_that_embeds_the_agent_fails_with_advice() -> None:
    """No caller would ever reach it."""
    registry = registry_of(a=memory())
    with pytest.raises(ComponentFailedError, match="use a source of type embedded"):
        await GrpcSource(SourceContext("in", Path())).run(writer_of(registry, ["a"]))


async def test_append_that_waits_while_another_with_its_numbers_is_accepted_is_cut_again() -> None:
    """A caller that connects again may send other batches while its earlier ones still wait."""
    registry = registry_of(a=memory(capacity=3), b=memory())
    await append(registry.get("a"), b"x", b"y", b"z")
    async with opened_entrance(writer_of(registry, ["a", "b"], selector=BY_KIND)) as entrance:

        async def send(stamp: Stamp, **kinds: str) -> Receipt:
            return await entrance.appends.append([of_kinds(**kinds)], stamp)

        former = await started(send(Stamp("p", 1, 2), e1="a", e2="b"))
        later = await started(send(Stamp("p", 1, 3), e1="a", e2="b", e3="a"))
        await make_space(registry.get("a"), 3)
        assert [await former.result(), await later.result()] == [STORED, REPEATED]
    assert held(registry, "a", "b") == {"a": [b"e1", b"e3"], "b": [b"e2"]}


async def test_append_with_an_event_too_large_for_a_channel_is_refused_whole() -> None:
    """The caller is told, where another source could only drop it."""
    registry = registry_of(a=memory(), b=memory(body_bytes_max=4))
    async with opened_entrance(writer_of(registry, ["a", "b"])) as entrance:
        with pytest.raises(EventTooLargeError):
            await append(entrance, b"1", b"12345")
    assert held(registry, "a", "b") == both([])
