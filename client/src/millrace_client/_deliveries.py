"""Deliveries and their settlements, for both APIs."""

import queue
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

from millrace.v1 import channel_service_pb2 as pb
from millrace_client import _decoding
from millrace_client.events import Batch, Event

_SETTLEMENTS_MAX = 1_000


class DeliveredEvents:
    """Events that were delivered together: one or more batches, possibly with gaps between their sequences."""

    __slots__ = ("_batches", "_delivery_id")

    def __init__(self, response: pb.ConsumeResponse) -> None:
        self._delivery_id = response.delivery_id
        self._batches = _decoding.batches(response.batches)

    @property
    def delivery_id(self) -> int:
        """The delivery's number in its stream, from 1."""
        return self._delivery_id

    @property
    def batches(self) -> Sequence[Batch]:
        """The events in batches of contiguous sequences, oldest first."""
        return self._batches

    @property
    def first_sequence(self) -> int:
        """The sequence of the first event."""
        return self._batches[0].first_sequence

    @property
    def last_sequence(self) -> int:
        """The sequence of the last event."""
        return self._batches[-1].last_sequence

    @property
    def commit_time(self) -> datetime | None:
        """When the first event was committed, UTC; see `Batch.commit_time`. Each `Event` has its own."""
        return self._batches[0].commit_time

    @property
    def count(self) -> int:
        return sum(batch.count for batch in self._batches)

    def bodies(self) -> list[bytes]:
        """Returns all bodies in order, faster than by iteration."""
        return [body for batch in self._batches for body in batch.bodies()]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Event]:
        for batch in self._batches:
            yield from batch

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._delivery_id} of {self.count} events from {self.first_sequence}>"


class Settlement(NamedTuple):
    """An ack or a nack of a delivery."""

    delivery_id: int
    is_ack: bool


def settlement_requests(
    start: pb.ConsumeRequest, settlements: "queue.SimpleQueue[Settlement | None]"
) -> Iterator[pb.ConsumeRequest]:
    """Yields all requests of a stream; sends waiting settlements together, and ends with the first None."""
    yield start
    has_more = True
    while has_more:
        gathered, has_more = _gather(settlements)
        yield from settling_requests(gathered)


def settling_requests(settlements: Sequence[Settlement]) -> Iterator[pb.ConsumeRequest]:
    """Yields the messages for settlements: none, one or two."""
    if acks := [settlement.delivery_id for settlement in settlements if settlement.is_ack]:
        yield pb.ConsumeRequest(ack=pb.ConsumeRequest.Ack(delivery_ids=acks))
    if nacks := [settlement.delivery_id for settlement in settlements if not settlement.is_ack]:
        yield pb.ConsumeRequest(nack=pb.ConsumeRequest.Nack(delivery_ids=nacks))


def _gather(settlements: "queue.SimpleQueue[Settlement | None]") -> tuple[list[Settlement], bool]:
    """Waits for one settlement, then takes all that are queued; returns whether more may follow."""
    gathered: list[Settlement] = []
    settlement = settlements.get()
    while settlement is not None:
        gathered.append(settlement)
        if len(gathered) == _SETTLEMENTS_MAX:
            return gathered, True
        try:
            settlement = settlements.get_nowait()
        except queue.Empty:
            return gathered, True
    return gathered, False
