"""The commit: what a transaction, an append or a removal does to a channel, from its plan to its end."""

import asyncio
import enum
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from millrace_server.channels.batches import StoredBatch, StoredColumns, Window
from millrace_server.channels.stamps import Acceptance, Stamp
from millrace_server.errors import MillraceError
from millrace_server.wal.records import Location, LogPosition, Record


class Receipt(NamedTuple):
    """What a commit stored; both sequences are 0 where it stored nothing.

    `commit_time` is in microseconds since 1970; 0 where all puts had been stored before, and where an earlier release
    stored them.
    """

    first_sequence: int = 0
    last_sequence: int = 0
    is_deduplicated: bool = False
    commit_time: int = 0

    @classmethod
    def of(cls, first_sequence: int, count: int, commit_time: int, *, is_deduplicated: bool) -> "Receipt":
        """Returns the receipt of a commit with `count` puts."""
        if count:
            return cls(first_sequence, first_sequence + count - 1, is_deduplicated, commit_time)
        return cls(0, 0, is_deduplicated, 0 if is_deduplicated else commit_time)


class CommitState(enum.Enum):
    """Moves; any other is illegal.

    PLANNED -> PREPARED    it holds its sequences, its stamp and its space; no reader sees it
    PREPARED -> DURABLE    it is in the log (written, and synced first unless `fsync` is `interval`), or in memory
                           where it needs no log; readers see it
    PREPARED -> ABORTED    the log refused it; its sequences, stamp and space are free again
    ABORTED -> PREPARED    it puts nothing, so the journal submits it again on a full disk
    """

    PLANNED = "planned"
    PREPARED = "prepared"
    DURABLE = "durable"
    ABORTED = "aborted"


# A tuple, since a set would call each state's hash, which is a function in Python.
_MOVES = (
    (CommitState.PLANNED, CommitState.PREPARED),
    (CommitState.PREPARED, CommitState.DURABLE),
    (CommitState.PREPARED, CommitState.ABORTED),
    (CommitState.ABORTED, CommitState.PREPARED),
)


class JournalEntry:
    """An entry that the journal writes in order: prepared when it is submitted, then applied, or aborted.

    Attributes:
        is_urgent: Sync at once, even in a channel that syncs at an interval.
        has_puts: It needs disk space that something else might free.
        put_raw_bytes: How much of it was reserved for its puts.
        is_mergeable: Its neighbours may be written with it: `merge` returns its records, and `records` tell their size.
        is_timed: The time until it is in the log is observed.
        submitted_at: On the monotonic clock.
    """

    __slots__ = ("submitted_at",)

    submitted_at: float
    records: Sequence[Record] = ()
    needs_sync: bool = True
    is_urgent: bool = False
    has_puts: bool = False
    put_raw_bytes: int = 0
    is_mergeable: bool = False
    is_timed = False

    def merge(self, neighbours: Sequence[Any]) -> Iterable[tuple[int, Sequence[Record]]]:
        """Yields the records of neighbours, with the number of those that they store; called on the log's thread."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Takes its place behind all entries that were submitted before."""

    def apply(self, locations: Sequence[Location], end: LogPosition) -> None:
        """Takes effect: its records are in the log at these locations, and the log ended behind them."""

    def abort(self) -> None:
        """Reverses `prepare`, after all later entries have done so."""

    def fail(self, error: MillraceError) -> None:
        """Ends with an error, after `abort`."""

    def use_retry(self) -> bool:
        """Returns whether it is submitted again after the log had no space for it; a commit allows this once."""
        return False

    def ending_txns(self) -> Iterable[tuple[str, Receipt]]:
        return ()


class CommitContext(Protocol):
    """Where a journal's commits take effect."""

    def prepare(self, commit: "Commit") -> None:
        """Prepares the commit's contents and encodes its records."""

    def merge(self, commits: "Sequence[Commit]") -> Iterable[tuple[int, Sequence[Record]]]:
        """Yields the records of commits, with the number of those that they store; called on the log's thread."""

    def apply(self, commit: "Commit", locations: Sequence[Location]) -> None:
        """Applies the commit's contents; its columns are in the log at these locations."""

    def abort(self, commit: "Commit") -> None: ...


