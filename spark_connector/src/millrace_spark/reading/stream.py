"""The driver's part of a streaming query: claims shards, plans micro-batches, acknowledges them."""

import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

import millrace_client as millrace
from millrace_spark.errors import MillraceSparkError
from millrace_spark.reading.micro_batch import BatchPlanner
from millrace_spark.reading.offsets import (
    OffsetJson,
    Offsets,
    ProgressJson,
    ShardOffset,
    ShardProgress,
    offsets_from_json,
    offsets_to_json,
)
from millrace_spark.reading.options import AckMode, StreamOptions
from millrace_spark.reading.positions import DataLossPolicy, RemovedShards, StartPositions
from millrace_spark.reading.ranges import ClaimedRange, RangePartition, split_among_tasks
from millrace_spark.reading.shard_claim import ShardRequest, ShardView
from millrace_spark.reading.stream_claims import StreamClaims
from millrace_spark.servers import translated_errors
from millrace_spark.shards import Shard

WAIT_SECONDS = 1.0
"""The longest wait for events in one call of Spark, which would otherwise call in a busy loop while idle."""

_GRACE_SECONDS = 0.25
"""The longest wait for the responses of other shards when some already have events."""

_LAST_ACKNOWLEDGEMENT_SECONDS_MAX = 10.0

_log = logging.getLogger("millrace_spark")


@dataclass(frozen=True)
class _RunningBatch:
    """The micro-batch that Spark reads at the moment."""

    end: OffsetJson
    began_at: float


