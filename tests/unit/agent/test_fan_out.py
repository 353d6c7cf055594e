import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.agent.events import EventTable
from millrace_server.agent.fan_out import ChannelBatch, FanOut, channel_batches_of, unrouted_count
from millrace_server.agent.selectors import EventMask, LeastFull, RoundRobin
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import BadArgumentError, ChannelFullError, ChannelLogFailedError, DiskFullError
from tests.channel_events import append, begin_with_takes, open_channel
from tests.slow_commits import SlowCommits
from tests.source_writers import batch_stamp, held, memory, ranges_of, registry_of, table_of
from tests.virtual_clock import now, settle, started

HAS_VIRTUAL_CLOCK = True

KEEP_ALIVE = 3.0


def batch(*bodies: bytes) -> ChannelBatch:
    return ChannelBatch(table_of(*bodies))


async def store(
    fan_out: FanOut, batches: Mapping[str, ChannelBatch], stamp: Stamp | None, last: str | None = None
) -> None:
    """Stores a batch in all channels; those without an entry get no events."""
    await (await fan_out.begin(batches, stamp, last)).finish()


async def test_store_in_several_channels_stores_each_batch_with_the_same_stamp() -> None:
    """A channel that gets no events has accepted the batch nevertheless."""
    registry = registry_of(a=memory(), b=memory(), c=memory())
    fan_out = FanOut(registry, ["a", "b", "c"])
    await store(fan_out, {"a": batch(b"1", b"2"), "b": batch(b"2")}, batch_stamp(0, 9))
    assert held(registry, "a", "b", "c") == {"a": [b"1", b"2"], "b": [b"2"], "c": []}
    assert [ranges_of(registry.get(name)) for name in "abc"] == [[(0, 9)]] * 3


async def test_store_of_the_same_batch_in_several_channels_creates_columns_for_each() -> None:
    """Each log notes the place of the columns separately."""
    registry = registry_of(a=memory(), b=memory())
    shared = batch(b"1")
    await store(FanOut(registry, ["a", "b"]), {"a": shared, "b": shared}, batch_stamp(0, 0))
    [one], [other] = (list(registry.get(name)._contents.queue) for name in "ab")
    assert one.window.stored is not other.window.stored
    assert one.window.stored.raw == other.window.stored.raw


async def test_store_again_stores_nothing() -> None:
    """A repeat of a batch succeeds, and no channel stores a second copy."""
    registry = registry_of(a=memory(), b=memory())
    fan_out = FanOut(registry, ["a", "b"])
    for _ in range(2):
        await store(fan_out, {"a": batch(b"1")}, batch_stamp(0, 9))
    assert held(registry, "a", "b") == {"a": [b"1"], "b": []}


async def test_store_when_one_channel_is_full_stores_nothing() -> None:
    """A full channel keeps the others from storing a part, however often it is tried."""
    registry = registry_of(a=memory(), b=memory(capacity=1), c=memory())
    await append(registry.get("b"), b"x")
    fan_out = FanOut(registry, ["a", "b", "c"])
    everywhere = {name: batch(b"1") for name in "abc"}
    for _ in range(2):
        with pytest.raises(ChannelFullError) as caught:
            await store(fan_out, everywhere, batch_stamp(0, 0))
        assert caught.value.metadata["channel"] == "b"
        assert held(registry, "a", "b", "c") == {"a": [], "b": [b"x"], "c": []}
        assert [ranges_of(registry.get(name)) for name in "abc"] == [[], [], []]
    assert now() == 2 * KEEP_ALIVE


async def test_store_when_space_comes_in_time_stores_everywhere() -> None:
    """Each channel is waited for up to its keep-alive."""
    registry = registry_of(a=memory(capacity=1), b=memory(capacity=1))
    for name in "ab":
        await append(registry.get(name), b"x")
    storing = await started(store(FanOut(registry, ["a", "b"]), {n: batch(b"1") for n in "ab"}, batch_stamp(0, 0)))
    await asyncio.sleep(KEEP_ALIVE - 0.5)
    await registry.get("a").purge()
    await asyncio.sleep(KEEP_ALIVE - 0.5)
    assert not storing.is_done
    assert held(registry, "a", "b") == {"a": [], "b": [b"x"]}
    await registry.get("b").purge()
    await storing.result()
    assert held(registry, "a", "b") == {"a": [b"1"], "b": [b"1"]}


