"""Plans micro-batches within the limits of the options."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from millrace_spark.reading.offsets import Offsets, ShardOffset
from millrace_spark.reading.options import TriggerLimits
from millrace_spark.shards import Shard

Key = TypeVar("Key")


def round_robin(keys: Sequence[Key], turn: int) -> list[Key]:
    """Returns the keys, starting with another one on each turn."""
    start = turn % len(keys) if keys else 0
    return [*keys[start:], *keys[:start]]


def fair_shares(available: Mapping[Key, int], limit: int, turn: int) -> dict[Key, int]:
    """Divides a limit evenly among the keys with something available, and unused shares among the others.

    Args:
        available: The amount available for each key.
        limit: The limit of all keys together.
        turn: Chooses the keys that receive the remainder of the division. If it increases by 1 each time, every key
            receives a share at least once in as many turns as there are keys.

    Returns:
        The share of each key; `limit` together, or everything if less is available. The shares of two keys with more
        available differ by at most 1.
    """
    given = dict.fromkeys(available, 0)
    # In ascending order, so that what a key leaves of its even share goes to the keys after it.
    hungry = sorted((key for key in available if available[key] > 0), key=lambda key: available[key])
    satisfied_count = 0
    remaining = limit
    for key in hungry:
        if available[key] > remaining // (len(hungry) - satisfied_count):
            break
        given[key] = available[key]
        remaining -= available[key]
        satisfied_count += 1
    unsatisfied = set(hungry[satisfied_count:])
    if unsatisfied:
        share, extra = divmod(remaining, len(unsatisfied))
        in_turn = [key for key in round_robin(list(available), turn) if key in unsatisfied]
        for position, key in enumerate(in_turn):
            given[key] = share + (position < extra)
    return given


@dataclass
class BatchPlanner:
    """Plans micro-batches within the limits of all shards together."""

    limits: TriggerLimits
    _turn: int = 0
    _held_since: float | None = None

    def next_batch(
        self, positions: Mapping[Shard, ShardOffset], ends: Mapping[Shard, int], body_bytes: Mapping[Shard, float]
    ) -> Offsets:
        """Returns the range of each shard in the next micro-batch, exactly within the limits.

        Args:
            positions: The position of each shard is its `to_sequence`.
            ends: The end of each shard that may be read.
            body_bytes: The mean size of each shard's bodies; needed only if bytes are limited.
        """
        order = sorted(positions)
        available = {shard: max(ends.get(shard, 0) - positions[shard].to_sequence, 0) for shard in order}
        given = self._within_bytes(self._within_events(available), body_bytes)
        self._turn += 1
        return {shard: _advanced(positions[shard], given[shard]) for shard in order}

    def unlimited_batch(self, positions: Mapping[Shard, ShardOffset], ends: Mapping[Shard, int]) -> Offsets:
        """Returns the next micro-batch without limits; no events of shards without an end."""
        return {
            shard: _advanced(offset, max(ends.get(shard, 0) - offset.to_sequence, 0))
            for shard, offset in positions.items()
        }

    def _within_events(self, available: Mapping[Shard, int]) -> dict[Shard, int]:
        if self.limits.events_max is None:
            return dict(available)
        return fair_shares(available, self.limits.events_max, self._turn)

    def _within_bytes(self, available: Mapping[Shard, int], body_bytes: Mapping[Shard, float]) -> dict[Shard, int]:
        if self.limits.bytes_max is None:
            return dict(available)
        sizes = {shard: max(body_bytes.get(shard, 0.0), 1.0) for shard in available}
        wanted_bytes = {shard: math.ceil(count * sizes[shard]) for shard, count in available.items()}
        if sum(wanted_bytes.values()) <= self.limits.bytes_max:
            return dict(available)
        allowed_bytes = fair_shares(wanted_bytes, self.limits.bytes_max, self._turn)
        given = {shard: min(int(allowed_bytes[shard] / sizes[shard]), count) for shard, count in available.items()}
        # An event larger than its shard's share would wait forever; the first shard on this turn reads one event.
        first = next((shard for shard in round_robin(list(available), self._turn) if available[shard]), None)
        if first is not None:
            given[first] = max(given[first], 1)
        return given

    def is_held(self, event_count: int, now: float) -> bool:
        """Whether a batch of this many events waits for more; `now` is the time of a monotonic clock."""
        if not event_count or event_count >= self.limits.events_min:
            self._held_since = None
            return False
        if self._held_since is None:
            self._held_since = now
        if now - self._held_since < self.limits.delay_seconds_max:
            return True
        self._held_since = None
        return False


def _advanced(position: ShardOffset, event_count: int) -> ShardOffset:
    start = position.to_sequence
    return ShardOffset(position.channel_id, start, start + event_count)
