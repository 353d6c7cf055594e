"""Commits of a spillable channel: to memory while little is in the channel, else to its log.

There is one queue, in the order of sequences, and each batch in it is in memory only or in the log. So there is one
accounting, a take goes from one to the other without noticing, and a transaction may take from both.

**Where a commit goes.** As a whole, since half of it must not be lost. It goes to memory where its puts fit there and
the log holds no event of the channel. Else it goes to the log, and so do all that come behind it until the last event
of the log has been consumed: memory again as soon as one event has left it would scatter over the whole queue what a
crash loses, and would have the disk begin and end for each handful of events. So the queue is a piece in memory and
behind it one in the log, and a crash loses the oldest and leaves no gap between those that remain. Only where the disk
has no room, memory takes what it can hold, also behind the log.

What takes events of the log is written to the log with its puts: in memory alone these would be lost by a crash, and
what was taken for them would be gone. What takes from memory needs no record. So a commit that has to do with memory
alone costs what it does in a memory channel: no write, no sync.

**What a crash leaves.** All that is in the log, in order. What was in memory is lost with the process, with the stamps
and transactions that stored it (see `MemoryTier`): a producer or a source that sends it again stores it, and the
retry of a commit is told that the transaction is not known. Those of events that were consumed out of memory are in
the next checkpoint; what was consumed behind the last one before a crash is stored and delivered once more, should it
be sent again. Claims and their epochs are in the log always. No sequence is given twice: those for memory come out of
a reserve that the log knows of, and a channel that was not stopped gracefully goes on behind its reserve.

**A graceful stop** writes what is in memory to the log, the oldest first, and so loses nothing.

**A failed log** takes no puts any more, as that of a file channel: in memory they would be lost by the very restart
that the channel needs. But what is in memory can still be taken, since that is its only way out.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby

import structlog

from millrace_server.channels.batches import StoredBatch
from millrace_server.channels.commits import ClaimNote, CommitEnd
from millrace_server.channels.config import ChannelConfig, SpillableChannelConfig
from millrace_server.channels.contents import Change, Receipt
from millrace_server.channels.journal import Journal
from millrace_server.channels.memory_tier import MemoryTier
from millrace_server.errors import DiskFullError, DrainingError, MillraceError

NO_ROOM_SECONDS = 10.0
"""So long after the disk had no room, what fits goes to memory without asking for the disk again."""

_RESERVING_PAUSE_SECONDS = 1.0
"""So long after the disk had no room, no sequences are reserved."""

_KEPT_BYTES = 16 << 20
"""Bytes of columns that are written at once at the end."""

_log = structlog.stdlib.get_logger(__name__)


class SpillCommits:
    """Chooses for each commit between memory and the log.

    Args:
        name: The channel's name, for the server's log.
        journal: Writes to the channel's log.
        share: What of the channel is in memory only; the journal's.
    """

    def __init__(self, name: str, journal: Journal, share: MemoryTier) -> None:
        self._name = name
        self._journal = journal
        self._tier = share
        self._clock = asyncio.get_running_loop().time
        self._is_ending = False

    @property
    def fault(self) -> MillraceError | None:
        """Why nothing can be put any more, nor removed from the log; None while all is well."""
        return self._journal.fault

    @property
    def is_stalled(self) -> bool:
        """Whether changes wait longer for the disk than they should."""
        return self._journal.is_stalled

    @property
    def memory_event_count(self) -> int:
        return self._tier.event_count

    def enforce(self, config: ChannelConfig) -> None:
        assert isinstance(config, SpillableChannelConfig), "a channel's type never changes"
        self._journal.enforce(config)
        self._tier.enforce(config)

    def make(self, change: Change, txn_ids: Sequence[str], end: CommitEnd) -> "Receipt | asyncio.Future[Receipt]":
        if self._is_ending:
            # It would be too late for it to be written.
            raise DrainingError("the channel is being closed; go to another server or come back later")
        takes_from_log = any(take.is_in_log for take in change.takes)
        if not takes_from_log and self._belongs_to_memory(change):
            made = self._journal.make_in_memory(change, txn_ids, end)
        else:
            try:
                made = self._journal.make(change, txn_ids, end)
            except DiskFullError:
                if takes_from_log or not self._fits_memory(change):
                    raise
                made = self._journal.make_in_memory(change, txn_ids, end)
        if self._tier.is_low(self._journal.contents.assigned_sequence):
            self._reserve()
        return made

    def _belongs_to_memory(self, change: Change) -> bool:
        if not (change.puts or change.has_new_numbers):
            return True
        if self.fault is not None:
            return False
        is_its_turn = not self._tier.log_event_count or self._seconds_with_room < NO_ROOM_SECONDS
        return is_its_turn and self._fits_memory(change)

    def _fits_memory(self, change: Change) -> bool:
        return self._tier.admits(change, self._journal.contents.assigned_sequence)

    def _reserve(self) -> None:
        if self.fault is None and self._seconds_with_room >= _RESERVING_PAUSE_SECONDS:
            # Nobody waits for it: where it comes too late, or not at all, commits go to the log.
            _ = self._journal.keep()

    @property
    def _seconds_with_room(self) -> float:
        """How long ago it is that the disk had no room."""
        return self._clock() - self._journal.had_no_room_at

    def note_rollback(self, txn_id: str, *, has_expired: bool) -> None:  # noqa: ARG002 - as the journal has it
        # It is in the next checkpoint: to write each would have memory wait for the disk.
        self._journal.change_count += 1

    def note_claim(self, note: ClaimNote) -> "asyncio.Future[None] | None":
        return self._journal.note_claim(note)

    async def keep_all(self, timeout_seconds: float | None) -> None:
        """Writes what is in memory only to the log, the oldest first, since the channel is being closed.

        It makes no commits any more. What could not be written in time, or at all, is told to the server's log: it is
        lost. To be called before the last checkpoint.
        """
        self._is_ending = True
        self._tier.end()
        # The reserve that is not needed any more, and what was consumed, are worth a last checkpoint.
        self._journal.change_count += 1
        reason = "it took longer than the server was given to stop"
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                try:
                    if self._journal.has_commits_under_way:
                        # They may consume some of it: this is finished behind them.
                        await asyncio.shield(self._journal.keep())
                    for batches in self._portions():
                        await asyncio.shield(self._journal.keep(batches))
                except MillraceError as error:
                    reason = str(error)
        if self._tier.event_count:
            _log.error(
                "events that were in memory only are lost",
                channel=self._name,
                events=self._tier.event_count,
                reason=reason,
            )

    def _portions(self) -> Iterator[list[StoredBatch]]:
        """What is in memory only, in portions for one write each."""
        in_memory = (batch for batch in self._journal.contents.held_batches() if not batch.is_in_log)
        portion: list[StoredBatch] = []
        portion_bytes = 0
        # Events that came together are together, though some between them may be gone: their columns are written once.
        in_order = sorted(in_memory, key=lambda batch: batch.first_sequence)
        for stored, batches in groupby(in_order, key=lambda batch: batch.window.stored):
            portion += batches
            portion_bytes += stored.raw_bytes
            if portion_bytes >= _KEPT_BYTES:
                yield portion
                portion, portion_bytes = [], 0
        if portion:
            yield portion