async def test_store_when_space_is_taken_again_in_the_meantime_waits_on_and_then_fails() -> None:
    """Other channels may fill up during a wait; the total wait stays within the channels' limits."""
    registry = registry_of(a=memory(capacity=1), b=memory(capacity=1))
    for name in "ab":
        await append(registry.get(name), b"x")
    storing = await started(store(FanOut(registry, ["a", "b"]), {n: batch(b"1") for n in "ab"}, batch_stamp(0, 0)))
    await asyncio.sleep(1)
    await registry.get("a").purge()
    await settle()
    await append(registry.get("a"), b"y")
    await asyncio.sleep(1)
    await registry.get("b").purge()
    await settle()
    assert not storing.is_done
    assert held(registry, "a", "b") == {"a": [b"y"], "b": []}
    with pytest.raises(ChannelFullError):
        await storing.result()
    # One second of its time was used at the first channel, and one passed at the other.
    assert now() == KEEP_ALIVE + 1


async def test_store_that_has_waited_does_not_wait_behind_later_appends() -> None:
    """Otherwise a batch for several full channels would hardly ever find space in all of them at once."""
    registry = registry_of(a=memory(capacity=2), b=memory(capacity=1))
    await append(registry.get("a"), b"x", b"x")
    await append(registry.get("b"), b"x")
    storing = await started(store(FanOut(registry, ["a", "b"]), {n: batch(b"1") for n in "ab"}, batch_stamp(0, 0)))
    # It needs more space than there will be, and so stays in the line.
    later = await started(append(registry.get("a"), b"y", b"y"))
    await registry.get("a").transactions.commit([await begin_with_takes(registry.get("a"), 1)], None)
    await settle()
    await registry.get("b").purge()
    await storing.result()
    assert now() == 0
    assert held(registry, "a", "b") == {"a": [b"x", b"1"], "b": [b"1"]}
    later.cancel()


async def test_store_begins_all_commits_before_it_waits_for_any() -> None:
    """The disks work concurrently."""
    registry = registry_of(a=memory(), b=memory())
    slow = [SlowCommits(registry.get(name)) for name in "ab"]
    storing = await started(store(FanOut(registry, ["a", "b"]), {"a": batch(b"1")}, batch_stamp(0, 0)))
    assert [len(commits.in_flight) for commits in slow] == [1, 1]
    slow[0].let_last()
    await settle()
    assert not storing.is_done
    slow[1].let_last()
    await storing.result()


async def test_store_when_cancelled_while_commits_are_pending_lets_them_end() -> None:
    """The batch is stored everywhere nevertheless; a repeat finds it there."""
    registry = registry_of(a=memory(), b=memory())
    slow = [SlowCommits(registry.get(name)) for name in "ab"]
    fan_out = FanOut(registry, ["a", "b"])
    storing = await started(store(fan_out, {n: batch(b"1") for n in "ab"}, batch_stamp(0, 0)))
    storing.cancel()
    await settle()
    assert storing.is_cancelled
    for commits in slow:
        commits.let_last()
    await settle()
    assert held(registry, "a", "b") == {"a": [b"1"], "b": [b"1"]}
    assert fan_out.has_accepted(batch_stamp(0, 0))


async def test_store_when_a_disk_fails_after_another_has_stored_is_completed_by_a_repeat() -> None:
    """The channel that has stored it gets no second copy."""
    registry = registry_of(a=memory(), b=memory())
    slow = SlowCommits(registry.get("b"))
    fan_out = FanOut(registry, ["a", "b"])
    everywhere = {name: batch(b"1", b"2") for name in "ab"}
    storing = await started(store(fan_out, everywhere, batch_stamp(0, 9)))
    slow.refuse(DiskFullError("no space"))
    with pytest.raises(DiskFullError) as caught:
        await storing.result()
    assert caught.value.metadata["channel"] == "b"
    assert held(registry, "a", "b") == {"a": [b"1", b"2"], "b": []}
    storing = await started(store(fan_out, everywhere, batch_stamp(0, 9)))
    slow.let_last()
    await storing.result()
    assert held(registry, "a", "b") == {"a": [b"1", b"2"], "b": [b"1", b"2"]}


async def test_store_when_a_channel_refuses_to_begin_still_waits_for_those_that_have_begun() -> None:
    """No commit is pending when the source gets the error: what each channel has accepted is then certain."""
    registry = registry_of(a=memory(), b=memory())
    slow, refusing = (SlowCommits(registry.get(name)) for name in "ab")
    refusing.refusal = DiskFullError("no space")
    storing = await started(store(FanOut(registry, ["a", "b"]), {"a": batch(b"1")}, batch_stamp(0, 0)))
    assert not storing.is_done
    slow.let_last()
    with pytest.raises(DiskFullError):
        await storing.result()


