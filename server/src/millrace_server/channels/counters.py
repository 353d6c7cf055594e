"""What a channel has counted since it was opened."""

from dataclasses import dataclass


@dataclass(slots=True)
class ChannelCounters:
    """Flume's channel counters with Flume's meanings, and a few more. They only grow."""

    put_attempts: int = 0
    """Events offered, refused ones included (Flume: EventPutAttemptCount)."""

    put_successes: int = 0
    """Events stored by commits (EventPutSuccessCount)."""

    take_attempts: int = 0
    """Events handed out, and one for each take that found none or was refused (EventTakeAttemptCount)."""

    take_successes: int = 0
    """Events removed by commits, acks and acknowledgements (EventTakeSuccessCount)."""

    commits: int = 0
    """Transactions committed."""

    rollbacks: int = 0
    """Transactions rolled back, for whatever reason."""

    leases_expired: int = 0
    """Transactions rolled back because their lease ran out."""

    deduplicated: int = 0
    """Events dropped as repeats."""
