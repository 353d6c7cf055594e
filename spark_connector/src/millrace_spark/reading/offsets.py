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
from dataclasses import asdict, dataclass

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


ProgressJson = dict[str, dict[str, int | float | bool]]
"""The progress of all shards, as Spark takes it."""

_WINDOW_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class ShardProgress:
    """How far a stream is in a shard."""

    position: int
    """The sequence after the last that was planned into a micro-batch."""
    first: int
    """The oldest sequence in the channel: what is before it has been acknowledged."""
    next: int
    """The sequence that the next committed event will get."""
    lag: int
    """Events that are there and not planned into any micro-batch yet."""
    rate: float
    """Events that came in, a second, lately."""
    reachable: bool
    """Whether the server answered last time; if not, the other figures are those of its last answer."""

    def to_json(self) -> dict[str, int | float | bool]:
        """The same as Spark takes it."""
        return asdict(self)


class ArrivalRate:
    """Events a second, measured over the last second or the time between two answers, whichever is longer."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._from_sequence = 0
        self.rate = 0.0

    def note(self, next_sequence: int) -> None:
        """Takes in how far the channel is now."""
        now = self._clock()
        if self._since is None:
            self._since, self._from_sequence = now, next_sequence
        elif (seconds := now - self._since) >= _WINDOW_SECONDS:
            self.rate = round(max(next_sequence - self._from_sequence, 0) / seconds, 1)
            self._since, self._from_sequence = now, next_sequence