class Commit(JournalEntry):
    """One commit: planned from puts, takes and a stamp, and awaited for its receipt.

    `await commit` returns the receipt, at once where the commit is durable, and raises DiskFullError or
    ChannelLogFailedError where it was aborted. Any number of callers may wait; a cancelled one does not affect the
    commit. No future is created unless a caller waits.

    Attributes:
        forgotten_producer: A producer whose numbers are forgotten; empty: none.
        has_new_numbers: The stamp has numbers that were not accepted before; they are stored also without events.
        is_purge: The takes are removed without a delivery to a consumer.
        on_committed: Called once it is durable, from the event loop or before `Committer.submit` returns.
        on_aborted: Called once it is aborted; its takes are still out of the queue.
        on_abandoned: Called when its only caller has left. A commit of a channel continues; see `Entrance`.
        puts_whole_columns: The stored columns hold no other events than the puts.
        event_count: Events that the channel gains; negative where it loses some. So is `body_bytes`.
        first_sequence: The first sequence of its puts, from PREPARED on, as are `commit_time`, `batches`, `acceptance`
            and `receipt`.
        needs_record: The log stores something of it.
        is_in_memory: A spillable channel keeps it in memory only.
        merged: Its puts in the columns of the PUT record that it shares with other commits; None where it has its own.
    """

    __slots__ = (
        "_callbacks",
        "_is_retried",
        "_waiters",
        "acceptance",
        "batches",
        "body_bytes",
        "commit_time",
        "context",
        "dropped_count",
        "error",
        "event_count",
        "first_sequence",
        "forgotten_producer",
        "has_new_numbers",
        "has_puts",
        "is_in_memory",
        "is_mergeable",
        "is_purge",
        "merged",
        "needs_record",
        "needs_space",
        "needs_sync",
        "on_abandoned",
        "on_aborted",
        "on_committed",
        "put_body_bytes",
        "put_count",
        "put_raw_bytes",
        "puts",
        "puts_whole_columns",
        "receipt",
        "records",
        "stamp",
        "state",
        "take_count",
        "takes",
        "txn_count",
        "txn_ids",
    )

    is_timed = True

    def __init__(self, puts: Sequence[Window], takes: Sequence[StoredBatch], stamp: Stamp | None = None) -> None:
        self.state = CommitState.PLANNED
        self.puts = puts
        self.takes = takes
        self.stamp = stamp
        self.dropped_count = 0
        self.forgotten_producer = ""
        self.has_new_numbers = self.is_purge = False
        self.txn_ids: Sequence[str] = ()
        self.txn_count = 0
        self.on_committed: Callable[[Commit], None] | None = None
        self.on_aborted: Callable[[Commit], None] | None = None
        self.on_abandoned: Callable[[], object] | None = None
        self.error: MillraceError | None = None
        self.has_puts = bool(puts)
        self.needs_sync = self.needs_record = True
        self.is_in_memory = self.is_mergeable = False
        self.merged: StoredBatch | None = None
        self._is_retried = False
        self._waiters: tuple[asyncio.Future[None], ...] = ()
        self._callbacks: tuple[Callable[[Commit], None], ...] = ()
        put_count = put_body_bytes = put_raw_bytes = columns_count = take_count = take_body_bytes = 0
        for put in puts:
            put_count += put.stop - put.start
            put_body_bytes += put.body_bytes
            put_raw_bytes += put.stored.raw_bytes
            columns_count += put.stored.count
        for take in takes:
            take_count += take.count
            take_body_bytes += take.window.body_bytes
        self.put_count, self.put_body_bytes, self.put_raw_bytes = put_count, put_body_bytes, put_raw_bytes
        self.puts_whole_columns = put_count == columns_count
        self.take_count = take_count
        self.event_count, self.body_bytes = put_count - take_count, put_body_bytes - take_body_bytes
        self.needs_space = self.event_count > 0 or self.body_bytes > 0
        # Set from PREPARED on, and not before: a commit of a channel in memory is created for each append.
        self.records: Sequence[Record]
        self.context: CommitContext
        self.first_sequence: int
        self.commit_time: int
        self.batches: Sequence[StoredBatch]
        self.acceptance: Acceptance | None
        self.receipt: Receipt

    @classmethod
    def repeated(cls, receipt: Receipt) -> "Commit":
        """Returns a durable commit that responds to the repeat of one that ended before."""
        commit = cls([], [])
        commit.state, commit.receipt = CommitState.DURABLE, receipt
        return commit

    @property
    def is_repeat(self) -> bool:
        """Whether it only repeats an earlier commit, so that the log stores nothing of it."""
        return not (self.txn_ids or self.puts or self.takes or self.has_new_numbers or self.forgotten_producer)

    def move(self, target: CommitState) -> None:
        assert (self.state, target) in _MOVES, (self.state, target)
        self.state = target

    def cut_puts(self) -> None:
        """Copies partial columns into columns of their own: a PUT record stores columns whole, or not at all."""
        self.puts = [_cut(put) for put in self.puts]
        self.put_raw_bytes = sum(put.stored.raw_bytes for put in self.puts)
        self.puts_whole_columns = True

    def keep_in_memory(self) -> None:
        self.is_in_memory = True
        self.has_puts = self.needs_sync = self.needs_record = False

    # As an entry of the journal.

    def merge(self, neighbours: "Sequence[Commit]") -> Iterable[tuple[int, Sequence[Record]]]:
        return self.context.merge(neighbours)

    def prepare(self) -> None:
        self.context.prepare(self)

    def apply(self, locations: Sequence[Location], _end: LogPosition) -> None:
        self.context.apply(self, locations)
        self.complete()

    def abort(self) -> None:
        self.context.abort(self)

    def fail(self, error: MillraceError) -> None:
        self.error = error
        if self.on_aborted is not None:
            self.on_aborted(self)
        self._wake()

    def use_retry(self) -> bool:
        # A commit with a stamp, or a repeat, was planned against numbers that earlier commits in flight had stored;
        # those commits were aborted as well, so it must be planned again.
        if self.has_puts or self.stamp is not None or self.is_repeat or self._is_retried:
            return False
        self._is_retried = True
        return True

    def ending_txns(self) -> Iterable[tuple[str, Receipt]]:
        return [(txn_id, self.receipt) for txn_id in self.txn_ids]

    # Its end.

    def complete(self) -> None:
        if self.on_committed is not None:
            self.on_committed(self)
        if self._waiters or self._callbacks:
            self._wake()

    def abandon(self) -> None:
        """Notes that its only caller has left."""
        if self.on_abandoned is not None:
            self.on_abandoned()

    def add_done_callback(self, callback: "Callable[[Commit], None]") -> None:
        """Calls back once a submitted commit is durable or aborted; at once where it has ended."""
        if self.is_in_flight:
            self._callbacks = (*self._callbacks, callback)
        else:
            callback(self)

    @property
    def is_in_flight(self) -> bool:
        return self.error is None and self.state is not CommitState.DURABLE

    def __await__(self) -> Generator[Any, None, Receipt]:
        # The same as `is_in_flight`, without its call: every commit is awaited.
        if self.error is None and self.state is not CommitState.DURABLE:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters = (*self._waiters, waiter)
            yield from waiter
        if self.error is not None:
            raise self.error
        return self.receipt

    def _wake(self) -> None:
        for waiter in self._waiters:
            # A cancelled caller has left.
            if not waiter.done():
                waiter.set_result(None)
        for callback in self._callbacks:
            callback(self)


def _cut(window: Window) -> Window:
    if window.is_whole:
        return window
    return Window.whole(StoredColumns(window.columns(), window.count, window.body_bytes))
