from itertools import product

import pytest

from millrace_server.channels.admission import Capacity
from millrace_server.channels.commit import Commit, CommitState, Receipt
from millrace_server.channels.committer import ClaimRecord, MemoryCommitter, remove
from millrace_server.channels.config import ChannelConfig, MemoryChannelConfig
from millrace_server.channels.contents import Contents
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import ChannelLogFailedError, DiskFullError
from tests.channel_events import bodies_of, numbered, window
from tests.virtual_clock import settle, started


class FakeCommitter:
    """Commits that end when the test lets them."""

    fault = None
    is_stalled = False
    disk_trouble = ""
    memory_event_count = 0

    def __init__(self) -> None:
        self.submitted: list[Commit] = []
        self.error: ChannelLogFailedError | None = None

    def enforce(self, _config: ChannelConfig) -> None:
        """Does nothing."""

    def record_rollback(self, txn_id: str, *, has_expired: bool) -> None:
        """Never called."""

    def record_claim(self, _claim: ClaimRecord) -> None:
        """Never called."""

    def refuse_unfit(self, _commit: Commit) -> None:
        """Never called."""

    def submit(self, commit: Commit) -> None:
        if self.error:
            raise self.error
        self.submitted.append(commit)


@pytest.fixture
def contents() -> Contents:
    contents = Contents("orders", Capacity(10, 100))
    first = contents.plan([window(b"a", b"b")], [], None)
    contents.prepare(first)
    contents.apply(first)
    return contents


def prepared(contents: Contents, commit: Commit) -> Commit:
    contents.prepare(commit)
    return commit


def durable(contents: Contents, commit: Commit) -> None:
    """Ends a commit as its committer does."""
    contents.prepare(commit)
    contents.apply(commit)
    commit.complete()


@pytest.mark.parametrize(("state", "target"), list(product(CommitState, CommitState)))
def test_move_between_any_two_states_is_allowed_or_refused_as_the_table_says(
    state: CommitState, target: CommitState
) -> None:
    """A commit is prepared once or after an abort, and ends once."""
    commit = Commit([], [])
    commit.state = state
    allowed = {
        (CommitState.PLANNED, CommitState.PREPARED),
        (CommitState.PREPARED, CommitState.DURABLE),
        (CommitState.PREPARED, CommitState.ABORTED),
        (CommitState.ABORTED, CommitState.PREPARED),
    }
    if (state, target) in allowed:
        commit.move(target)
        assert commit.state is target
    else:
        with pytest.raises(AssertionError):
            commit.move(target)


async def test_submit_in_memory_is_durable_at_once(contents: Contents) -> None:
    """Its creator is called before it returns, and waiting for it takes no turn of the event loop."""
    committer, ends = MemoryCommitter(contents), list[Receipt]()
    commit = contents.plan([window(b"c")], [], Stamp("p", 1, 1))
    commit.txn_ids = ("t",)
    commit.on_committed = lambda ended: ends.append(ended.receipt)
    committer.submit(commit)
    assert (commit.state, commit.receipt) == (CommitState.DURABLE, Receipt(3, 3))
    assert ends == [Receipt(3, 3)]
    with pytest.raises(StopIteration) as response:
        next(commit.__await__())
    assert response.value.value == Receipt(3, 3)
    assert committer.fault is None
    assert not committer.is_stalled
    committer.record_rollback("t", has_expired=False)
    committer.record_claim(ClaimRecord("r", 1, 30))
    committer.enforce(MemoryChannelConfig(type="memory"))
    assert bodies_of(contents.queue) == [b"a", b"b", b"c"]


async def test_await_of_a_commit_in_flight_responds_to_all_who_still_wait(contents: Contents) -> None:
    """A cancelled caller does not affect the others; a callback is called once, also if it is added late."""
    commit, ends = prepared(contents, contents.plan([window(b"c")], [], None)), list[Commit]()
    first, leaving, second = [await started(_wait(commit)) for _ in range(3)]
    commit.add_done_callback(ends.append)
    leaving.cancel()
    await settle()
    assert leaving.is_cancelled
    assert (first.is_done, ends) == (False, [])
    contents.apply(commit)
    commit.complete()
    assert (await first.result(), await second.result(), await _wait(commit)) == (Receipt(3, 3),) * 3
    commit.add_done_callback(ends.append)
    assert ends == [commit, commit]


