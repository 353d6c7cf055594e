"""The position of a stream in each shard: start positions, lost events, removed shards."""

import logging
from collections.abc import Mapping
from dataclasses import replace

import millrace_client as millrace
from millrace_spark.errors import DataLossError, OptionError
from millrace_spark.reading.bounds import Bounds
from millrace_spark.reading.offsets import Offsets, ShardOffset
from millrace_spark.reading.options import ClaimOptions
from millrace_spark.reading.shard_claim import ShardView
from millrace_spark.reading.stream_claims import StreamClaims
from millrace_spark.servers import connected
from millrace_spark.shards import Shard, is_meant

_ADVICE = "find out why; to go on from what is there, set the option failOnDataLoss to false for a start"

_log = logging.getLogger("millrace_spark")


class DataLossPolicy:
    """The option `failOnDataLoss`.

    Args:
        is_fatal: Whether the query ends. Otherwise each loss is logged once, and it goes on.
    """

    def __init__(self, *, is_fatal: bool) -> None:
        self._is_fatal = is_fatal
        self._told: set[str] = set()

    def report(self, what: str) -> None:
        """Says what is gone.

        Raises:
            DataLossError: It is fatal.
        """
        if self._is_fatal:
            raise DataLossError(f"{what}; {_ADVICE}")
        if what not in self._told:
            self._told.add(what)
            _log.warning("%s; failOnDataLoss is false, so the query goes on from what is there", what)

    def position(self, shard: Shard, offset: ShardOffset, view: ShardView) -> ShardOffset:
        """The offset to go on from: the same, unless what it names is not there any more.

        Raises:
            DataLossError: It is not, and that is fatal.
        """
        first, following = view.first_sequence, view.next_sequence
        if offset.channel_id != view.channel_id:
            self.report(
                f"channel {shard}: was made anew since the checkpoint was written, so that its sequences begin again "
                f"(position {offset.to_sequence}, now {first} to {following - 1})"
            )
            return ShardOffset(view.channel_id, first, first)
        if offset.to_sequence < first:
            self.report(
                f"channel {shard}: events {offset.to_sequence} to {first - 1} are gone, consumed by others or purged, "
                "before this query read them"
            )
            return replace(offset, from_sequence=first, to_sequence=first)
        if offset.to_sequence > following:
            self.report(
                f"channel {shard}: ends at {following - 1}, before the query's position {offset.to_sequence}; it has "
                "lost what it held, or was restored from a backup"
            )
            return replace(offset, from_sequence=following, to_sequence=following)
        return offset

    def readable(self, shard: Shard, offset: ShardOffset, view: ShardView) -> ShardOffset:
        """The part of a logged micro-batch's range that can be read, all of it unless some is gone.

        Raises:
            DataLossError: Some is gone, and that is fatal.
        """
        if not offset.event_count:
            return offset
        if offset.channel_id != view.channel_id:
            self.report(
                f"channel {shard}: was made anew since the checkpoint was written, so that events "
                f"{offset.from_sequence} to {offset.to_sequence - 1} of the micro-batch that is repeated are gone"
            )
            return replace(offset, to_sequence=offset.from_sequence)
        first = max(offset.from_sequence, view.first_sequence)
        end = min(offset.to_sequence, view.next_sequence)
        if (first, end) == (offset.from_sequence, offset.to_sequence):
            return offset
        self.report(
            f"channel {shard}: of events {offset.from_sequence} to {offset.to_sequence - 1}, which a micro-batch reads "
            f"again, only {view.first_sequence} to {view.next_sequence - 1} are there"
        )
        return replace(offset, from_sequence=first, to_sequence=max(first, end))


class RemovedShards:
    """Looks once at each, so that no event is left unread in silence.

    Args:
        options: What is read.
        losses: What becomes of a shard that is not drained.
    """

    def __init__(self, options: ClaimOptions, losses: DataLossPolicy) -> None:
        self._options = options
        self._losses = losses
        self._checked: dict[Shard, bool] = {}

    def positions(self, logged: Mapping[Shard, ShardOffset]) -> Offsets:
        """Those that are to stay in the checkpoint, with nothing to read: they are drained, and may come back.

        Raises:
            DataLossError: One is not drained, and that is fatal.
        """
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
        """What is left there, in a sentence; None where it is nothing."""
        left_out = f"channel {shard}: is in the query's checkpoint, but endpoints and channels do not name it any more"
        if shard.endpoint in self._options.endpoints and is_meant(shard.channel, self._options.channels):
            return f"channel {shard}: is in the query's checkpoint, but somebody has deleted it"
        try:
            with connected([shard.endpoint]) as clients:
                info = clients[shard.endpoint].admin.get_channel(shard.channel)
        except millrace.ChannelNotFoundError:
            return None
        except millrace.MillraceError as error:
            return f"{left_out}, and whether it is drained cannot be told: {str(error).rstrip('.')}"
        end, first = info.gauges.next_sequence, info.gauges.first_sequence
        if info.channel_id != offset.channel_id or first == end or end <= offset.to_sequence:
            _log.info("%s; it is drained", left_out)
            return None
        return f"{left_out}, and events {max(first, offset.to_sequence)} to {end - 1} there have not been read"


class StartPositions:
    """Finds once where each shard begins.

    Args:
        starting: What the options say.
        claims: The claims on the shards.
        losses: What becomes of a start whose events are gone.
    """

    def __init__(self, starting: Bounds, claims: StreamClaims, losses: DataLossPolicy) -> None:
        self._starting = starting
        self._claims = claims
        self._losses = losses
        self._found: Offsets | None = None

    def may_change(self) -> bool:
        """Whether a later look would find others, as where a shard begins at its latest event."""
        return any(map(self._starting.is_latest, self.positions()))

    def positions(self) -> Offsets:
        """The beginnings, each time the same.

        Raises:
            OptionError: A start lies beyond the end, or is that of something that is not read.
            DataLossError: Events from a start on are gone, and that is fatal.
        """
        if self._found is None:
            views = self._claims.views
            self._starting.check_names("startingSequences", views)
            sequences = {shard: self._sequence(shard, view) for shard, view in views.items()}
            inside = {
                shard: sequence
                for shard, sequence in sequences.items()
                if views[shard].first_sequence < sequence < views[shard].next_sequence
            }
            # No position may lie in a hole that consumers have left: it would look as if events were gone.
            for shard, first in self._claims.first_events(inside).items():
                sequences[shard] = first or views[shard].next_sequence
            self._found = {
                shard: self._losses.position(shard, ShardOffset(view.channel_id, sequence, sequence), view)
                for (shard, view), sequence in zip(views.items(), sequences.values(), strict=True)
            }
        return self._found

    def _sequence(self, shard: Shard, view: ShardView) -> int:
        sequence = self._starting.sequence(shard, view.first_sequence, view.next_sequence)
        if sequence > view.next_sequence:
            raise OptionError(
                f"option startingSequences: is {sequence} for {shard}, whose next event will be {view.next_sequence}; "
                "ask for no more than that"
            )
        return sequence
