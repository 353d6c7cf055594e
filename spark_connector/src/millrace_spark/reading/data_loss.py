"""What is said where events are gone that were to be read."""

import logging
from dataclasses import replace

from millrace_spark.errors import DataLossError
from millrace_spark.reading.offsets import ShardOffset
from millrace_spark.reading.shard_claim import ShardView
from millrace_spark.shards import Shard

_ADVICE = "find out why; to go on from what is there, set the option failOnDataLoss to false for a start"

_log = logging.getLogger("millrace_spark")


class LossPolicy:
    """The option `failOnDataLoss`.

    Args:
        is_fatal: Whether the query ends. Otherwise each loss is logged once, and it goes on.
    """

    def __init__(self, *, is_fatal: bool) -> None:
        self._is_fatal = is_fatal
        self._told: set[str] = set()

    def tell(self, what: str) -> None:
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
            self.tell(
                f"channel {shard}: was made anew since the checkpoint was written, so that its sequences begin again "
                f"(position {offset.to_sequence}, now {first} to {following - 1})"
            )
            return ShardOffset(view.channel_id, first, first)
        if offset.to_sequence < first:
            self.tell(
                f"channel {shard}: events {offset.to_sequence} to {first - 1} are gone, consumed by others or purged, "
                "before this query read them"
            )
            return replace(offset, from_sequence=first, to_sequence=first)
        if offset.to_sequence > following:
            self.tell(
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
            self.tell(
                f"channel {shard}: was made anew since the checkpoint was written, so that events "
                f"{offset.from_sequence} to {offset.to_sequence - 1} of the micro-batch that is repeated are gone"
            )
            return replace(offset, to_sequence=offset.from_sequence)
        first = max(offset.from_sequence, view.first_sequence)
        end = min(offset.to_sequence, view.next_sequence)
        if (first, end) == (offset.from_sequence, offset.to_sequence):
            return offset
        self.tell(
            f"channel {shard}: of events {offset.from_sequence} to {offset.to_sequence - 1}, which a micro-batch reads "
            f"again, only {view.first_sequence} to {view.next_sequence - 1} are there"
        )
        return replace(offset, from_sequence=first, to_sequence=max(first, end))