class Stream:
    """Claims the shards of a query, plans its micro-batches, and acknowledges them."""

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._claims = StreamClaims(options.claim)
        self._losses = DataLossPolicy(is_fatal=options.tasks.fail_on_data_loss)
        self._removed = RemovedShards(options.claim, self._losses)
        self._planner = BatchPlanner(options.limits)
        self._starts = StartPositions(options.starting, self._claims, self._losses)
        self._ends: dict[Shard, int] | None = None
        self._planned: Offsets = {}
        self._done: Offsets = {}
        self._running: _RunningBatch | None = None

    def fix_end(self) -> None:
        """Ends the run at the events that are in the channels now."""
        self._ends = {shard: view.next_sequence for shard, view in self._claims.views.items()}

    def initial_offset(self) -> OffsetJson:
        """Returns the start of a new query.

        It is empty if a shard starts at its latest event: Spark logs this offset only with the first micro-batch, and
        a restart before that would find another latest event. Every micro-batch differs from the empty offset, so that
        the first one is planned at once, possibly without events, and its offset holds the start of the query.
        """
        starts = self._starts.positions()
        return {} if self._starts.may_change() else offsets_to_json(starts)

    def next_offset(self, start: OffsetJson, *, is_limited: bool) -> OffsetJson:
        """Returns the offset of the next micro-batch; `start` itself if there are no events.

        Args:
            start: The offset of the last micro-batch, which is in Spark's commit log.
            is_limited: Whether the limits of the options apply.
        """
        logged = offsets_from_json(start)
        self._log_last_batch(start, logged)
        if self._options.ack_mode is AckMode.PROGRESS:
            self._mark_done(logged)
        logged = logged or self._starts.positions()
        give_up_at = time.monotonic() + WAIT_SECONDS
        while True:
            self._recover_claims()
            positions = self._positions(logged)
            self._request_events(positions, is_held=False)
            self._claims.wait_for(self._claims.all_known, _GRACE_SECONDS)
            batch = self._plan(positions, is_limited=is_limited)
            if _has_events(batch) or (batch and not start):
                self._planned = batch
                return offsets_to_json(batch)
            self._planned = positions
            if self._ends is not None and not self._is_behind(positions):
                self._await_last_acknowledgement()
                return start
            self._wait_for_change(give_up_at - time.monotonic())
            if self._ends is None and time.monotonic() >= give_up_at:
                return start

    def commit(self, end: OffsetJson) -> None:
        if self._options.ack_mode is AckMode.COMMIT:
            self._mark_done(offsets_from_json(end))
            self._request_events(self._planned, is_held=False)

    def partitions(self, end: OffsetJson) -> list[RangePartition]:
        """Returns the partitions of a micro-batch, which was just planned, or logged by an earlier run."""
        self._recover_claims()
        if self._running is None or self._running.end != end:
            self._running = _RunningBatch(end, time.monotonic())
        views = self._claims.views
        ranges = []
        for shard, offset in offsets_from_json(end).items():
            if not offset.event_count:
                continue
            if shard not in views:
                raise MillraceSparkError(
                    f"channel {shard}: Spark repeats a micro-batch that reads it, but endpoints and channels do not "
                    "name it; name it until the query has read its events"
                )
            ranges.append(self._claimed_range(shard, self._losses.readable(shard, offset, views[shard]), views[shard]))
        limits = self._options.partitions
        return split_among_tasks(ranges, limits.events_max, limits.count_min)

    def progress(self) -> ProgressJson:
        progress = {}
        for shard, view in sorted(self._claims.views.items()):
            planned = self._planned.get(shard)
            position = planned.to_sequence if planned else view.first_sequence
            progress[str(shard)] = asdict(
                ShardProgress(
                    position=position,
                    first=view.first_sequence,
                    next=view.next_sequence,
                    lag=max(view.next_sequence - position, 0),
                    rate=view.rate,
                    reachable=view.is_ready,
                )
            )
        return progress

    def close(self) -> None:
        self._claims.release()

    def _mark_done(self, done: Offsets) -> None:
        # An empty first micro-batch only states the start of the query; a start at `latest` alone removes no events.
        if _has_events(done):
            self._done = done

    def _recover_claims(self) -> None:
        """Claims lost shards again.

        Raises:
            MillraceSparkError: Another reader holds a claim, a server has been unreachable for too long, or the
                connector has a bug.
        """
        for shard, view in self._claims.views.items():
            if view.fault is not None:
                raise MillraceSparkError(
                    f"channel {shard}: the claim is no longer renewed, because of a bug in the connector "
                    f"({type(view.fault).__name__}: {view.fault}); start the query again, and report this"
                ) from view.fault
            if view.lost is not None:
                try:
                    self._claims.recover_claim(shard)
                except millrace.ChannelNotFoundError:
                    self._losses.report(f"channel {shard}: was deleted while the query was reading it")
                    self._claims.drop(shard)
            elif view.failure is not None:
                waited_seconds = time.monotonic() - view.failing_since
                if waited_seconds > self._options.claim.retry_seconds:
                    with translated_errors(shard.endpoint, shard.channel):
                        raise view.failure

    def _positions(self, logged: Mapping[Shard, ShardOffset]) -> Offsets:
        """Returns the position of each shard, including those that have joined."""
        views = self._claims.views
        positions = self._removed.positions({shard: logged[shard] for shard in logged if shard not in views})
        for shard, view in views.items():
            if shard in logged:
                positions[shard] = self._losses.position(shard, logged[shard], view)
            else:
                positions[shard] = ShardOffset(view.channel_id, view.first_sequence, view.first_sequence)
        return positions

    def _request_events(self, positions: Mapping[Shard, ShardOffset], *, is_held: bool) -> None:
        requests = {}
        for shard, view in self._claims.views.items():
            position = positions[shard].to_sequence if shard in positions else view.next_sequence
            # While a batch waits for more events, the existing ones are not news.
            from_sequence = max(position, view.next_sequence) if is_held else position
            requests[shard] = ShardRequest(from_sequence, self._through_sequence(shard, view))
        self._claims.request(requests)

    def _through_sequence(self, shard: Shard, view: ShardView) -> int:
        done = self._done.get(shard)
        # If the channel was created again, or has lost events, the same sequences are other events.
        if done is None or done.channel_id != view.channel_id or done.to_sequence > view.next_sequence:
            return 0
        return done.to_sequence - 1

    def _plan(self, positions: Offsets, *, is_limited: bool) -> Offsets:
        ends = {shard: view.next_sequence for shard, view in self._claims.ready_views().items()}
        if self._ends is not None:
            ends = {shard: min(end, self._ends.get(shard, 0)) for shard, end in ends.items()}
        if not is_limited:
            return self._extended_to_events(self._planner.unlimited_batch(positions, ends))
        there = sum(max(ends.get(shard, 0) - offset.to_sequence, 0) for shard, offset in positions.items())
        if self._ends is None and self._planner.is_held(there, time.monotonic()):
            self._request_events(positions, is_held=True)
            return self._planner.unlimited_batch(positions, {})
        sizes: dict[Shard, float] = {}
        if there and self._options.limits.bytes_max is not None:
            sizes = self._claims.mean_body_bytes(ends)
            # A shard of unknown size could exceed the limit by any factor; it waits until its size is known.
            ends = {shard: end for shard, end in ends.items() if shard in sizes}
        return self._extended_to_events(self._planner.next_batch(positions, ends, sizes))

    def _extended_to_events(self, batch: Offsets) -> Offsets:
        """Returns the same events, but with the end of each range at the next event.

        Consumers may have left gaps. Acknowledging the events before a gap makes the event after it the oldest, and a
        position in the gap would look like lost events. A range whose end is unknown is removed from the batch.
        """
        views = self._claims.views
        cut = {
            shard: offset.to_sequence
            for shard, offset in batch.items()
            if offset.event_count and shard in views and offset.to_sequence < views[shard].next_sequence
        }
        found = self._claims.first_events(cut)
        beyond = dict(batch)
        for shard in cut:
            offset = batch[shard]
            # Without an event there, the end is the next sequence of the view.
            end = found[shard] or views[shard].next_sequence if shard in found else offset.from_sequence
            beyond[shard] = replace(offset, to_sequence=end)
        return beyond

    def _is_behind(self, positions: Mapping[Shard, ShardOffset]) -> bool:
        """Whether a shard that cannot be read at the moment has not been read to the fixed end."""
        ready, views = self._claims.ready_views(), self._claims.views
        ends = {
            shard: min(end, ready[shard].next_sequence) if shard in ready else end
            for shard, end in (self._ends or {}).items()
            if shard in views
        }
        return any(shard in positions and positions[shard].to_sequence < end for shard, end in ends.items())

    def _await_last_acknowledgement(self) -> None:
        """Waits for the last acknowledgements before Spark ends the run; logs those that the next run has to repeat."""
        self._claims.wait_for(self._claims.all_settled, _LAST_ACKNOWLEDGEMENT_SECONDS_MAX)
        for shard in self._claims.unacknowledged():
            _log.warning(
                "channel %s: did not acknowledge in time; the next start of the query removes its events",
                shard,
            )

    def _wait_for_change(self, seconds_max: float) -> None:
        seen = self._claims.views

        def has_changed() -> bool:
            return any(
                shard not in seen
                or (view.next_sequence, view.is_ready) != (seen[shard].next_sequence, seen[shard].is_ready)
                for shard, view in self._claims.views.items()
            )

        self._claims.wait_for(has_changed, min(max(seconds_max, 0.05), WAIT_SECONDS))

    def _claimed_range(self, shard: Shard, offset: ShardOffset, view: ShardView) -> ClaimedRange:
        return ClaimedRange(
            endpoint=shard.endpoint,
            channel=shard.channel,
            reader_id=self._claims.options.reader_id,
            channel_id=view.channel_id,
            epoch=view.epoch,
            first_sequence=offset.from_sequence,
            next_sequence=offset.to_sequence,
            lease_seconds=view.lease_seconds,
            is_held=True,
        )

    def _log_last_batch(self, start: OffsetJson, logged: Mapping[Shard, ShardOffset]) -> None:
        if self._running is None or self._running.end != start:
            return
        counts = {shard: offset.event_count for shard, offset in logged.items() if offset.event_count}
        seconds = time.monotonic() - self._running.began_at
        self._running = None
        if not counts:
            return
        _log.info(
            "a micro-batch of %s events took %.3f s: %s",
            f"{sum(counts.values()):,}",
            seconds,
            ", ".join(
                f"{shard} {logged[shard].from_sequence} to {logged[shard].to_sequence - 1}" for shard in sorted(counts)
            ),
        )


def _has_events(batch: Offsets) -> bool:
    return any(offset.event_count for offset in batch.values())
