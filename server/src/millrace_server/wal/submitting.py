"""Passes submissions from the event loop to the writer of a log, and the outcomes back."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Generic, TypeVar

from millrace_server.wal.format import PAYLOAD_BYTES_MAX
from millrace_server.wal.group_writer import GroupWriter
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import Done, Mergeable, Record, Submission

WriterT = TypeVar("WriterT", bound=GroupWriter)

CallSoon = Callable[[Callable[[], None]], object]
"""Schedules a call on the thread that awaits the outcomes."""


class Submitting(Generic[WriterT]):
    """The part of a log that takes records, once a subclass has set its writer."""

    def __init__(self, codec: PayloadCodec) -> None:
        self._codec = codec
        self._writer: WriterT | None = None
        self._call_soon: CallSoon | None = None
        self._generation = 0

    def compress(self, *, compresses: bool) -> None:
        """Turns compression on or off for later submissions; older records stay readable."""
        assert self._writer is not None, "start the log first"
        # A new codec, exchanged in one assignment: the writer's thread uses one of them for a whole group.
        self._writer.codec = replace(self._codec, compresses=compresses)

    def submit(
        self,
        records: Sequence[Record],
        *,
        needs_sync: bool,
        begins_segment: bool = False,
        done: Done,
        mergeable: Mergeable | None = None,
    ) -> int:
        """Appends records after those submitted before: all of them, or none if they are refused.

        A crash may leave a prefix of them, so the record that gives the others effect comes last. Payloads are encoded
        later, on the writer's thread, so they must not change.

        Args:
            records: For each its kind and the pieces of its payload. None at all is a barrier.
            needs_sync: Whether to complete only once they, and all before them, are durable.
            begins_segment: Whether to put them at the start of a new segment. A log's first records must, and there
                must be at least one.
            done: Called on the event loop, in the order of submissions, with the submission, which has its records'
                locations and their end by then, and with None, or LogFullError if the disk had no space (see
                `resume`), or LogFailedError if the log has failed.
            mergeable: What may be written as one with its neighbours, instead of the records, of which only the size
                counts then.

        Returns:
            Size of the records in a segment before their payloads are encoded.

        Raises:
            ValueError: A payload is longer than PAYLOAD_BYTES_MAX; nothing was submitted.
        """
        assert self._writer is not None, "replay and start the log first"
        if self._call_soon is None:
            self._call_soon = _waking_call(asyncio.get_running_loop())
        # With the current generation: the caller has seen all refusals up to its last `resume`, and none after it.
        submission = Submission(records, needs_sync, begins_segment, self._generation, done, mergeable)
        # The sum is known anyway, so single payloads are measured only if one of them can be too long.
        if submission.byte_count > PAYLOAD_BYTES_MAX:
            _check_lengths(records)
        self._writer.submit(submission)
        return submission.byte_count

    def resume(self) -> None:
        """Accepts submissions again after one ended with LogFullError.

        Until this call, all later submissions are refused as well, since they may build on the refused one. Those that
        were submitted before it and are not acknowledged yet still are.
        """
        # Never decremented or reset: the writer compares it with the last refused generation.
        self._generation += 1

    def _complete(self, group: Sequence[Submission], error: Exception | None) -> None:
        assert self._call_soon is not None, "a submission is completed only after it was submitted"
        # A loop that was closed in the meantime has no waiting callers; the writer must still write its last
        # SYNC_POINT.
        with suppress(RuntimeError):
            # One call for a group: waking the event loop costs more than all of the callbacks.
            self._call_soon(partial(_complete_all, group, error))


def _waking_call(loop: asyncio.AbstractEventLoop) -> CallSoon:
    """Returns what schedules a call on the running event loop, which it wakes from other threads only."""
    thread_id = threading.get_ident()

    def call_soon(act: Callable[[], None]) -> None:
        if threading.get_ident() == thread_id:
            loop.call_soon(act)
        else:
            loop.call_soon_threadsafe(act)

    return call_soon


def _check_lengths(records: Sequence[Record]) -> None:
    longest = max(sum(map(len, pieces)) for _, pieces in records)
    if longest > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a record's payload may have {PAYLOAD_BYTES_MAX} bytes; one has {longest}")


def _complete_all(group: Sequence[Submission], error: Exception | None) -> None:
    failures = []
    for submission in group:
        try:
            # In the order of submission, on which the journal relies: it applies commits in this order.
            submission.done(submission, error)
        except Exception as failure:  # noqa: BLE001 - whatever it is, the other callers must get their outcomes
            failures.append(failure)
    if failures:
        raise ExceptionGroup("callbacks of the log failed", failures)