async def test_await_of_an_aborted_commit_raises_why(contents: Contents) -> None:
    """This holds for callers that already wait and for later ones."""
    commit, ends = prepared(contents, contents.plan([window(b"c")], [], None)), list[Commit]()
    commit.on_aborted = ends.append
    call = await started(_wait(commit))
    contents.abort(commit)
    commit.fail(DiskFullError("full"))
    for response in (call.result(), _wait(commit)):
        with pytest.raises(DiskFullError, match="full"):
            await response
    assert (ends, commit.is_in_flight) == ([commit], False)


async def _wait(commit: Commit) -> Receipt:
    return await commit


async def test_remove_that_has_to_wait_ends_with_the_commit(contents: Contents) -> None:
    """It ends no transaction, and cancellation of its caller does not cancel it."""
    committer = FakeCommitter()
    call = await started(remove(contents, committer, contents.take_through(1)))
    (commit,) = committer.submitted
    assert (numbered(commit.takes), commit.is_purge, commit.txn_ids) == ([(1, b"a")], False, ())
    leaving = await started(remove(contents, committer, contents.take_through(contents.next_sequence), is_purge=True))
    leaving.cancel()
    await settle()
    assert leaving.is_cancelled
    assert committer.submitted[1].is_purge
    assert committer.submitted[1].is_in_flight
    assert not call.is_done
    durable(contents, commit)
    await call.result()


async def test_remove_that_is_refused_returns_the_events(contents: Contents) -> None:
    """The refusal comes at once, or when the commit is aborted."""
    committer = FakeCommitter()
    committer.error = ChannelLogFailedError("failed")
    with pytest.raises(ChannelLogFailedError):
        await remove(contents, committer, contents.take_through(contents.next_sequence))
    assert bodies_of(contents.queue) == [b"a", b"b"]
    committer.error = None
    call = await started(remove(contents, committer, contents.take_through(1)))
    (commit,) = committer.submitted
    contents.prepare(commit)
    contents.abort(commit)
    commit.fail(DiskFullError("full"))
    with pytest.raises(DiskFullError):
        await call.result()
    assert (bodies_of(contents.queue), contents.taken_count) == ([b"a", b"b"], 0)


def test_prepared_commits_hold_their_sequences_and_their_space(contents: Contents) -> None:
    """Each commit follows the one before, and is visible once it is applied; they are applied in order or never."""
    first = prepared(contents, contents.plan([window(b"c")], [], Stamp("p", 1, 1)))
    second = prepared(contents, contents.plan([window(b"d"), window(b"e")], [], Stamp("p", 2, 3)))
    assert (contents.next_sequence, contents.assigned_sequence, contents.capacity.event_count) == (3, 6, 5)
    assert second.receipt == Receipt(4, 5)
    assert bodies_of(contents.queue) == [b"a", b"b"]
    with pytest.raises(AssertionError):
        contents.apply(second)
    contents.abort(second)
    again = prepared(contents, contents.plan([window(b"f")], [], Stamp("p", 2, 2)))
    contents.apply(first)
    contents.apply(again)
    assert numbered(contents.queue) == [(1, b"a"), (2, b"b"), (3, b"c"), (4, b"f")]
    assert (contents.next_sequence, contents.assigned_sequence) == (5, 5)
    assert [list(intervals) for _, intervals in contents.ledger.producers()] == [[(1, 2)]]


def test_abort_of_a_swap_releases_what_it_charged(contents: Contents) -> None:
    """Needed capacity is charged when a change begins; freed capacity is released when it is completed."""
    taken = contents.take_through(contents.next_sequence)
    swap = prepared(contents, contents.plan([window(b"1234567"), window(b"")], taken, None))
    assert (contents.capacity.event_count, contents.capacity.body_bytes) == (2, 7)
    contents.abort(swap)
    assert (contents.capacity.event_count, contents.capacity.body_bytes, contents.taken_count) == (2, 2, 2)
    less = prepared(contents, contents.plan([window(b"")], taken, None))
    assert (contents.capacity.event_count, contents.capacity.body_bytes) == (2, 2)
    contents.apply(less)
    assert (contents.capacity.event_count, contents.capacity.body_bytes, contents.taken_count) == (1, 0, 0)
