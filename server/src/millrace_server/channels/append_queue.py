"""Appends of one channel, of which small ones share a commit."""

import asyncio
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from millrace_server.channels.appends import Appends
from millrace_server.channels.batches import StoredColumns
from millrace_server.channels.commit import Commit, Receipt
from millrace_server.channels.queue import is_small, may_merge
from millrace_server.channels.runs import together
from millrace_server.channels.stamps import Stamp
from millrace_server.wal.group_writer import COMMIT_DELAY_SECONDS

_TOGETHER_MAX = 256
"""Appends that one commit stores at most."""

_MANY_WAITING = 8
"""If at least this many appends are waiting at the end of a commit, the next one waits longer, for more of them."""

_LONG_DELAY_SECONDS = 3 * COMMIT_DELAY_SECONDS

_NONE_AWAITED = sys.maxsize


class QueuedAppend(Protocol):
    """An append of a caller who does not wait for its end before the next one.

    Attributes:
        is_abandoned: The caller has left: it need not begin any more.
    """

    batches: Sequence[StoredColumns]
    stamp: Stamp | None
    is_abandoned: bool

    def begin(self) -> Commit | None:
        """Begins it on its own; returns None if it has ended, or will end without the queue."""

    def end(self, receipt: Receipt) -> None:
        """Ends it: it is durable."""

    def refuse(self, error: Exception) -> None:
        """Ends it with an error."""


class AppendQueue:
    """Begins appends in their order.

    Small ones that come while others are being stored wait for these, and are then stored in one commit. Where that is
    refused, or must wait for space, each begins on its own.

    A commit of its own costs as much as many small appends. So where several were stored together, the next commit
    waits for as many, as the log waits for the callers of a group: responded together, they usually send again
        together.
    Where many have arrived in the meantime, it waits longer, for as many more: under such a load, callers mostly wait
    for the event loop, which has less to do with fewer, larger commits. A lone append never waits.
    """

    def __init__(self, appends: Appends, *, shares_commits: bool = True) -> None:
        """`shares_commits`: the channel itself refuses what it cannot store, before it is part of a commit."""
        self._loop = asyncio.get_running_loop()
        self._appends = appends
        self._shares_commits = shares_commits
        self._waiting: deque[QueuedAppend] = deque()
        self._in_flight = 0
        self._awaited_count = _NONE_AWAITED
        self._delay: asyncio.TimerHandle | None = None

    def add(self, append: QueuedAppend, *, may_wait: bool) -> None:
        """Begins an append, or lets it wait; all that wait begin before it."""
        batches = append.batches
        is_behind = may_wait and (self._in_flight or self._waiting or self._delay) and self._shares_commits
        if is_behind and len(batches) == 1 and is_small(batches[0]):
            self._waiting.append(append)
            if len(self._waiting) >= self._awaited_count:
                self._begin_waiting()
        else:
            self._begin_waiting()
            self._begin(append)

    def _begin_waiting(self) -> None:
        if self._delay is not None:
            self._delay.cancel()
            self._delay, self._awaited_count = None, _NONE_AWAITED
        may_share = True
        while appends := self._next_together():
            if len(appends) == 1 or not may_share or not self._begin_together(appends):
                for append in appends:
                    # Once one waits for space, those after it may not take that together: they might overtake it.
                    may_share &= self._begin(append)

    def _next_together(self) -> list[QueuedAppend]:
        """Removes the first appends that one commit can store."""
        waiting, appends = self._waiting, list[QueuedAppend]()
        count = raw_bytes = body_bytes = 0
        before: QueuedAppend | None = None
        while waiting and len(appends) < _TOGETHER_MAX:
            append = waiting[0]
            if not append.is_abandoned:
                stored = append.batches[0]
                count += stored.count
                raw_bytes += stored.raw_bytes
                body_bytes += stored.body_bytes
                if before is not None and not (
                    _may_follow(before.stamp, append.stamp) and may_merge(count, raw_bytes, body_bytes, raw_bytes)
                ):
                    break
                appends.append(append)
                before = append
            waiting.popleft()
        return appends

    def _begin_together(self, appends: Sequence[QueuedAppend]) -> bool:
        first, last = appends[0].stamp, appends[-1].stamp
        stamp = first if first is None or last is None else replace(first, last=last.last)
        batches = together([append.batches[0] for append in appends])
        commit = self._appends.begin_together(batches, stamp, len(appends))
        if commit is not None:
            self._follow(appends, commit)
        return commit is not None

    def _begin(self, append: QueuedAppend) -> bool:
        commit = append.begin()
        if commit is not None:
            self._follow([append], commit)
        return commit is not None

    def _follow(self, appends: Sequence[QueuedAppend], commit: Commit) -> None:
        self._in_flight += 1
        commit.add_done_callback(partial(self._on_end, appends))

    def _on_end(self, appends: Sequence[QueuedAppend], commit: Commit) -> None:
        self._in_flight -= 1
        if not self._in_flight:
            is_in_log = commit.error is None and not commit.is_in_memory
            self._begin_next(len(appends) if is_in_log else 0)
        if commit.error is not None:
            for append in appends:
                append.refuse(commit.error)
        elif len(appends) == 1:
            appends[0].end(commit.receipt)
        else:
            first_sequence, _, is_deduplicated, commit_time = commit.receipt
            for append in appends:
                end_sequence = first_sequence + append.batches[0].count
                append.end(Receipt(first_sequence, end_sequence - 1, is_deduplicated, commit_time))
                first_sequence = end_sequence

    def _begin_next(self, awaited_count: int) -> None:
        """Begins what waits, or waits for more; later, since this is called between the ends of commits."""
        waiting_count, delay_seconds = len(self._waiting), COMMIT_DELAY_SECONDS
        if waiting_count >= _MANY_WAITING and awaited_count > 1:
            awaited_count = min(awaited_count + waiting_count, _TOGETHER_MAX)
            delay_seconds = _LONG_DELAY_SECONDS
        if waiting_count < awaited_count > 1:
            self._awaited_count = awaited_count
            self._delay = self._loop.call_later(delay_seconds, self._begin_waiting)
        elif waiting_count:
            self._loop.call_soon(self._begin_waiting)


def _may_follow(before: Stamp | None, stamp: Stamp | None) -> bool:
    """Whether one commit can store an append with a stamp behind one with another."""
    return stamp is before if stamp is None or before is None else stamp.follows(before)