async def test_store_when_a_log_has_failed_begins_nowhere() -> None:
    """A commit that is known to fail leaves no partial batch."""
    registry = registry_of(a=memory(), b=memory())
    SlowCommits(registry.get("b")).fault = ChannelLogFailedError("the log has failed")
    with pytest.raises(ChannelLogFailedError):
        await store(FanOut(registry, ["a", "b"]), {"a": batch(b"1")}, batch_stamp(0, 0))
    assert held(registry, "a") == {"a": []}


async def test_store_of_a_batch_that_overlaps_in_part_stores_nothing() -> None:
    """Which of its events are new is unknown; no channel stores any."""
    registry = registry_of(a=memory(), b=memory())
    fan_out = FanOut(registry, ["a", "b"])
    await store(FanOut(registry, ["b"]), {"b": batch(b"1")}, batch_stamp(0, 9))
    with pytest.raises(BadArgumentError):
        await store(fan_out, {n: batch(b"1", b"2") for n in "ab"}, batch_stamp(5, 14))
    assert held(registry, "a", "b") == {"a": [], "b": [b"1"]}


async def test_store_with_a_last_channel_begins_it_when_all_others_are_durable() -> None:
    """While a commit without events may be lost, the events are stored nowhere."""
    registry = registry_of(a=memory(), b=memory(), c=memory())
    slow = {name: SlowCommits(registry.get(name)) for name in "abc"}
    storing = await started(store(FanOut(registry, list("abc")), {"b": batch(b"1")}, batch_stamp(0, 0), last="b"))
    slow["a"].let_last()
    await settle()
    assert not slow["b"].in_flight
    slow["c"].let_last()
    await settle()
    assert [commit.put_count for commit in slow["b"].in_flight] == [1]
    slow["b"].let_last()
    await storing.result()


@pytest.mark.parametrize("broken", ["a", "b"])
async def test_store_with_a_last_channel_begins_nowhere_while_any_log_has_failed(broken: str) -> None:
    """That channel may have accepted the batch without its events; if the others did too, the events would be lost."""
    registry = registry_of(a=memory(), b=memory(), c=memory())
    SlowCommits(registry.get(broken)).fault = ChannelLogFailedError("the log has failed")
    with pytest.raises(ChannelLogFailedError) as caught:
        await store(FanOut(registry, list("abc")), {"b": batch(b"1")}, batch_stamp(0, 0), last="b")
    assert caught.value.metadata["channel"] == broken
    assert [ranges_of(registry.get(name)) for name in "abc"] == [[], [], []]


async def test_pick_rotates_and_passes_over_full_channels() -> None:
    """A full channel delays nothing while another one has space."""
    registry = registry_of(a=memory(), b=memory(capacity=1), c=memory())
    await append(registry.get("b"), b"x")
    fan_out, balancer = FanOut(registry, list("abc")), RoundRobin()
    picks = [await fan_out.pick(balancer, batch(b"1"), batch_stamp(0, 0)) for _ in range(4)]
    await registry.get("b").purge()
    picks += [await fan_out.pick(balancer, batch(b"1"), batch_stamp(0, 0)) for _ in range(3)]
    assert picks == ["a", "c", "a", "c", "b", "a", "c"]


async def test_pick_when_a_channel_has_accepted_the_batch_takes_another() -> None:
    """It accepted the batch without its events; the channel with the events is the last one."""
    registry = registry_of(a=memory(), b=memory(), c=memory())
    await store(FanOut(registry, ["a", "c"]), {}, batch_stamp(0, 9))
    fan_out = FanOut(registry, list("abc"))
    assert {await fan_out.pick(RoundRobin(), batch(b"1"), batch_stamp(0, 9)) for _ in range(3)} == {"b"}
    assert not fan_out.has_accepted(batch_stamp(0, 9))
    await store(FanOut(registry, ["b"]), {"b": batch(b"1")}, batch_stamp(0, 9))
    assert fan_out.has_accepted(batch_stamp(0, 9))


async def test_pick_when_all_are_full_takes_the_first_that_gets_space() -> None:
    """A channel whose sink is dead does not delay the others."""
    registry = registry_of(a=memory(capacity=1), b=memory(capacity=1))
    for name in "ab":
        await append(registry.get(name), b"x")
    picking = await started(FanOut(registry, ["a", "b"]).pick(RoundRobin(), batch(b"1"), batch_stamp(0, 0)))
    await asyncio.sleep(1)
    assert not picking.is_done
    await registry.get("b").purge()
    assert await picking.result() == "b"
    assert now() == 1
    assert not registry.get("a")._contents.capacity.waiters


