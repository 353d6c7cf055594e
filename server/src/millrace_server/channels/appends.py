"""Appends: puts that are committed at once, without a transaction."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from millrace_server.channels.admission import always_allowed
from millrace_server.channels.batches import StoredColumns, Window
from millrace_server.channels.channel_core import ChannelCore
from millrace_server.channels.commit import Commit, Receipt
from millrace_server.channels.stamps import Stamp
from millrace_server.errors import DiskFullError, MillraceError


class Appends:
    """The appends to one channel; as of `Transactions`, a coroutine that is cancelled has its whole effect or none."""

    def __init__(self, core: ChannelCore) -> None:
        self._core = core
        self._contents = core.contents
        self._clock = asyncio.get_running_loop().time

    async def append(
        self,
        batches: Sequence[StoredColumns],
        stamp: Stamp | None,
        recheck: Callable[[], None] = always_allowed,
        *,
        also_draining: bool = False,
    ) -> Receipt:
        """Puts and commits at once, all or none, as soon as there is space.

        `recheck` is as in `commit`. `also_draining` is for the server's own sinks that set events aside: sinks continue
        while the server drains, since they drain it.
        """
        commit = self.begin_append(batches, stamp, also_draining=also_draining)
        if commit is not None:
            try:
                return await commit
            except asyncio.CancelledError:
                commit.abandon()
                raise
            except DiskFullError:
                # It waits for the disk, as one does that could not begin.
                pass
        return await self.append_later(batches, stamp, recheck, commit)

    def begin_append(
        self, batches: Sequence[StoredColumns], stamp: Stamp | None, *, also_draining: bool = False
    ) -> Commit | None:
        """Submits an append; returns None where it must wait for space, with `append_later`."""
        self._count_attempts(batches)
        commit = self.plan_append(batches, stamp, also_draining=also_draining)
        if not self._contents.admits(commit):
            return None
        try:
            self.submit_append(commit)
        except DiskFullError:
            return None
        return commit

    async def append_later(
        self,
        batches: Sequence[StoredColumns],
        stamp: Stamp | None,
        recheck: Callable[[], None] = always_allowed,
        commit: Commit | None = None,
    ) -> Receipt:
        """Ends an append that `begin_append` has begun, which returned `commit`; takes its place before it waits."""

        def plan() -> Commit:
            recheck()
            return self._contents.plan([Window.whole(stored) for stored in batches], [], stamp)

        keep_alive_seconds = self._core.config.keep_alive_seconds
        give_up = self._clock() + keep_alive_seconds
        while True:
            try:
                if commit is None:
                    commit = plan()
                    if not self._contents.admits(commit):
                        commit = await self._contents.wait_for_space(plan, keep_alive_seconds)
                    self.submit_append(commit)
                return await commit
            except asyncio.CancelledError:
                if commit is not None:
                    commit.abandon()
                raise
            except DiskFullError:
                commit = None
                if not await self._contents.wait_for_disk(give_up - self._clock()):
                    raise

    def begin_together(self, batches: Sequence[StoredColumns], stamp: Stamp | None, append_count: int) -> Commit | None:
        """Submits the events of several appends as one commit.

        Returns None, and has done nothing, where one of them is refused, was stored before, or must wait for space.
        """
        with suppress(MillraceError):
            commit = self.plan_append(batches, stamp)
            if not commit.dropped_count and self._contents.admits(commit):
                self.submit_append(commit, append_count)
                self._count_attempts(batches)
                return commit
        return None

    def _count_attempts(self, batches: Sequence[StoredColumns]) -> None:
        for stored in batches:
            self._contents.counters.put_attempts += stored.count

    def plan_append(
        self,
        batches: Sequence[StoredColumns],
        stamp: Stamp | None,
        *,
        also_draining: bool = False,
        is_bounded: bool = True,
    ) -> Commit:
        """Plans an append, for a caller that appends to several channels as one; see `append`.

        `is_bounded`: it holds no more than a transaction may. Several transactions that are committed together do.
        """
        if self._core.is_draining and not also_draining:
            self._core.refuse_if_draining()
        puts = []
        event_count = body_bytes = 0
        for stored in batches:
            puts.append(Window.whole(stored))
            event_count += stored.count
            body_bytes += stored.body_bytes
        limits = self._core.limits
        limits.refuse_too_large(batches)
        if is_bounded:
            limits.refuse_too_much(event_count, body_bytes)
        return self._contents.plan(puts, [], stamp)

    def refuse_unfit(self, commit: Commit) -> None:
        """Raises the error with which `submit_append` would refuse a planned append that has space."""
        if stamp := commit.stamp:
            self._contents.ledger.refuse_gap(stamp)
        self._core.committer.refuse_unfit(commit)

    def admits(self, commit: Commit, *, had_turn: bool = False) -> bool:
        """Whether a planned append need not wait for space; after its turn (`had_turn`) it may pass waiting ones."""
        if had_turn:
            return self._contents.capacity.admits(commit.event_count, commit.body_bytes)
        return self._contents.admits(commit)

    async def wait_for_space(self, plan: Callable[[], Commit], seconds: float) -> None:
        """Waits for an append's turn and for space; see `Contents.wait_for_space`."""
        _ = await self._contents.wait_for_space(plan, seconds)

    def full_error(self, commit: Commit) -> MillraceError:
        return self._contents.capacity.full_error(commit.event_count, commit.body_bytes, 0.0)

    def submit_append(self, commit: Commit, append_count: int = 1) -> None:
        # Checked at the submission, no earlier: what the stamp comes after may have waited for space before it.
        if stamp := commit.stamp:
            self._contents.ledger.refuse_gap(stamp)
        commit.txn_count = append_count
        self._core.committer.submit(commit)

    def refuse_unstorable(self, batches: Sequence[StoredColumns]) -> None:
        """Raises EventTooLargeError where one event would not fit even an empty channel."""
        self._core.limits.refuse_too_large(batches)
        self._core.limits.refuse_above_open_bytes(batches)

    async def wait_until_durable(self) -> None:
        """Waits until all commits in flight have ended; raises ChannelLogFailedError where the log has failed."""
        self._contents.refuse_if_closed()
        barrier = Commit([], [])
        # It ends behind all earlier commits, or is aborted with them.
        with suppress(DiskFullError):
            self._core.committer.submit(barrier)
            await barrier
