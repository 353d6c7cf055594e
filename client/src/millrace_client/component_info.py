"""Components of a server's agent as administrators see them; the fields are those of `admin_service.proto`."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class ComponentKind(StrEnum):
    """What a component does."""

    UNKNOWN = "unknown"
    """The server is older or newer than this client, and says nothing that it knows."""
    SOURCE = "source"
    """It brings events into channels."""
    SINK = "sink"
    """It takes events out of a channel to somewhere else."""
    SINK_GROUP = "sink_group"
    """It shares out a channel's events to several sinks."""


class ComponentState(StrEnum):
    """How a component is."""

    UNKNOWN = "unknown"
    """The server is older or newer than this client, and says nothing that it knows."""
    STARTING = "starting"
    """It gets ready, or waits for its channels to open."""
    RUNNING = "running"
    """It does its work."""
    BACKING_OFF = "backing_off"
    """It could not do its work, and tries again by itself."""
    FAILED = "failed"
    """It cannot do its work until somebody changes something."""
    STOPPED = "stopped"
    """It has ended: its work is done, or the server stops."""
    STANDING_BY = "standing_by"
    """A sink of a group: it is well, and another one of the group works."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentCounters:
    """What a component has counted since it was started."""

    event_count: int
    """Events that a source has stored, or that have left by a sink."""
    batch_count: int
    """Batches of these."""
    body_bytes: int
    """Bytes of their bodies."""
    failure_count: int
    """Times that it could not do its work."""
    filtered_count: int
    """Events of a source that an interceptor dropped, as it is told to."""
    unrouted_count: int
    """Events of a source for which its selector has no channel."""
    dead_lettered_count: int
    """Events that were set aside in a dead-letter channel."""
    dropped_count: int
    """Events that should have been set aside, where no dead-letter channel could take them; they are lost."""
    missed_count: int
    """Events of a source that an optional channel did not take."""

    @property
    def lost_count(self) -> int:
        """Events that are nowhere, or not everywhere, where they were meant to be."""
        return self.unrouted_count + self.dropped_count + self.missed_count


@dataclass(frozen=True, kw_only=True, slots=True)
class ComponentInfo:
    """A source, a sink or a sink group at one moment."""

    kind: ComponentKind
    """What it does; names are unique within a kind."""
    name: str
    """Its name in the server's configuration."""
    type: str
    """Its type there, such as `taildir`."""
    state: ComponentState
    """How it is."""
    reason: str
    """Why it backs off, has failed or has stopped, in a sentence; empty where there is nothing to say."""
    since: datetime
    """When it came to its state, UTC."""
    counters: ComponentCounters
    """What it counted."""
    progress_age_seconds: float | None
    """How long ago it last did a batch of its work; None where it never did."""
