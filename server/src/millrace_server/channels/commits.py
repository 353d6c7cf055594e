"""How a channel's changes become lasting: at once in memory, or through a log."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.contents import Change, Contents, Receipt
from millrace_server.errors import MillraceError


@dataclass(frozen=True, slots=True)
class ClaimNote:
    """What must last of a claim."""

    reader_id: str
    epoch: int
    lease_seconds: float
    has_ended: bool = False


@dataclass(slots=True, kw_only=True)
class CommitEnd:
    """What its caller does at the end of a commit. Neither may raise."""

    made: Callable[[Receipt], None]
    """The change is made, and will last."""
    refused: Callable[[], None]
    """The change was undone; what it was to take is still out of the queue."""


class Commits(Protocol):
    """Makes changes of one channel's contents, in the order in which it was asked to."""

    @property
    def fault(self) -> MillraceError | None:
        """Why no change can be made any more; None while all is well."""

    @property
    def is_stalled(self) -> bool:
        """Whether changes wait longer for the disk than they should."""

    @property
    def memory_event_count(self) -> int:
        """Events of the channel that are in memory only, so that a crash loses them."""

    def enforce(self, config: ChannelConfig) -> None:
        """From now on does as a new configuration says."""

    def make(self, change: Change, txn_ids: Sequence[str], end: CommitEnd) -> "Receipt | asyncio.Future[Receipt]":
        """Begins a change that was planned just now.

        Args:
            change: What is to happen.
            txn_ids: The transactions that end with it.
            end: Called once it is sure how it ends: before this returns, or later from the event loop, whatever becomes
                of whoever waits for the future.

        Returns:
            The receipt where the change is made already; else a future of it, which ends with DiskFullError or
            ChannelLogFailedError where the change was undone. Whoever awaits it must shield it, unless nobody
            else ever does.

        Raises:
            DiskFullError: There is no room for the puts; nothing was begun.
            ChannelLogFailedError: Nothing can be committed any more.
            DrainingError: The channel is being closed, and what is in memory is being written to its log.
        """

    def note_rollback(self, txn_id: str, *, has_expired: bool) -> None:
        """Has it remembered, most likely also after a crash, that a transaction was rolled back."""

    def note_claim(self, note: ClaimNote) -> "asyncio.Future[None] | None":
        """Has a claim last.

        Returns:
            A future that ends once it does; None where it does already. The end of a claim need not be waited for.
        """


class MemoryCommits:
    """Commits of a channel in memory: what is begun is finished at once."""

    fault: MillraceError | None = None
    is_stalled = False

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    @property
    def memory_event_count(self) -> int:
        return self._contents.room.event_count

    def enforce(self, _config: ChannelConfig) -> None:
        """Nothing depends on it."""

    def make(self, change: Change, _txn_ids: Sequence[str], end: CommitEnd) -> Receipt:
        begun = self._contents.begin(change)
        self._contents.finish(begun)
        end.made(begun.receipt)
        return begun.receipt

    def note_rollback(self, txn_id: str, *, has_expired: bool) -> None:
        """Nothing is to be kept."""

    def note_claim(self, _note: ClaimNote) -> None:
        """Nothing is to be kept."""


async def remove(contents: Contents, commits: Commits, taken: Sequence[StoredBatch], *, is_purge: bool = False) -> None:
    """Removes events that were taken out of the queue just now; they return there where that cannot be.

    Raises:
        DiskFullError, ChannelLogFailedError: It could not be.
    """
    end = CommitEnd(made=_ignore, refused=lambda: contents.put_back(taken))
    try:
        removal = commits.make(Change([], taken, None, 0, is_purge=is_purge), (), end)
    except MillraceError:
        contents.put_back(taken)
        raise
    if not isinstance(removal, Receipt):
        await asyncio.shield(removal)


def _ignore(_receipt: Receipt) -> None:
    """Nobody is to be told."""
