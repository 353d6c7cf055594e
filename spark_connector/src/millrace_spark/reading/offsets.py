"""Streaming offsets: what a micro-batch holds, by shard.

As Spark logs them: `{"orders@127.0.0.1:7070": {"from": 17, "id": "5f0c...", "to": 42}}`. `id` is the channel's id,
`from` is the first sequence of the batch, `to` is one past its last, the position of the next batch. An offset says by
itself where it begins, since Spark gives no dependable start when it replays the first batch. Spark compares offsets as
text, so keys are sorted.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from millrace_spark.errors import MillraceSparkError
from millrace_spark.shards import Shard

OffsetJson = dict[str, dict[str, str | int]]
"""An offset as Spark takes it."""


@dataclass(frozen=True)
class ShardOffset:
    """A micro-batch's part of one shard."""

    channel_id: str
    """Names the making of the channel that the sequences count in."""
    from_sequence: int
    """The first."""
    to_sequence: int
    """One past the last; equal to `from_sequence` where the batch has nothing of this shard."""

    @property
    def event_count(self) -> int:
        """How many events, at most: sequences that were consumed before the claim are left out."""
        return self.to_sequence - self.from_sequence


Offsets = dict[Shard, ShardOffset]
"""A micro-batch, by shard."""


def offsets_to_json(offsets: Mapping[Shard, ShardOffset]) -> OffsetJson:
    """An offset as Spark takes it."""
    return {
        str(shard): {"from": offset.from_sequence, "id": offset.channel_id, "to": offset.to_sequence}
        for shard, offset in sorted(offsets.items(), key=lambda item: str(item[0]))
    }


def offsets_from_json(told: Mapping[str, Mapping[str, object]]) -> Offsets:
    """What `offsets_to_json` made.

    Raises:
        MillraceSparkError: Another source made it.
    """
    try:
        return {Shard.parse(name): _offset(entry) for name, entry in told.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise MillraceSparkError(
            f"the checkpoint holds the offset {told!r}, which this source did not write; give the query another "
            "checkpointLocation, or remove the old one if the query is to begin anew"
        ) from None


def _offset(entry: Mapping[str, object]) -> ShardOffset:
    channel_id, from_sequence, to_sequence = entry["id"], entry["from"], entry["to"]
    if not (isinstance(channel_id, str) and isinstance(from_sequence, int) and isinstance(to_sequence, int)):
        raise TypeError
    return ShardOffset(channel_id, from_sequence, to_sequence)
