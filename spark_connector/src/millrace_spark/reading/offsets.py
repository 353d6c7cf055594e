"""The offsets and the progress of a stream, as Spark stores and shows them.

An offset states the part of each shard that a micro-batch holds:

    {"orders@127.0.0.1:7070": {"from": 17, "id": "5f0c...", "to": 42}}

`id` is the channel's id, `from` the first sequence of the batch, `to` one past its last: the position of the next
batch. An offset includes its own start, since Spark provides no reliable start when it replays the first batch. Spark
compares offsets as text, so keys are sorted.

`StreamingQueryProgress.sources[...].latestOffset` is JSON, a `ShardProgress` by shard:

    {"orders@127.0.0.1:7070": {"position": 42, "first": 17, "next": 99, "lag": 57, "rate": 12.5, "reachable": true}}
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millrace_spark.errors import MillraceSparkError
from millrace_spark.shards import Shard

OffsetJson = dict[str, dict[str, str | int]]
"""An offset as Spark stores it."""


@dataclass(frozen=True)
class ShardOffset:
    """The range of one shard in a micro-batch."""

    channel_id: str
    """The id of the channel, which changes when the channel is deleted and created again."""
    from_sequence: int
    to_sequence: int
    """One past the last sequence; equal to `from_sequence` if the batch has no events of this shard."""

    @property
    def event_count(self) -> int:
        """The maximum number of events in the range: sequences that were consumed before the claim are missing."""
        return self.to_sequence - self.from_sequence


Offsets = dict[Shard, ShardOffset]
"""The ranges of a micro-batch, by shard."""


def offsets_to_json(offsets: Mapping[Shard, ShardOffset]) -> OffsetJson:
    """Returns an offset as Spark stores it."""
    return {
        str(shard): {"from": offset.from_sequence, "id": offset.channel_id, "to": offset.to_sequence}
        for shard, offset in sorted(offsets.items(), key=lambda item: str(item[0]))
    }


def offsets_from_json(stored: Mapping[str, Mapping[str, object]]) -> Offsets:
    """Parses the result of `offsets_to_json`.

    Raises:
        MillraceSparkError: Another source wrote the offset.
    """
    try:
        return {Shard.parse(name): _offset(entry) for name, entry in stored.items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise MillraceSparkError(
            f"the checkpoint holds the offset {stored!r}, which this source did not write; use another "
            "checkpointLocation, or remove the old one to start the query from scratch"
        ) from None


def _offset(entry: Mapping[str, object]) -> ShardOffset:
    channel_id, from_sequence, to_sequence = entry["id"], entry["from"], entry["to"]
    if not (isinstance(channel_id, str) and isinstance(from_sequence, int) and isinstance(to_sequence, int)):
        raise TypeError
    return ShardOffset(channel_id, from_sequence, to_sequence)


ProgressJson = dict[str, dict[str, int | float | bool]]
"""The progress of all shards, as Spark shows it."""

_WINDOW_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class ShardProgress:
    """The progress of a stream in a shard."""

    position: int
    """The sequence after the last one that was planned into a micro-batch."""
    first: int
    """The oldest sequence in the channel; the events before it have been acknowledged."""
    next: int
    lag: int
    rate: float
    """Events that arrived per second, recently."""
    reachable: bool
    """Whether the server responded to the last call; if not, the other figures are those of its last response."""


class ArrivalRate:
    """Events per second, over the last second or the time between two responses, whichever is longer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._from_sequence = 0
        self.rate = 0.0

    def update(self, next_sequence: int) -> None:
        """Updates the rate with the current end of the channel."""
        now = self._clock()
        if self._since is None:
            self._since, self._from_sequence = now, next_sequence
        elif (seconds := now - self._since) >= _WINDOW_SECONDS:
            self.rate = round(max(next_sequence - self._from_sequence, 0) / seconds, 1)
            self._since, self._from_sequence = now, next_sequence
