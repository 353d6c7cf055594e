"""The activity on channels as administrators see it; the fields are those of `admin_service.proto`."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenTransaction:
    """An open transaction, or a delivery that is not acknowledged yet."""

    txn_id: str
    """Its id. A delivery gets one when it is listed first, for `end_transaction` only."""
    channel: str
    put_count: int
    """Events that it has put."""
    take_count: int
    """Events that it has taken."""
    body_bytes: int
    """Bytes of the bodies of both."""
    start_time: datetime
    """When it began, UTC."""
    lease_remaining_seconds: float | None
    """How long it lives without another call; None for a delivery, which has no lease."""
    identity: str
    """The identity that began it; empty without authentication."""
    peer: str
    """The address that began it, or `sinks/NAME` for a sink of the server."""
    is_delivery: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerInfo:
    """A Consume stream, or a sink of the server."""

    channel: str
    peer: str
    """Its address, or `sinks/NAME` for a sink of the server."""
    identity: str
    """Its identity; empty without authentication."""
    open_deliveries: int
    """Deliveries that it has not acknowledged."""
    open_events: int
    """Their events."""
    start_time: datetime
    """When it started, UTC."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProducerInfo:
    """A producer whose stamps a channel remembers."""

    producer_id: str
    last_sequence: int
    """The last of its numbers that the channel has accepted."""
    gap_count: int
    """Gaps in its numbers; a gap may be of several numbers."""
    last_seen: datetime | None
    """When it last sent an event, also a repeated one; None if an earlier release stored that."""
    identity: str = ""
    """The identity that it belongs to; empty without authentication."""
