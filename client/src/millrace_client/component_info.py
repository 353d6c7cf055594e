"""Components of a server's agent as administrators see them; the fields are those of `admin_service.proto`."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class ComponentKind(StrEnum):
    """The kind of a component."""

    UNKNOWN = "unknown"
    """The server reports a value that this client does not know."""
    SOURCE = "source"
    """It puts events into channels."""
    SINK = "sink"
    """It takes events from a channel to another system."""
    SINK_GROUP = "sink_group"
    """It distributes a channel's events to several sinks."""


class ComponentState(StrEnum):
    """The state of a component."""

    UNKNOWN = "unknown"
    """The server reports a value that this client does not know."""
    STARTING = "starting"
    """It is starting, or waits for its channels to open."""
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    """It has failed, and retries automatically."""
    FAILED = "failed"
    """It has failed, and an operator must change something."""
    STOPPED = "stopped"
    """It has ended: its work is done, or the server is stopping."""
    STANDING_BY = "standing_by"
    """A healthy sink of a group in which another sink is working."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentCounters:
    """The counters of a component since it was started."""

    event_count: int
    """Events that a source has stored, or that a sink has delivered."""
    batch_count: int
    """Batches of these."""
    body_bytes: int
    """Bytes of their bodies."""
    failure_count: int
    """Failures of its work."""
    filtered_count: int
    """Events of a source that an interceptor dropped, as configured."""
    unrouted_count: int
    """Events of a source for which its selector has no channel."""
    dead_lettered_count: int
    """Events that were set aside in a dead-letter channel."""
    dropped_count: int
    """Events that no dead-letter channel could accept; they are lost."""
    missed_count: int
    """Events of a source that an optional channel did not accept."""

    @property
    def lost_count(self) -> int:
        """Events that are missing in at least one of their channels."""
        return self.unrouted_count + self.dropped_count + self.missed_count


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentInfo:
    """The state of a source, a sink or a sink group at one moment."""

    kind: ComponentKind
    """Its kind; names are unique within a kind."""
    name: str
    """Its name in the server's configuration."""
    type: str
    """Its configured type, such as `taildir`."""
    state: ComponentState
    reason: str
    """Why it backs off, has failed or has stopped, in a sentence; may be empty."""
    since: datetime
    """When it entered its state, UTC."""
    counters: ComponentCounters
    progress_age_seconds: float | None
    """How long ago it completed its last batch; None if it never did."""
    channels: tuple[str, ...] = ()
    """The channels that a source writes to, or the one that a sink or sink group reads."""
