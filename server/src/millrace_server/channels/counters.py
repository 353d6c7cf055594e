"""What a channel measures: counters since it was opened, and gauges at one moment."""

from dataclasses import dataclass


@dataclass(slots=True)
class ChannelCounters:
    """Flume's channel counters with Flume's meanings, and a few more. They only grow."""

    put_attempts: int = 0  # Events offered, refused ones included (Flume: EventPutAttemptCount).
    put_successes: int = 0  # Events stored by commits (EventPutSuccessCount).
    take_attempts: int = 0  # Events taken, and one per empty or refused take (EventTakeAttemptCount).
    take_successes: int = 0  # Events removed by commits and acknowledgements (EventTakeSuccessCount).
    commits: int = 0
    rollbacks: int = 0  # Transactions rolled back, for any reason.
    leases_expired: int = 0  # Transactions rolled back because their lease ran out.
    deduplicated: int = 0  # Events dropped as repeats.


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelGauges:
    """A channel at one moment."""

    queued_events: int  # Events that are not taken.
    taken_events: int  # Events that transactions and deliveries have taken.
    memory_events: int  # Events that a crash loses.
    body_bytes: int  # Bytes of all bodies in the channel, taken ones included.
    body_bytes_max: int
    open_transactions: int  # Deliveries included.
    waiting_takes: int  # Takes that wait for an event.
    waiting_commits: int  # Commits that wait for room.
    producers: int  # Producers whose stamps are remembered.
    first_sequence: int  # The oldest queued sequence; the next one where the queue is empty.
    next_sequence: int  # The sequence that the next event gets.
