"""How a channel's commits become durable: at once in memory, or through a log."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.commit import Commit
from millrace_server.channels.config import ChannelConfig
from millrace_server.channels.contents import Contents
from millrace_server.errors import MillraceError

REMOVED_BATCHES_MAX = 1_000
"""Batches that one commit of a removal has, so that other calls wait no longer however many there are."""


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """The part of a claim that the log stores."""

    reader_id: str
    epoch: int
    lease_seconds: float
    has_ended: bool = False
    owner: str = ""


class Committer(Protocol):
    """Makes the commits of one channel durable, in the order in which they were submitted."""

    @property
    def fault(self) -> MillraceError | None:
        """The reason why no commit is possible; None while the committer works."""

    @property
    def is_stalled(self) -> bool:
        """Whether commits wait for a slow disk."""

    @property
    def disk_trouble(self) -> str:
        """What the disk lacks space for, in a sentence; empty while it has space."""

    @property
    def memory_event_count(self) -> int:
        """Events in memory only, which a crash loses."""

    def enforce(self, config: ChannelConfig) -> None:
        """Applies a new configuration."""

    def refuse_unfit(self, commit: Commit) -> None:
        """Raises the error with which `submit` would refuse a planned commit now; changes nothing."""

    def submit(self, commit: Commit) -> None:
        """Prepares a commit that was planned just now, and makes it durable: before this returns, or later.

        Raises:
            DiskFullError: There is no space for the puts; the commit is still PLANNED.
            ChannelLogFailedError: The log has failed; the commit is still PLANNED.
            DrainingError: The channel is being closed.
        """

    def record_rollback(self, txn_id: str, *, has_expired: bool) -> None:
        """Stores a rollback, without waiting for it."""

    def record_claim(self, claim: ClaimRecord) -> "asyncio.Future[None] | None":
        """Stores that a claim began or ended; returns a future that ends once it is durable, None if it is already."""


class MemoryCommitter:
    """The committer of a channel in memory: each commit is applied as soon as it is prepared."""

    fault: MillraceError | None = None
    is_stalled = False
    disk_trouble = ""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents

    @property
    def memory_event_count(self) -> int:
        return self._contents.capacity.event_count

    def enforce(self, _config: ChannelConfig) -> None:
        """Nothing depends on the configuration."""

    def refuse_unfit(self, _commit: Commit) -> None:
        """Memory takes each commit that has space."""

    def submit(self, commit: Commit) -> None:
        self._contents.prepare(commit)
        self._contents.apply(commit)
        commit.complete()

    def record_rollback(self, txn_id: str, *, has_expired: bool) -> None:
        """Nothing is stored."""

    def record_claim(self, _claim: ClaimRecord) -> None:
        """Nothing is stored."""


async def remove(
    contents: Contents, committer: Committer, taken: Sequence[StoredBatch], *, is_purge: bool = False
) -> None:
    """Removes events that were just taken out of the queue; returns them to it on failure."""
    await submit_removal(contents, committer, taken, is_purge=is_purge)


def submit_removal(
    contents: Contents, committer: Committer, taken: Sequence[StoredBatch], *, is_purge: bool = False
) -> Commit:
    """Begins what `remove` does, and returns the commit."""
    commit = Commit([], taken)
    commit.is_purge = is_purge
    commit.on_aborted = lambda _: contents.put_back(taken)
    try:
        committer.submit(commit)
    except MillraceError:
        contents.put_back(taken)
        raise
    return commit
