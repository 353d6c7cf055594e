"""What a graceful stop of a spillable channel writes to its log."""

import asyncio
import errno
from typing import Any

import pytest
import structlog

from millrace_server.channels.spillable import SpillableCommitter
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import DrainingError
from tests.channel_events import append, begin_with_puts, begin_with_takes, consume, queued, stored
from tests.spillable_channels import Opened, in_log


async def test_stop_writes_what_is_in_memory_to_the_log(opened: Opened) -> None:
    """After the restart all events have their sequences, without gaps; taken events are back in their places."""
    channel = await opened.open(memory_capacity=5)
    await append(channel, b"a", b"b", b"c", stamp=Stamp("p", 1, 3))
    txn_id = begin_with_puts(channel, b"d")
    await channel.transactions.commit([txn_id], Stamp("q", 7, 7))
    await begin_with_takes(channel, 2)
    begin_with_puts(channel, b"never committed")
    channel = await opened.stop_and_open(memory_capacity=5)
    assert in_log(channel) == [1, 2, 3, 4]
    assert queued(channel) == [b"a", b"b", b"c", b"d"]
    again = await append(channel, b"a", b"b", b"c", b"e", stamp=Stamp("p", 1, 4))
    assert (again.first_sequence, again.last_sequence, again.is_deduplicated) == (5, 5, True)
    assert (await channel.transactions.commit([txn_id], None)).first_sequence == 4


async def test_stop_right_after_a_checkpoint_takes_the_reserve_back(opened: Opened) -> None:
    """This holds even if there is nothing else to write: no sequence is skipped."""
    channel = await opened.open()
    await append(channel, b"a")
    await consume(channel)
    await opened.now.checkpoint()
    channel = await opened.stop_and_open()
    assert (await append(channel, b"b")).first_sequence == 2


async def test_stop_keeps_what_is_left_of_a_request(opened: Opened) -> None:
    """Its columns are written once and completely; events that have left the channel do not return."""
    channel = await opened.open(memory_capacity=9)
    await append(channel, b"a", b"b", b"c", b"d", b"e")
    first, second = await begin_with_takes(channel, 1), await begin_with_takes(channel, 1)
    assert await consume(channel, 1) == [b"c"]
    await channel.transactions.commit([first], None)
    channel.transactions.rollback(second)
    channel = await opened.stop_and_open()
    assert [batch.first_sequence for batch in channel._contents.queue] == [2, 4]
    assert await consume(channel) == [b"b", b"d", b"e"]


async def test_stop_with_a_log_behind_memory_keeps_the_order(opened: Opened) -> None:
    """The events from memory are written after the log's, and ordered before them."""
    channel = await opened.open(memory_capacity=2)
    await append(channel, b"a", b"b")
    await append(channel, b"c")
    channel = await opened.stop_and_open()
    assert queued(channel) == [b"a", b"b", b"c"]
    channel = await opened.stop_and_open()
    assert await consume(channel) == [b"a", b"b", b"c"]


