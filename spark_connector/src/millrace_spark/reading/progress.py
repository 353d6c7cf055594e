"""What a query's progress tells of each shard.

`StreamingQueryProgress.sources[...].latestOffset` is JSON, a `ShardProgress` by shard:

    {"orders@127.0.0.1:7070": {"position": 42, "first": 17, "next": 99, "lag": 57, "rate": 12.5, "reachable": true}}
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

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
