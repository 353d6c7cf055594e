import asyncio
from collections.abc import Sequence

import pytest

from millrace_server.channels.commits import ClaimNote, CommitEnd, MemoryCommits, remove
from millrace_server.channels.config import ChannelConfig, MemoryChannelConfig
from millrace_server.channels.contents import Change, Contents, Receipt
from millrace_server.channels.room import Room
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import ChannelLogFailedError, DiskFullError
from tests.channel_events import bodies_of, numbered, window
from tests.virtual_clock import settle, started


class FakeCommits:
    """Commits that wait for the test."""

    fault = None
    is_stalled = False
    memory_event_count = 0

    def __init__(self) -> None:
        self.made: list[tuple[Change, Sequence[str], CommitEnd, asyncio.Future[Receipt]]] = []
        self.error: ChannelLogFailedError | None = None

    def enforce(self, _config: ChannelConfig) -> None:
        """Nothing depends on it."""

    def note_rollback(self, txn_id: str, *, has_expired: bool) -> None:
        """Nobody asks."""

    def note_claim(self, _note: ClaimNote) -> None:
        """Nobody asks."""

    def make(self, change: Change, txn_ids: Sequence[str], end: CommitEnd) -> "asyncio.Future[Receipt]":
        if self.error:
            raise self.error
        future: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.made.append((change, txn_ids, end, future))
        return future


@pytest.fixture
def contents() -> Contents:
    contents = Contents("orders", Room(10, 100))
    begun = contents.begin(contents.plan([window(b"a", b"b")], [], None))
    contents.finish(begun)
    return contents


def test_make_in_memory_is_made_at_once(contents: Contents) -> None:
    """Its caller is told before it returns; nothing of it need last."""
    commits, ends = MemoryCommits(contents), list[Receipt]()
    end = CommitEnd(made=ends.append, refused=pytest.fail)
    receipt = commits.make(contents.plan([window(b"c")], [], Stamp("p", 1, 1)), ("t",), end)
    assert receipt == Receipt(3, 3)
    assert ends == [receipt]
    assert commits.fault is None
    assert not commits.is_stalled
    commits.note_rollback("t", has_expired=False)
    commits.note_claim(ClaimNote("r", 1, 30))
    commits.enforce(MemoryChannelConfig(type="memory"))
    assert bodies_of(contents.queue) == [b"a", b"b", b"c"]


async def test_remove_that_has_to_wait_ends_with_the_commit(contents: Contents) -> None:
    """It ends no transaction, and whoever leaves meanwhile does not cancel it."""
    commits = FakeCommits()
    call = await started(remove(contents, commits, contents.take_through(1)))
    ((change, txn_ids, _, future),) = commits.made
    assert (numbered(change.takes), change.is_purge, txn_ids) == ([(1, b"a")], False, ())
    leaving = await started(remove(contents, commits, contents.take_all(), is_purge=True))
    leaving.cancel()
    await settle()
    assert leaving.is_cancelled
    assert commits.made[1][0].is_purge
    assert not commits.made[1][3].cancelled()
    assert not call.is_done
    future.set_result(Receipt())
    await call.answer()


async def test_remove_that_is_refused_returns_the_events(contents: Contents) -> None:
    """At once, or when the commit has come to nothing."""
    commits = FakeCommits()
    commits.error = ChannelLogFailedError("failed")
    with pytest.raises(ChannelLogFailedError):
        await remove(contents, commits, contents.take_all())
    assert bodies_of(contents.queue) == [b"a", b"b"]
    commits.error = None
    call = await started(remove(contents, commits, contents.take_through(1)))
    ((_, _, end, future),) = commits.made
    end.refused()
    future.set_exception(DiskFullError("full"))
    with pytest.raises(DiskFullError):
        await call.answer()
    assert (bodies_of(contents.queue), contents.taken_count) == ([b"a", b"b"], 0)


def test_changes_under_way_hold_their_sequences_and_their_room(contents: Contents) -> None:
    """Each begins behind the one before, and is seen only when it is finished; in their order, or not at all."""
    first = contents.begin(contents.plan([window(b"c")], [], Stamp("p", 1, 1)))
    second = contents.begin(contents.plan([window(b"d"), window(b"e")], [], Stamp("p", 2, 3)))
    assert (contents.next_sequence, contents.assigned_sequence, contents.room.event_count) == (3, 6, 5)
    assert second.receipt == Receipt(4, 5)
    assert bodies_of(contents.queue) == [b"a", b"b"]
    with pytest.raises(AssertionError):
        contents.finish(second)
    contents.undo(second)
    again = contents.begin(contents.plan([window(b"f")], [], Stamp("p", 2, 2)))
    contents.finish(first)
    contents.finish(again)
    assert numbered(contents.queue) == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"f")]
    assert (contents.next_sequence, contents.assigned_sequence) == (5, 5)
    assert [list(intervals) for _, intervals in contents.ledger.producers()] == [[(1, 2)]]


def test_undo_of_a_swap_gives_back_what_it_charged(contents: Contents) -> None:
    """Room that a change needs is charged when it begins, room that it frees when it is finished."""
    taken = contents.take_all()
    swap = contents.begin(contents.plan([window(b"1234567"), window(b"")], taken, None))
    assert (contents.room.event_count, contents.room.body_bytes) == (2, 7)
    contents.undo(swap)
    assert (contents.room.event_count, contents.room.body_bytes, contents.taken_count) == (2, 2, 2)
    less = contents.begin(contents.plan([window(b"")], taken, None))
    assert (contents.room.event_count, contents.room.body_bytes) == (2, 2)
    contents.finish(less)
    assert (contents.room.event_count, contents.room.body_bytes, contents.taken_count) == (1, 0, 0)
