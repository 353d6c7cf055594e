"""A stream: what a query has read, is to read next, and may remove."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

import millrace_client as millrace
from millrace_spark.errors import MillraceSparkError, OptionError
from millrace_spark.reading.data_loss import LossPolicy
from millrace_spark.reading.left_out import LeftOut
from millrace_spark.reading.micro_batch import BatchPlanner
from millrace_spark.reading.offsets import OffsetJson, Offsets, ShardOffset, offsets_from_json, offsets_to_json
from millrace_spark.reading.options import AckMode, StreamOptions
from millrace_spark.reading.progress import ProgressJson, ShardProgress
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
class _BegunBatch:
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
        self._losses = LossPolicy(is_fatal=options.fail_on_data_loss)
        self._left_out = LeftOut(options.claim, self._losses)
        self._planner = BatchPlanner(options.limits)
        self._initial: OffsetJson | None = None
        self._ends: dict[Shard, int] | None = None
        self._planned: Offsets = {}
        self._done: Offsets = {}
        self._begun: _BegunBatch | None = None

    def fix_end(self) -> None:
        """Leaves what comes from now on for another run."""
        self._ends = {shard: view.next_sequence for shard, view in self._claims.views.items()}

    def initial_offset(self) -> OffsetJson:
        """Where a new query begins."""
        if self._initial is None:
            views = self._claims.views
            starting = self._options.starting
            starting.refuse_strangers("startingSequences", views)
            self._initial = offsets_to_json({shard: self._start(shard, view) for shard, view in views.items()})
        return self._initial

    def next_offset(self, start: OffsetJson, *, is_limited: bool) -> OffsetJson:
        """What the next micro-batch holds; `start` itself where there is nothing yet.

        Args:
            start: What the last one held; all of it is in Spark's commit log.
            is_limited: Whether the limits of the options hold.
        """
        logged = offsets_from_json(start)
        self._tell_of_last_batch(start, logged)
        # Nothing is done before the first micro-batch; a start at `latest` alone removes nothing of what it leaves out.
        if self._options.ack_mode is AckMode.PROGRESS and start != self._initial:
            self._done = logged
        give_up_at = time.monotonic() + WAIT_SECONDS
        while True:
            self._mend()
            positions = self._positions(logged)
            self._ask(positions, is_held=False)
            self._claims.wait_for(self._claims.are_known, _GRACE_SECONDS)
            batch = self._plan(positions, is_limited=is_limited)
            if any(offset.event_count for offset in batch.values()):
                self._planned = batch
                return offsets_to_json(batch)
            self._planned = positions
            if self._ends is not None and not self._is_behind(positions):
                self._claims.wait_for(self._claims.have_acknowledged, _LAST_ACKNOWLEDGEMENT_SECONDS_MAX)
                return start
            self._wait_for_news(give_up_at - time.monotonic())
            if self._ends is None and time.monotonic() >= give_up_at:
                return start

    def commit(self, end: OffsetJson) -> None:
        """Takes in that Spark has logged a micro-batch as done."""
        if self._options.ack_mode is AckMode.COMMIT:
            self._done = offsets_from_json(end)
            self._ask(self._planned, is_held=False)

    def partitions(self, end: OffsetJson) -> list[RangePartition]:
        """The tasks that read a micro-batch: one that was just planned, or one that an earlier run has logged."""
        self._mend()
        if self._begun is None or self._begun.end != end:
            self._begun = _BegunBatch(end, time.monotonic())
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

    def _start(self, shard: Shard, view: ShardView) -> ShardOffset:
        sequence = self._options.starting.sequence(shard, view.first_sequence, view.next_sequence)
        if sequence > view.next_sequence:
            raise OptionError(
                f"option startingSequences: is {sequence} for {shard}, whose next event will be {view.next_sequence}; "
                "ask for no more than that"
            )
        return self._losses.position(shard, ShardOffset(view.channel_id, sequence, sequence), view)

    def _mend(self) -> None:
        """Claims anew what was lost.

        Raises:
            MillraceSparkError: It is another's now, or a server has not been reached for too long.
        """
        for shard, view in self._claims.views.items():
            if view.lost is not None:
                try:
                    self._claims.mend(shard)
                except millrace.ChannelNotFoundError:
                    self._losses.tell(f"channel {shard}: was deleted while the query reads it")
                    self._claims.drop(shard)
            elif view.trouble is not None:
                waited_seconds = time.monotonic() - view.trouble_since
                if waited_seconds > self._options.claim.retry_seconds:
                    with explained(shard.endpoint, shard.channel):
                        raise view.trouble

    def _positions(self, logged: Mapping[Shard, ShardOffset]) -> Offsets:
        """Where each shard stands, those that have joined included."""
        views = self._claims.views
        positions = self._left_out.positions({shard: logged[shard] for shard in logged if shard not in views})
        for shard, view in views.items():
            if shard in logged:
                positions[shard] = self._losses.position(shard, logged[shard], view)
            else:
                positions[shard] = ShardOffset(view.channel_id, view.first_sequence, view.first_sequence)
        return positions

    def _ask(self, positions: Mapping[Shard, ShardOffset], *, is_held: bool) -> None:
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
            return self._planner.all_there_is(positions, ends)
        there = sum(max(ends.get(shard, 0) - offset.to_sequence, 0) for shard, offset in positions.items())
        if self._ends is None and self._planner.is_held(there, time.monotonic()):
            self._ask(positions, is_held=True)
            return self._planner.nothing(positions)
        sizes = self._claims.mean_body_bytes(ends) if there and self._options.limits.bytes_max is not None else {}
        return self._planner.next_batch(positions, ends, sizes)

    def _is_behind(self, positions: Mapping[Shard, ShardOffset]) -> bool:
        """Whether some shard that cannot be read just now has not been read to the fixed end."""
        ready = self._claims.ready_views()
        ends = self._ends or {}
        return any(
            shard not in ready and shard in positions and positions[shard].to_sequence < end
            for shard, end in ends.items()
            if shard in self._claims.views
        )

    def _wait_for_news(self, seconds_max: float) -> None:
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

    def _tell_of_last_batch(self, start: OffsetJson, logged: Mapping[Shard, ShardOffset]) -> None:
        if self._begun is None or self._begun.end != start:
            return
        counts = {shard: offset.event_count for shard, offset in logged.items() if offset.event_count}
        seconds = time.monotonic() - self._begun.began_at
        self._begun = None
        _log.info(
            "a micro-batch of %s events took %.3f s: %s",
            f"{sum(counts.values()):,}",
            seconds,
            ", ".join(
                f"{shard} {logged[shard].from_sequence} to {logged[shard].to_sequence - 1}" for shard in sorted(counts)
            ),
        )
