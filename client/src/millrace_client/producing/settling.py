"""The outcome of batches: what was stored, what failed for good, and who is informed."""

import logging
import time
from collections.abc import Callable

from millrace.v1 import channel_service_pb2 as pb
from millrace_client._decoding import time_if_said
from millrace_client.errors import MillraceError, SendAttempt
from millrace_client.producing.accumulator import CALLBACK_BYTES, Accumulator
from millrace_client.producing.batches import RetryQueue
from millrace_client.producing.buffer_memory import stopped_error
from millrace_client.producing.callbacks import CallbackRunner, Job
from millrace_client.producing.metrics import ProducerCounters, ProducerHooks
from millrace_client.producing.pages import Page
from millrace_client.producing.results import Callback, Outcome
from millrace_client.producing.servers import Batch
from millrace_client.producing.traced_batches import end_batch_span

LOG = logging.getLogger("millrace_client.producer")

REPEAT_SECONDS = 60.0
"""How long a failure of one kind is not logged again."""

_KINDS_MAX = 1_000


class RateLimitedLog:
    """Logs each kind of failure once, and again after a while if it lasts. For one thread.

    A program that ignores its futures learns of failures only here.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_at: dict[tuple[str, str, str], float] = {}
        self._unlogged_events: dict[tuple[str, str, str], int] = {}
        self._is_unreachable = False

    def retrying(self, server: str, channel: str, error: MillraceError, pause_seconds: float) -> None:
        """Logs that a batch was refused or got no response, and is sent again."""
        if self._is_due(server, channel, error.reason):
            message = "a batch for %s at %s is sent again, first in %.1f s: %s"
            LOG.warning(message, channel, server, pause_seconds, error.message)

    def failed(self, channel: str, event_count: int, error: MillraceError) -> None:
        kind = ("", channel, error.reason)
        event_count += self._unlogged_events.pop(kind, 0)
        if self._is_due(*kind):
            noun = "event" if event_count == 1 else "events"
            LOG.warning("%d %s for %s not stored: %s", event_count, noun, channel, error.message)
        else:
            self._unlogged_events[kind] = event_count

    def reachable(self, *, is_any: bool, names: str) -> None:
        """Logs when the last reachable server has gone."""
        if not is_any and not self._is_unreachable:
            LOG.warning("cannot reach %s; events wait in the buffer", names)
        self._is_unreachable = not is_any

    def _is_due(self, server: str, channel: str, reason: str) -> bool:
        now = self._clock()
        if len(self._logged_at) >= _KINDS_MAX:
            self._logged_at.clear()
            self._unlogged_events.clear()
        if now < self._logged_at.get((server, channel, reason), -REPEAT_SECONDS) + REPEAT_SECONDS:
            return False
        self._logged_at[server, channel, reason] = now
        return True


class BatchSettler:
    """Settles batches and pages: results, callbacks, hooks, counters and the log. For the engine's event loop.

    Attributes:
        retries: The batches that wait for another attempt. A part of a split batch follows the part before it.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        counters: ProducerCounters,
        callbacks: CallbackRunner,
        hooks: ProducerHooks | None,
        clock: Callable[[], float],
    ) -> None:
        self.retries = RetryQueue()
        self.log = RateLimitedLog()
        self._accumulator = accumulator
        self._counters = counters
        self._callbacks = callbacks
        self._hooks = hooks
        self._clock = clock
        accumulator.run_callbacks = self._run_callbacks
        if hooks is not None:
            accumulator.on_drop = self._note_drop

    def store(self, batch: Batch, server: str, response: pb.AppendStreamResponse) -> None:
        batch.note_attempt(server, None)
        seconds = self._clock() - batch.created_at
        counters = self._counters
        counters.events_stored += batch.count
        counters.batches_stored += 1
        counters.bytes_stored += len(batch.request)
        counters.note_latency(seconds, batch.count)
        new_count = _new_count(response, batch.count)
        counters.events_deduplicated += batch.count - new_count
        outcome = Outcome(
            batch.channel,
            first_sequence=response.first_sequence,
            # A batch is stored as a whole, and a resumed producer first sends again what it stored last: so the events
            # stored before are all of the batch, or its beginning.
            repeated_count=batch.count - new_count,
            attempts=tuple(batch.attempts),
            attempt_count=batch.attempt_count,
            commit_time=time_if_said(response, "commit_time"),
        )
        if batch.span is not None:
            end_batch_span(batch.span, batch.attempt_count, None)
        self._call_hooks(lambda hooks: hooks.batch_stored(batch.channel, server, batch.count, seconds))
        self._settle(batch, outcome)

    def fail(self, batch: Batch, error: MillraceError) -> None:
        """Settles a batch that will not be stored, and where no gap is allowed everything after it."""
        self.retries.discard(batch)
        if batch.doubted is not None:
            batch.doubted.note_gap()
        self._counters.events_failed += batch.count
        self.log.failed(batch.channel, batch.count, error)
        if batch.span is not None:
            end_batch_span(batch.span, batch.attempt_count, error)
        outcome = Outcome(
            batch.channel,
            attempts=tuple(batch.attempts),
            attempt_count=batch.attempt_count,
            error=error,
            is_known=batch.doubted is None,
        )
        followers = list(batch.followers)
        if batch.is_ordered:
            batch.followers.clear()
        self._settle(batch, outcome)
        if batch.is_ordered:
            for following in followers:
                self.fail(following, stopped_error(error))
            self.stop_behind(error)

    def fail_with_followers(self, batch: Batch, error: MillraceError) -> None:
        """Fails a batch and the parts that follow it."""
        followers, batch.followers = list(batch.followers), type(batch.followers)()
        for following in [batch, *followers]:
            self.fail(following, error)

    def fail_expired(self, timed_before: float, error_of: Callable[[str], MillraceError]) -> None:
        """Fails buffered events whose delivery time began before this."""
        for buffer, page in self._accumulator.take_expired(timed_before):
            error = error_of(buffer.channel)
            self._fail_page(page, Outcome(buffer.channel, error=error), error)
            self.stop_behind(error)

    def _fail_page(self, page: Page, outcome: Outcome, error: MillraceError) -> None:
        count = page.count - page.dropped_count
        self._counters.events_failed += count
        self.log.failed(outcome.channel, count, error)
        callbacks = self._accumulator.settle(page, page.dropped_count, page.count, 0, outcome)
        page.drop_content()
        self._run_and_release(callbacks, outcome, page.held_bytes)

    def stop_behind(self, error: MillraceError) -> None:
        """Fails everything after an event that failed, if the producer must leave no gap."""
        if self._accumulator.refuse_behind(error):
            self.fail_expired(float("inf"), lambda _channel: stopped_error(error))

    def note_failed_attempt(self, batch: Batch, attempt: SendAttempt, retry_seconds: float | None) -> None:
        """Counts a failed attempt. `retry_seconds` is the pause before the next one; None: there is none."""
        self._counters.attempts_failed += 1
        self._counters.retries += retry_seconds is not None
        self._call_hooks(lambda hooks: hooks.attempt_failed(batch.channel, attempt, batch.count, retry_seconds))

    def note_split(self, batch: Batch, error: MillraceError) -> None:
        """Counts an attempt that failed because the batch was too large. Its parts have no spans."""
        self._counters.attempts_failed += 1
        if batch.span is not None:
            end_batch_span(batch.span, batch.attempt_count, error)

    def _settle(self, batch: Batch, outcome: Outcome) -> None:
        offset = 0
        callbacks: list[tuple[Callback, int]] = []
        for part in batch.parts:
            callbacks += self._accumulator.settle(part.page, part.start, part.stop, offset, outcome)
            offset += part.stop - part.start
        self._run_and_release(callbacks, outcome, batch.held_bytes)
        if batch.followers:
            following = batch.followers.popleft()
            following.buckets, following.followers = batch.buckets, batch.followers
            if batch.is_ordered:
                following.timed_from = self._clock()
            self.retries.add(following, self._clock())
        else:
            self._accumulator.release_buckets(batch.buckets)

    def _run_and_release(self, callbacks: list[tuple[Callback, int]], outcome: Outcome, held_bytes: int) -> None:
        """Runs callbacks, and releases the memory of their events; their own memory is released after them."""
        kept_bytes = min(len(callbacks) * CALLBACK_BYTES, held_bytes)
        self._accumulator.release(held_bytes - kept_bytes)
        if callbacks:
            self._run_callbacks(callbacks, outcome)
            self._callbacks.submit(
                lambda: self._accumulator.release(kept_bytes), is_success=outcome.error is None, is_counted=False
            )

    def _run_callbacks(self, callbacks: list[tuple[Callback, int]], outcome: Outcome) -> None:
        """Runs callbacks, each with its event's result. For any thread."""
        for callback, offset in callbacks:
            self._callbacks.submit(_job(callback, outcome, offset), is_success=outcome.error is None)

    def _call_hooks(self, call: Callable[[ProducerHooks], None]) -> None:
        hooks = self._hooks
        if hooks is not None:
            self._callbacks.submit(lambda: call(hooks), is_success=True, is_counted=False)

    def _note_drop(self, channel: str, event_count: int) -> None:
        self._call_hooks(lambda hooks: hooks.events_dropped(channel, event_count))


def _new_count(response: pb.AppendStreamResponse, event_count: int) -> int:
    """Returns how many events of a batch were not stored before. A source responds without their sequences."""
    if response.first_sequence:
        return response.last_sequence - response.first_sequence + 1
    return 0 if response.deduplicated else event_count


def _job(callback: Callback, outcome: Outcome, offset: int) -> Job:
    return lambda: callback(outcome.result(offset))