async def test_pick_when_all_stay_full_fails_after_the_keep_alive() -> None:
    """No commit was begun, and no append waits in a line any more."""
    registry = registry_of(a=memory(capacity=1), b=memory(capacity=1))
    for name in "ab":
        await append(registry.get(name), b"x")
    with pytest.raises(ChannelFullError):
        await FanOut(registry, ["a", "b"]).pick(RoundRobin(), batch(b"1"), batch_stamp(0, 0))
    assert now() == KEEP_ALIVE
    assert [len(registry.get(name)._contents.capacity.waiters) for name in "ab"] == [0, 0]


async def test_pick_when_cancelled_leaves_no_line_behind() -> None:
    """An abandoned place in a line would block all later appends."""
    registry = registry_of(a=memory(capacity=1), b=memory(capacity=1))
    for name in "ab":
        await append(registry.get(name), b"x")
    picking = await started(FanOut(registry, ["a", "b"]).pick(LeastFull(), batch(b"1"), batch_stamp(0, 0)))
    picking.cancel()
    await settle()
    assert [len(registry.get(name)._contents.capacity.waiters) for name in "ab"] == [0, 0]


async def test_pick_of_an_event_that_fits_one_channel_only_takes_that() -> None:
    """A channel that takes all events is preferred to dead letters."""
    registry = registry_of(a=memory(body_bytes_max=10), b=memory(body_bytes_max=1_000))
    fan_out = FanOut(registry, ["a", "b"])
    assert {await fan_out.pick(RoundRobin(), batch(bytes(100)), batch_stamp(0, 0)) for _ in range(2)} == {"b"}


COUNT = 4
MASKS: st.SearchStrategy[dict[str, EventMask]] = st.dictionaries(
    st.sampled_from("abc"), st.booleans() | st.lists(st.booleans(), min_size=COUNT, max_size=COUNT)
)


@given(choices=MASKS)
def test_channel_batches_hold_the_selected_events(choices: dict[str, EventMask]) -> None:
    """Channels without events have no batch; events without a channel are counted."""
    table = EventTable([b"%d" % index for index in range(COUNT)])
    expected = {}
    lost = set(table.bodies)
    for name, choice in choices.items():
        goes = [choice] * COUNT if isinstance(choice, bool) else choice
        if mine := [body for body, is_mine in zip(table.bodies, goes, strict=True) if is_mine]:
            expected[name] = mine
            lost -= set(mine)
    assert {name: batch.table.bodies for name, batch in channel_batches_of(table, choices).items()} == expected
    assert unrouted_count(table, choices) == len(lost)


def test_channel_batches_of_all_events_are_one_batch() -> None:
    """They are encoded once, however many channels get them."""
    table = table_of(b"1", b"2")
    batches = channel_batches_of(table, {"a": True, "b": [True, True], "c": [True, False]})
    assert batches["a"] is batches["b"]
    assert batches["a"].batches()[0].raw is batches["b"].batches()[0].raw


def test_unencodable_finds_invalid_events() -> None:
    """Too many headers, or a header's name that is no text; the other events are not affected."""
    many = {f"h{index}": [None, "x", None, None] for index in range(300)}
    table = EventTable([b"0", b"1", b"2", b"3"], {**many, "\udc80": [None, None, "x", None]})
    assert set(ChannelBatch(table).unencodable()) == {1, 2}
    rest = ChannelBatch(table).without({1, 2})
    assert (rest.table.bodies, rest.unencodable()) == ([b"0", b"3"], {})


def test_batches_of_values_that_are_not_encodable_replace_characters() -> None:
    """Losing a character is better than losing the event, also with many headers."""
    for more in ({}, {f"h{index}": [None, None, "x"] for index in range(256)}):
        table = EventTable([b"0", b"1", b"2"], {"a": ["\udc80", "b", None], **more})
        [headers, *_] = [
            headers for stored in ChannelBatch(table).batches() for headers, _ in stored.cutter().rows(0, 1)
        ]
        assert headers["a"] == "?"


async def test_unstorable_finds_events_that_a_channel_never_takes() -> None:
    """Each with its reason; events that are only too large together are not among them."""
    channel = open_channel(body_bytes_max=10, response_bytes_max=20_000)
    table = EventTable([bytes(9), bytes(11), bytes(9), b"", b"1"], {"h": [None, None, None, "x" * 20_000, None]})
    refused = ChannelBatch(table).unstorable(channel)
    assert set(refused) == {1, 3}
    assert "a body has 11 bytes" in refused[1]
    assert "would not fit into a response" in refused[3]
