"""A stream: what a query has read, is to read next, and may remove."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

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
from millrace_spark.refusals import explained
from millrace_spark.shards import Shard

WAIT_SECONDS = 1.0
"""How long Spark is kept waiting for events; an idle query would ask again at once, again and again."""

_GRACE_SECONDS = 0.25
"""How long a batch that some shards have events for is held for the answers of the others."""

_LAST_ACKNOWLEDGEMENT_SECONDS_MAX = 10.0

_log = logging.getLogger("millrace_spark")


@dataclass(frozen=True)
class _RunningBatch:
    """A micro-batch that Spark reads."""

    end: OffsetJson
    began_at: float


class Stream:
    """Claims what is to be read, plans micro-batches, acknowledges them.

    Args:
        options: What to read, and how.

    Raises:
        MillraceSparkError: A server cannot be reached, or refuses. No claim is left behind.
    """

    def __init__(self, options: StreamOptions) -> None:
        self._options = options
        self._claims = StreamClaims(options.claim)
        self._losses = DataLossPolicy(is_fatal=options.fail_on_data_loss)
        self._removed = RemovedShards(options.claim, self._losses)
        self._planner = BatchPlanner(options.limits)
        self._starts = StartPositions(options.starting, self._claims, self._losses)
        self._ends: dict[Shard, int] | None = None
        self._planned: Offsets = {}
        self._done: Offsets = {}
        self._running: _RunningBatch | None = None

    def fix_end(self) -> None:
        """Leaves what comes from now on for another run."""
        self._ends = {shard: view.next_sequence for shard, view in self._claims.views.items()}

    def initial_offset(self) -> OffsetJson:
        """Where a new query begins.

        Nothing at all where a shard begins at its latest event: Spark logs this offset only together with the first
        micro-batch, and a restart before that would find another latest. Since any micro-batch differs from nothing,
        the first one goes at once, empty where it must be, and its offset has where the query began.
        """
        starts = self._starts.positions()
        return {} if self._starts.may_change() else offsets_to_json(starts)

    def next_offset(self, start: OffsetJson, *, is_limited: bool) -> OffsetJson:
        """What the next micro-batch holds; `start` itself where there is nothing yet.

        Args:
            start: What the last one held; all of it is in Spark's commit log.
            is_limited: Whether the limits of the options hold.
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
        """Takes in that Spark has logged a micro-batch as done."""
        if self._options.ack_mode is AckMode.COMMIT:
            self._mark_done(offsets_from_json(end))
            self._request_events(self._planned, is_held=False)

    def partitions(self, end: OffsetJson) -> list[RangePartition]:
        """The tasks that read a micro-batch: one that was just planned, or one that an earlier run has logged."""
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
                    f"channel {shard}: the micro-batch that is repeated reads it, but endpoints and channels do not "
                    "name it; name it until the query has read what it holds"
                )
            ranges.append(self._claimed_range(shard, self._losses.readable(shard, offset, views[shard]), views[shard]))
        limits = self._options.partitions
        return split_among_tasks(ranges, limits.events_max, limits.count_min)

    def progress(self) -> ProgressJson:
        """How far the stream is in each shard."""
        told = {}
        for shard, view in sorted(self._claims.views.items()):
            planned = self._planned.get(shard)
            position = planned.to_sequence if planned else view.first_sequence
            told[str(shard)] = ShardProgress(
                position=position,
                first=view.first_sequence,
                next=view.next_sequence,
                lag=max(view.next_sequence - position, 0),
                rate=view.rate,
                reachable=view.is_ready,
            ).to_json()
        return told

    def close(self) -> None:
        """Releases the claims."""
        self._claims.release()

    def _mark_done(self, done: Offsets) -> None:
        # An empty micro-batch says where the query began; a start at `latest` alone removes nothing of what it leaves
        # out.
        if _has_events(done):
            self._done = done

    def _recover_claims(self) -> None:
        """Claims anew what was lost.

        Raises:
            MillraceSparkError: It is another's now, a server has not been reached for too long, or the connector has
                a fault.
        """
        for shard, view in self._claims.views.items():
            if view.fault is not None:
                raise MillraceSparkError(
                    f"channel {shard}: the claim is not kept any more, by a fault of the connector "
                    f"({type(view.fault).__name__}: {view.fault}); start the query again, and report this"
                ) from view.fault
            if view.lost is not None:
                try:
                    self._claims.recover_claim(shard)
                except millrace.ChannelNotFoundError:
                    self._losses.report(f"channel {shard}: was deleted while the query reads it")
                    self._claims.drop(shard)
            elif view.failure is not None:
                waited_seconds = time.monotonic() - view.failing_since
                if waited_seconds > self._options.claim.retry_seconds:
                    with explained(shard.endpoint, shard.channel):
                        raise view.failure

    def _positions(self, logged: Mapping[Shard, ShardOffset]) -> Offsets:
        """Where each shard stands, those that have joined included."""
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
            # Events that are held back for more are no news.
            from_sequence = max(position, view.next_sequence) if is_held else position
            requests[shard] = ShardRequest(from_sequence, self._through_sequence(shard, view))
        self._claims.ask(requests)

    def _through_sequence(self, shard: Shard, view: ShardView) -> int:
        done = self._done.get(shard)
        # Sequences of another making of the channel, or of what it has lost, would name other events.
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
            return self._planner.nothing(positions)
        sizes: dict[Shard, float] = {}
        if there and self._options.limits.bytes_max is not None:
            sizes = self._claims.mean_body_bytes(ends)
            # One of unknown size would pass the limit by any factor; it goes when it has told.
            ends = {shard: end for shard, end in ends.items() if shard in sizes}
        return self._extended_to_events(self._planner.next_batch(positions, ends, sizes))

    def _extended_to_events(self, batch: Offsets) -> Offsets:
        """The same events, but each part ends where the next event is.

        Consumers may have left holes, and acknowledging what lies before a hole makes the event behind it the oldest.
        A position in the hole would then look as if events before it were gone. A part whose end is not known stays
        out of the batch.
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
            # Where there is none, the next to come was the view's.
            end = found[shard] or views[shard].next_sequence if shard in found else offset.from_sequence
            beyond[shard] = replace(offset, to_sequence=end)
        return beyond

    def _is_behind(self, positions: Mapping[Shard, ShardOffset]) -> bool:
        """Whether some shard that cannot be read just now has not been read to the fixed end."""
        ready, views = self._claims.ready_views(), self._claims.views
        ends = {
            shard: min(end, ready[shard].next_sequence) if shard in ready else end
            for shard, end in (self._ends or {}).items()
            if shard in views
        }
        return any(shard in positions and positions[shard].to_sequence < end for shard, end in ends.items())

    def _await_last_acknowledgement(self) -> None:
        """Has what is done removed before Spark ends the run; says in the log where that is left to another."""
        self._claims.wait_for(self._claims.all_settled, _LAST_ACKNOWLEDGEMENT_SECONDS_MAX)
        for shard in self._claims.unacknowledged():
            _log.warning(
                "channel %s: did not remove in time what was read from it; the next start of the query removes it",
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
            lease_seconds=self._claims.lease_seconds[shard],
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
