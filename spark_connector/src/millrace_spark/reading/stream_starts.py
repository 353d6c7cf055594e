"""Where a new stream begins: the option `startingSequences`, looked up in what its claims have found."""

from millrace_spark.errors import OptionError
from millrace_spark.reading.bounds import Bounds
from millrace_spark.reading.data_loss import LossPolicy
from millrace_spark.reading.offsets import Offsets, ShardOffset
from millrace_spark.reading.shard_claim import ShardView
from millrace_spark.reading.stream_claims import StreamClaims
from millrace_spark.shards import Shard


class StreamStarts:
    """Finds once where each shard begins.

    Args:
        starting: What the options say.
        claims: The claims on the shards.
        losses: What becomes of a start whose events are gone.
    """

    def __init__(self, starting: Bounds, claims: StreamClaims, losses: LossPolicy) -> None:
        self._starting = starting
        self._claims = claims
        self._losses = losses
        self._found: Offsets | None = None

    def are_passing(self) -> bool:
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
            self._starting.refuse_strangers("startingSequences", views)
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
