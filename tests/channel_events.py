"""Channels with small limits, calls that put and take events, and the invariants of a channel."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

from millrace.columns import columns_from_events
from millrace_server.channels.batches import StoredBatch, StoredColumns, Window
from millrace_server.channels.channel import Channel, memory_storage
from millrace_server.channels.commit import Receipt
from millrace_server.channels.config import MemoryChannelConfig
from millrace_server.channels.queue import TakeLimits
from millrace_server.channels.stamps import Stamp
from millrace_server.channels.transactions import TxnDirectory

RESPONSE_BYTES_MAX = 1 << 20

SEQUENCE_MAX = (1 << 64) - 1
"""The largest number that a stamp can contain."""

Row = tuple[Mapping[str, str], bytes]


def open_channel(
    name: str = "orders",
    *,
    directory: TxnDirectory | None = None,
    response_bytes_max: int = RESPONSE_BYTES_MAX,
    epochs_from: int = 0,
    **limits: Any,
) -> Channel:
    """A channel with these limits; see `limits_of`."""
    config = limits_of(**limits)
    basis = replace(memory_storage(name, config), epochs_from=epochs_from)
    return Channel(name, config, basis, directory or TxnDirectory(10_000), response_bytes_max)


async def nearly_full_channel() -> Channel:
    """A channel with 3 of 3 events, and 9 of 10 bytes."""
    channel = open_channel(capacity=3, body_bytes_max=10, keep_alive_seconds=3)
    await append(channel, b"aaa", b"bbb", b"ccc")
    return channel


async def make_space(channel: Channel, event_count: int = 1) -> None:
    """Takes and commits events."""
    await channel.transactions.commit([await begin_with_takes(channel, event_count)], None)


# Append.


def limits_of(*, body_bytes_max: int = 1 << 30, **limits: Any) -> MemoryChannelConfig:
    """A configuration in which bodies may use the whole byte capacity."""
    return MemoryChannelConfig(type="memory", byte_capacity=body_bytes_max, byte_capacity_buffer_percentage=0, **limits)


def stored_rows(rows: Iterable[Row]) -> StoredColumns:
    """Events with headers as one request's columns."""
    (columns,) = columns_from_events(rows)
    return StoredColumns.of(columns)


def stored(*bodies: bytes) -> StoredColumns:
    """Events without headers as one request's columns."""
    return stored_rows(({}, body) for body in bodies)


def window(*bodies: bytes) -> Window:
    """The window on all of these events."""
    return Window.whole(stored(*bodies))


def batch(first_sequence: int, *bodies: bytes) -> StoredBatch:
    """A batch of its own columns."""
    return StoredBatch(first_sequence, window(*bodies))


def bodies_of(batches: Iterable[StoredBatch]) -> list[bytes]:
    """The bodies of all events."""
    return [body for _, body in numbered(batches)]


def numbered(batches: Iterable[StoredBatch]) -> list[tuple[int, bytes]]:
    """The sequences and bodies of all events."""
    return [
        (sequence, body)
        for batch in batches
        for sequence, (_, body) in enumerate(batch.window.rows(), start=batch.first_sequence)
    ]


def times_of(batches: Iterable[StoredBatch]) -> dict[int, int]:
    """The commit time of each event by its sequence."""
    return {
        batch.first_sequence + index: batch.first_time + offset
        for batch in batches
        for index, offset in enumerate(batch.commit_offsets() or [0] * batch.count)
    }


async def append(channel: Channel, *bodies: bytes, stamp: Stamp | None = None) -> Receipt:
    """Appends events."""
    return await channel.appends.append([stored(*bodies)], stamp)


def begin(channel: Channel, txn_id: str | None = None, lease_seconds: float | None = None) -> str:
    """Begins a transaction; returns its id."""
    return channel.transactions.begin(txn_id, lease_seconds)[0]


def begin_with_puts(channel: Channel, *bodies: bytes) -> str:
    """Begins a transaction that puts events."""
    txn_id = begin(channel)
    channel.transactions.put(txn_id, [stored(*bodies)], None)
    return txn_id


async def begin_with_takes(channel: Channel, events_max: int) -> str:
    """Begins a transaction that takes events, exactly as many as given."""
    txn_id = begin(channel)
    assert len(await take(channel, txn_id, events_max)) == events_max
    return txn_id


async def consume(channel: Channel, events_max: int = 0) -> list[bytes]:
    """Takes events in a transaction and commits it."""
    txn_id = begin(channel)
    bodies = await take(channel, txn_id, events_max)
    await channel.transactions.commit([txn_id], None)
    return bodies


async def take(channel: Channel, txn_id: str, events_max: int = 0) -> list[bytes]:
    """Takes without waiting; returns the bodies."""
    batches, _ = await channel.transactions.take(txn_id, TakeLimits(events_max=events_max), 0, None)
    return bodies_of(batches)


def queued(channel: Channel) -> list[bytes]:
    """The bodies of all events that are not taken."""
    return bodies_of(channel._contents.queue)


def check_accounts(channel: Channel) -> None:
    """Asserts that a channel's counters equal a fresh count.

    The queue is in order; the used capacity is that of queued and taken events; and all open transactions are
    counted.
    """
    contents = channel._contents
    in_queue = list(contents.queue)
    assert all(one.count > 0 for one in in_queue)
    assert all(one.end_sequence <= other.first_sequence for one, other in pairwise(in_queue))
    opened = [*channel.transactions._open.values(), *channel.deliveries._open]
    taken = [batch for txn in opened for batch in txn.takes]
    held = in_queue + taken
    assert contents.queue.event_count == sum(batch.count for batch in in_queue)
    assert contents.taken_count == sum(batch.count for batch in taken)
    assert contents.capacity.event_count == sum(batch.count for batch in held)
    assert contents.capacity.body_bytes == sum(len(body) for body in bodies_of(held))
    sequences = [sequence for sequence, _ in numbered(held)]
    assert len(set(sequences)) == len(sequences)
    assert all(sequence < contents.next_sequence for sequence in sequences)
    assert channel.open_transactions == len(opened)
    for txn in opened:
        assert txn.take_count == sum(batch.count for batch in txn.takes)
        assert txn.put_count == sum(put.count for put in txn.puts)
        assert txn.put_body_bytes == sum(put.body_bytes for put in txn.puts)
