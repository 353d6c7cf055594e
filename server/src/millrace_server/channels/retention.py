"""Retention: events that were committed too long ago leave the channel as if they had been consumed."""

import asyncio
import time
from contextlib import suppress

import structlog

from millrace_server.channels.age_clock import AgeClock, ClockJump
from millrace_server.channels.commit import Commit
from millrace_server.channels.committer import REMOVED_BATCHES_MAX, Committer, submit_removal
from millrace_server.channels.contents import Contents
from millrace_server.errors import MillraceError

_log = structlog.stdlib.get_logger(__name__)

_CHECK_SECONDS_MIN = 0.5
# The wall clock may be set while a timer runs, which is noticed by then.
_CHECK_SECONDS_MAX = 60.0

_MICROS = 1_000_000


def elapsed_seconds() -> float:
    """Returns the seconds since some moment; on Linux also those during which the machine was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Retention:
    """Removes the expired events of one channel, at the latest a second after they have expired.

    What a transaction has taken stays with it, and is removed as soon as it comes back.
    """

    def __init__(self, name: str, contents: Contents, committer: Committer) -> None:
        self._loop = asyncio.get_running_loop()
        self._name = name
        self._contents = contents
        self._committer = committer
        self._seconds: float | None = None
        self._ages: AgeClock | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loading: asyncio.Task[None] | None = None
        self._is_removing = False
        contents.on_return = self._expire

    def enforce(self, seconds: float | None) -> None:
        """Keeps events for this long from now on; None: forever."""
        self.stop()
        if seconds is None:
            self._ages = None
        else:
            self._ages = self._ages or AgeClock(lambda: self._contents.now, elapsed_seconds, self._on_jump)
            self._seconds = seconds
            self._timer = self._loop.call_later(0, self._check)

    def stop(self) -> None:
        self._seconds = None
        if self._timer is not None:
            self._timer.cancel()

    def _on_jump(self, jump: ClockJump) -> None:
        if self._contents.queue.event_count:
            _log.warning(
                "the clock was set forward; earlier events expire by elapsed time",
                channel=self._name,
                clock_seconds=round(jump.wall_seconds),
                elapsed_seconds=round(jump.elapsed_seconds),
            )

    def _check(self) -> None:
        self._expire()
        seconds, ages = self._seconds, self._ages
        if seconds is None or ages is None:
            return
        if (oldest := self._contents.queue.first) is not None:
            seconds = min(seconds, (oldest.first_time - ages.time_before(seconds)) / _MICROS)
        seconds = min(max(seconds, _CHECK_SECONDS_MIN), _CHECK_SECONDS_MAX)
        self._timer = self._loop.call_later(seconds, self._check)

    def _expire(self) -> None:
        """Removes the oldest of the events that have expired; the others follow once that is durable."""
        seconds, ages = self._seconds, self._ages
        if seconds is None or ages is None or self._is_removing or self._committer.fault is not None:
            return
        queue = self._contents.queue
        end = self._contents.expired_end(ages.time_before(seconds))
        if queue.first_sequence is None or queue.first_sequence >= end:
            return
        batch = queue.batch_of(end - 1)
        if batch is not None and batch.end_sequence > end and not batch.window.stored.is_in_memory:
            # Only a part of it has expired, and it must be read to be cut.
            self._load(end - 1)
            end = batch.first_sequence
        if queue.first_sequence < end:
            self._remove_through(end - 1)

    def _load(self, sequence: int) -> None:
        if self._loading is None:
            self._loading = asyncio.ensure_future(self._loaded(sequence))

    async def _loaded(self, sequence: int) -> None:
        try:
            # Where it cannot be read, the next check tries again, until all of it has expired.
            with suppress(MillraceError):
                await self._contents.prefetch_end(sequence)
                self._expire()
        finally:
            self._loading = None

    def _remove_through(self, sequence: int) -> None:
        self._is_removing = True
        try:
            expired = self._contents.take_through(sequence, REMOVED_BATCHES_MAX)
            submit_removal(self._contents, self._committer, expired, is_purge=True).add_done_callback(self._on_end)
        except MillraceError:
            # Nothing has changed; the next check tries again.
            self._is_removing = False

    def _on_end(self, commit: Commit) -> None:
        self._is_removing = False
        if commit.error is None:
            self._contents.counters.expired += commit.take_count
            # Later, since this is called between the ends of commits.
            self._loop.call_soon(self._expire)
