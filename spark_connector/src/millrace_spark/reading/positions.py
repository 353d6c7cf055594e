"""The position of a stream in each shard: start positions, lost events, removed shards."""

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import millrace_client as millrace
from millrace_spark.errors import DataLossError, OptionError
from millrace_spark.reading.bounds import Bounds
from millrace_spark.reading.offsets import Offsets, ShardOffset
from millrace_spark.reading.options import ClaimOptions
from millrace_spark.reading.shard_claim import ShardView
from millrace_spark.reading.stream_claims import StreamClaims
from millrace_spark.servers import connected
from millrace_spark.shards import Shard, is_meant

_ADVICE = "find out why; to continue with the remaining events, set the option failOnDataLoss to false for one start"

_log = logging.getLogger("millrace_spark")


class DataLossPolicy:
    """The option `failOnDataLoss`.

    Args:
        is_fatal: Whether a loss ends the query. Otherwise each loss is logged once, and the query continues.
    """

    def __init__(self, *, is_fatal: bool) -> None:
        self._is_fatal = is_fatal
        self._reported: set[str] = set()

    def report(self, what: str) -> None:
        """Raises a DataLossError, or logs the loss once."""
        if self._is_fatal:
            raise DataLossError(f"{what}; {_ADVICE}")
        if what not in self._reported:
            self._reported.add(what)
            _log.warning("%s; failOnDataLoss is false, so the query continues with the remaining events", what)

    def position(self, shard: Shard, offset: ShardOffset, view: ShardView) -> ShardOffset:
        """Returns the offset to continue from: the given one, or the nearest one that still exists."""
        first, following = view.first_sequence, view.next_sequence
        if offset.channel_id != view.channel_id:
            self.report(
                f"channel {shard}: was created again since the checkpoint was written, so its sequences start over "
                f"(position {offset.to_sequence}, now {first} to {following - 1})"
            )
            return ShardOffset(view.channel_id, first, first)
        if offset.to_sequence < first:
            self.report(
                f"channel {shard}: events {offset.to_sequence} to {first - 1} are gone, consumed by others, purged or "
                "expired, before this query read them"
            )
            return replace(offset, from_sequence=first, to_sequence=first)
        if offset.to_sequence > following:
            self.report(
                f"channel {shard}: ends at {following - 1}, before the query's position {offset.to_sequence}; it has "
                "lost events, or was restored from a backup"
            )
            return replace(offset, from_sequence=following, to_sequence=following)
        return offset

    def readable(self, shard: Shard, offset: ShardOffset, view: ShardView) -> ShardOffset:
        """Returns the part of a logged range that can still be read: all of it, unless events are gone."""
        if not offset.event_count:
            return offset
        if offset.channel_id != view.channel_id:
            self.report(
                f"channel {shard}: was created again since the checkpoint was written, so events "
                f"{offset.from_sequence} to {offset.to_sequence - 1} of the micro-batch that is repeated are gone"
            )
            return replace(offset, to_sequence=offset.from_sequence)
        first = max(offset.from_sequence, view.first_sequence)
        end = min(offset.to_sequence, view.next_sequence)
        if (first, end) == (offset.from_sequence, offset.to_sequence):
            return offset
        self.report(
            f"channel {shard}: of events {offset.from_sequence} to {offset.to_sequence - 1}, which a micro-batch reads "
            f"again, only {view.first_sequence} to {view.next_sequence - 1} remain"
        )
        return replace(offset, from_sequence=first, to_sequence=max(first, end))


class RemovedShards:
    """Shards in the checkpoint that the options no longer name; checks each once, so that no event is lost silently."""

    def __init__(self, options: ClaimOptions, losses: DataLossPolicy) -> None:
        self._options = options
        self._losses = losses
        self._checked: dict[Shard, bool] = {}

    def positions(self, logged: Mapping[Shard, ShardOffset]) -> Offsets:
        """Returns the shards that stay in the checkpoint: they have no unread events, and may be named again later."""
        return {
            shard: replace(offset, from_sequence=offset.to_sequence)
            for shard, offset in logged.items()
            if self._is_empty(shard, offset)
        }

    def _is_empty(self, shard: Shard, offset: ShardOffset) -> bool:
        if shard not in self._checked:
            undrained = self._unread(shard, offset)
            if undrained is not None:
                self._losses.report(undrained)
            self._checked[shard] = undrained is None
        return self._checked[shard]

    def _unread(self, shard: Shard, offset: ShardOffset) -> str | None:
        """Returns a sentence about the unread events of a shard; None if there are none."""
        removed = f"channel {shard}: is in the query's checkpoint, but endpoints and channels no longer name it"
        if shard.endpoint in self._options.endpoints and is_meant(shard.channel, self._options.channels):
            return f"channel {shard}: is in the query's checkpoint, but has been deleted"
        try:
            with connected([shard.endpoint], self._options.security) as clients:
                info = clients[shard.endpoint].admin.get_channel(shard.channel)
        except millrace.ChannelNotFoundError:
            return None
        except millrace.MillraceError as error:
            return f"{removed}, and it cannot be checked for unread events: {str(error).rstrip('.')}"
        end, first = info.gauges.next_sequence, info.gauges.first_sequence
        if info.channel_id != offset.channel_id or first == end or end <= offset.to_sequence:
            _log.info("%s; it has no unread events", removed)
            return None
        return f"{removed}, and its events {max(first, offset.to_sequence)} to {end - 1} have not been read"


class StartPositions:
    """Finds the start of each shard once, from the options `starting...` and the claims."""

    def __init__(self, starting: Bounds | datetime, claims: StreamClaims, losses: DataLossPolicy) -> None:
        self._starting = starting
        self._claims = claims
        self._losses = losses
        self._found: Offsets | None = None

    def may_change(self) -> bool:
        """Whether a later call in another process would find other positions: a shard starts at its latest event."""
        return any(map(self._bounds().is_latest, self.positions()))

    def positions(self) -> Offsets:
        """Returns the start of each shard, the same on each call."""
        if self._found is None:
            bounds = self._bounds()
            views = self._claims.views
            bounds.check_names("startingSequences", views)
            sequences = {shard: self._sequence(shard, view) for shard, view in views.items()}
            inside = {
                shard: sequence
                for shard, sequence in sequences.items()
                if views[shard].first_sequence < sequence < views[shard].next_sequence
            }
            # A position in a gap that consumers have left would look like lost events.
            for shard, first in self._claims.first_events(inside).items():
                sequences[shard] = first or views[shard].next_sequence
            self._found = {
                shard: self._losses.position(shard, ShardOffset(view.channel_id, sequence, sequence), view)
                for (shard, view), sequence in zip(views.items(), sequences.values(), strict=True)
            }
        return self._found

    def _bounds(self) -> Bounds:
        if not isinstance(self._starting, Bounds):
            self._starting = self._claims.bounds_since(self._starting)
        return self._starting

    def _sequence(self, shard: Shard, view: ShardView) -> int:
        sequence = self._bounds().sequence(shard, view.first_sequence, view.next_sequence)
        if sequence > view.next_sequence:
            raise OptionError(
                f"option startingSequences: is {sequence} for {shard}, whose next event will be {view.next_sequence}; "
                "set it to that or less"
            )
        return sequence
