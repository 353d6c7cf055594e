"""The activity on a channel, as operators list it: who works with it, and what is open."""

from typing import NamedTuple


class Origin(NamedTuple):
    """Who has begun something: an identity, empty without authentication, and an address."""

    identity: str = ""
    peer: str = ""
    """The gRPC peer; `sinks/NAME` for a sink of the server."""


class OpenTransaction(NamedTuple):
    """An open transaction, or a delivery that is not acknowledged yet."""

    txn_id: str
    channel: str
    put_count: int
    take_count: int
    body_bytes: int
    """Bytes of the bodies of both."""
    start_time: float
    """In seconds since 1970."""
    lease_remaining_seconds: float | None
    """None for a delivery, which has no lease."""
    identity: str
    peer: str
    is_delivery: bool


class ConsumerInfo(NamedTuple):
    """A Consume stream, or a sink of the server."""

    peer: str
    identity: str
    open_deliveries: int
    open_events: int
    start_time: float
    """In seconds since 1970."""


class ProducerInfo(NamedTuple):
    """A producer whose stamps a channel remembers."""

    producer_id: str
    last_sequence: int
    gap_count: int
    last_seen: int
    """When it last sent something, in microseconds since 1970; 0 if an earlier release stored that."""
    identity: str = ""
    """The identity that it belongs to; empty without authentication."""