async def test_stop_of_large_memory_writes_it_in_portions(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """One write contains a bounded part of it, however much there is."""
    monkeypatch.setattr("millrace_server.channels.spillable._SPILL_BYTES", 500)
    channel = await opened.open(memory_capacity=100, transaction_capacity=10)
    for number in range(20):
        await append(channel, b"%d" % number + bytes(120))
    channel = await opened.stop_and_open(transaction_capacity=100)
    assert [body.rstrip(b"\0") for body in await consume(channel)] == [b"%d" % number for number in range(20)]


async def test_kill_behind_a_portion_that_a_stop_has_written_leaves_whole_commits_with_their_stamps(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that got no response sends again, and what the log has of it must not be stored twice."""
    monkeypatch.setattr("millrace_server.channels.spillable._SPILL_BYTES", 500)
    channel = await opened.open(memory_capacity=100)
    await append(channel, b"a" + bytes(300), stamp=Stamp("p", 1, 1))
    txn_id = begin_with_puts(channel, b"b" + bytes(300))
    channel.transactions.put(txn_id, [stored(b"c" + bytes(300))], None)
    await channel.transactions.commit([txn_id], Stamp("q", 1, 2))
    await append(channel, b"d", stamp=Stamp("p", 2, 2))
    committer = channel._core.committer
    assert isinstance(committer, SpillableCommitter)
    committer._is_draining = True
    portions = list(committer._portions())
    assert [[batch.first_sequence for batch in portion] for portion in portions] == [[1, 2, 3], [4]]
    await committer._spill(portions[0])
    opened.now.abandon()
    channel = await opened.open(memory_capacity=100)
    assert [body[:1] for body in queued(channel)] == [b"a", b"b", b"c"]
    again = await append(channel, b"a", b"d", stamp=Stamp("p", 1, 2))
    assert (again.first_sequence, again.is_deduplicated) == (again.last_sequence, True)
    assert (await channel.transactions.commit([txn_id], None)).first_sequence == 2
    assert [body[:1] for body in queued(channel)] == [b"a", b"b", b"c", b"d"]


async def test_stop_while_commits_are_under_way_keeps_what_they_leave(opened: Opened) -> None:
    """Events that such a commit consumes are neither written nor reported as lost, even if it waits for the disk."""
    channel = await opened.open(memory_capacity=10)
    await append(channel, b"consumed")
    await append(channel, b"stays")
    txn_id = await begin_with_takes(channel, 1)
    spilling = asyncio.ensure_future(append(channel, *[b"large"] * 12))
    await asyncio.sleep(0)
    consuming = asyncio.ensure_future(channel.transactions.commit([txn_id], None))
    await asyncio.sleep(0)
    assert not consuming.done()
    with structlog.testing.capture_logs() as reported:
        commits = channel._core.committer
        assert isinstance(commits, SpillableCommitter)
        await commits.drain(None)
    await asyncio.gather(spilling, consuming)
    assert reported == []
    channel = await opened.stop_and_open(memory_capacity=10)
    assert queued(channel) == [b"stays", *[b"large"] * 12]


async def test_stop_with_a_full_disk_keeps_the_oldest_and_reports_the_rest(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events without space are lost, which the server logs with their number; written ones stay valid."""
    reported: list[dict[str, Any]] = []
    monkeypatch.setattr("millrace_server.channels.spillable._SPILL_BYTES", 1)
    monkeypatch.setattr(
        "millrace_server.channels.spillable._log.error",
        lambda event, **fields: reported.append({"event": event, **fields}),
    )
    channel = await opened.open(memory_capacity=3)
    for body in (b"a", b"b", b"c"):
        await append(channel, body, stamp=Stamp("p", body[0], body[0]))
    opened.disk.fail("write", 2, errno.ENOSPC)
    await opened.now.close()
    channel = await opened.open()
    assert queued(channel) == [b"a"]
    [loss] = reported
    assert (loss["event"], loss["events"]) == ("events that were only in memory are lost", 2)
    assert "no space" in loss["reason"]
    again = await append(channel, b"a", b"b", b"c", stamp=Stamp("p", ord("a"), ord("c")))
    assert (again.first_sequence, again.last_sequence) == (4, 5)


async def test_stop_without_time_is_not_held_up_by_what_is_in_memory(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server is stopped at once, or the disk does not respond, they are lost, which is logged."""
    reported: list[int] = []
    monkeypatch.setattr(
        "millrace_server.channels.spillable._log.error", lambda _, events, **__: reported.append(events)
    )
    channel = await opened.open(memory_capacity=3)
    await append(channel, b"a", b"b")
    await opened.now.store.close(0.0)
    assert reported == [2]
    assert (await append(await opened.open(), b"c")).first_sequence == 3


async def test_commit_while_the_channel_is_closed_is_refused(opened: Opened) -> None:
    """It would be too late to be written; the error lets the producer use another server."""
    channel = await opened.open(memory_capacity=3)
    await append(channel, b"a")
    await opened.now.close()
    with pytest.raises(DrainingError):
        await append(channel, b"b")
