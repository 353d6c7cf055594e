"""Producers with an id given by the user, which later producers of the same id can continue."""

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest

from millrace_client import BadArgumentError, Overflow, Producer, ProducerClosedError, ProducerConfig, SendFailedError
from millrace_client.producing.accumulator import PLACE_HEADER, Accumulator
from millrace_client.producing.metrics import ProducerCounters
from tests.unit.client.fake_server import RefusalError
from tests.unit.client.producing.conftest import COMMIT_TIME, QUICK, AdvancedClock, FakeChannels, MakeProducer

BODIES = [str(number).encode() for number in range(10)]


def full() -> RefusalError:
    return RefusalError(grpc.StatusCode.RESOURCE_EXHAUSTED, "CHANNEL_FULL")


def gone() -> RefusalError:
    return RefusalError(grpc.StatusCode.NOT_FOUND, "CHANNEL_NOT_FOUND", "there is no channel")


def too_many() -> RefusalError:
    return RefusalError(grpc.StatusCode.INVALID_ARGUMENT, "TXN_CAPACITY")


def ranges(channels: FakeChannels) -> list[tuple[int, int]]:
    return [(stamp.first_sequence, stamp.last_sequence) for stamp in channels.stamps]


def test_send_numbers_events_in_order_whatever_their_keys(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Numbers start as configured, and the channel has the events in the order of `send`."""
    producer = producer_of(channels, producer_id="import", first_number=40, batch_events_max=3)
    for body in BODIES:
        producer.send(body, key=body)
    producer.flush()
    assert channels.stored["orders"] == BODIES
    assert ranges(channels)[0][0] == 40
    assert [first for first, _ in ranges(channels)[1:]] == [last + 1 for _, last in ranges(channels)[:-1]]
    assert {stamp.producer_id for stamp in channels.stamps} == {"import"} == {producer.producer_id}


def test_send_through_trouble_keeps_the_order(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """An event is not sent before all earlier events of the channel are stored."""
    channels.outcomes.extend([full(), None, "lose", "break", full(), None])
    producer = producer_of(channels, producer_id="import", batch_events_max=2)
    for body in BODIES:
        producer.send(body, key=body)
    producer.flush()
    assert channels.stored["orders"] == BODIES


def test_failure_for_good_stops_the_producer(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Nothing after the first event that fails is stored, and `send` raises from then on."""
    channels.outcomes.extend([None, gone()])
    producer = producer_of(channels, producer_id="import", batch_events_max=2, linger_seconds=60.0)
    futures = producer.send_many(BODIES[:7])
    producer.flush()
    assert channels.stored["orders"] == BODIES[:2]
    assert [future.settled().stored for future in futures] == [True] * 2 + [False] * 5
    reasons = [error.reason if (error := future.settled().error) else "" for future in futures[2:]]
    assert reasons == ["CHANNEL_NOT_FOUND"] * 2 + ["PRODUCER_CLOSED"] * 3
    with pytest.raises(ProducerClosedError, match="stopped at an event before this one: there is no channel"):
        producer.send(b"later")


def test_failure_of_a_part_of_a_batch_stops_the_parts_behind_it(
    channels: FakeChannels, producer_of: MakeProducer
) -> None:
    """A batch that had to be split leaves no gap either."""
    channels.outcomes.extend([too_many(), None, gone()])
    producer = producer_of(channels, producer_id="import", batch_events_max=4, linger_seconds=60.0)
    summary = producer.send_many(BODIES[:8]).summary(60)
    assert channels.stored["orders"] == BODIES[:2]
    assert summary.stored_count == 2
    assert summary.failure is not None
    assert summary.failure.error is not None
    assert summary.failure.error.reason == "CHANNEL_NOT_FOUND"


def test_event_among_many_that_is_refused_stops_the_producer(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """No gap is left if one of many events is refused."""
    producer = producer_of(channels, producer_id="import", event_bytes_max=1000, batch_bytes_max=1000)
    results = producer.send_many([b"a", bytes(2000), b"b"]).results(60)
    assert [result.stored for result in results] == [True, False, False]
    assert channels.stored["orders"] == [b"a"]


def test_producer_that_follows_stores_only_the_rest(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """The next producer may start at or before the first event whose outcome is unknown, with other batches."""
    producer_of(channels, producer_id="import").send_many(BODIES[:4]).results(60)
    later = producer_of(channels, producer_id="import", first_number=2, batch_events_max=5)
    futures = later.send_many(BODIES[2:])
    assert [future.settled(60).sequence for future in futures] == [None, None, 5, 6, 7, 8, 9, 10]
    assert [future.settled(60).deduplicated for future in futures] == [True] * 2 + [False] * 6
    assert [future.settled(60).commit_time for future in futures] == [None] * 2 + [COMMIT_TIME] * 6
    assert channels.stored["orders"] == BODIES
    summary = futures.summary()
    assert (summary.stored_count, summary.repeated_count) == (8, 2)
    assert (summary.first_sequence, summary.last_sequence, summary.failure) == (5, 10, None)
    assert later.metrics().events_deduplicated == 2


def test_producer_that_follows_one_in_doubt_stores_nothing_twice(
    channels: FakeChannels, producer_of: MakeProducer
) -> None:
    """After a lost response, the next producer sends the same events from the same number."""
    channels.outcomes.append("lose")
    whole = {"batch_events_max": 10, "linger_seconds": 60.0}
    first = producer_of(channels, producer_id="import", attempts_max=1, **whole)
    result = first.send_many(BODIES).summary(60).failure
    assert result is not None
    assert not result.is_outcome_known
    assert producer_of(channels, producer_id="import").send_many(BODIES).summary(60).repeated_count == 10
    assert channels.stored["orders"] == BODIES


def test_delivery_time_begins_when_all_before_is_stored(
    channels: FakeChannels, producer_of: MakeProducer, clock: AdvancedClock
) -> None:
    """A channel that empties slowly does not fail events, as long as each batch gets its space in time."""
    refused: set[bytes] = set()

    def judge(bodies: list[bytes]) -> RefusalError | None:
        if bodies[0] in refused:
            return None
        refused.add(bodies[0])
        clock.advanced_seconds += 200
        return full()

    channels.judge = judge
    limits = {"delivery_timeout_seconds": 600, "timeout_seconds": 6000}
    producer = producer_of(channels, producer_id="import", batch_events_max=1, **limits)
    assert producer.send_many(BODIES[:6]).summary(60).stored_count == 6


def test_send_without_a_reachable_server_fails_in_its_time_and_stops(producer_of: MakeProducer, dead: str) -> None:
    """The producer waits for an unreachable server for the delivery time, then reports it."""
    producer = producer_of(dead, producer_id="import", delivery_timeout_seconds=0.2)
    first, second = producer.send_many([b"a", b"b"])
    with pytest.raises(SendFailedError, match="is millraced running there"):
        first.result(60)
    assert second.settled(60).is_outcome_known


def test_numbers_go_on_at_another_address_of_the_name(
    channels: FakeChannels, more_channels: Callable[[], FakeChannels]
) -> None:
    """Addresses of one name stand for one server, which must not get one number twice."""
    other = more_channels()
    addresses = [channels.address]

    async def resolve_now(_host: str, _port: int) -> list[str]:
        return addresses

    config = ProducerConfig(**QUICK, producer_id="import", resolve_seconds=0.02)
    with Producer("server:7070", "orders", config=config) as producer:
        producer._threaded._settings = replace(producer._threaded._settings, resolve=resolve_now)
        numbers = 0
        give_up = time.monotonic() + 60
        while not other.stamps:
            producer.send(b"a").result(60)
            numbers += 1
            addresses[:] = [other.address]
            assert time.monotonic() < give_up
    assert len(channels.stamps) == numbers - 1
    assert other.stamps[0].first_sequence == numbers - 1


def test_places_of_the_context_go_on() -> None:
    """A reader can restore the order of the events of several producers with one id."""
    config = ProducerConfig(producer_id="import", first_number=7, context_headers=True)
    accumulator = Accumulator(config, "import", ProducerCounters())
    page, _ = accumulator.put(accumulator.buffer("orders"), None, b"a", {}, None, True)
    assert page.columns[PLACE_HEADER] == ["8"]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"producer_id": ""}, "producer_id: is ''; it must be 1 to 128 printable"),
        ({"producer_id": "ä"}, "producer_id"),
        ({"producer_id": "x" * 129}, "producer_id"),
        ({"producer_id": "a", "first_number": -1}, "first_number: is -1"),
        ({"first_number": 3}, "first_number: needs producer_id"),
        ({"producer_id": "a", "overflow": Overflow.DROP_OLDEST}, "overflow: is drop_oldest"),
        ({"producer_id": "a", "move_after_seconds": 1.0}, "move_after_seconds: is set"),
    ],
)
def test_config_that_could_not_be_resumed_is_refused(limits: dict[str, Any], message: str) -> None:
    """Settings that would leave gaps, or store an event on two servers, are refused together with an id."""
    with pytest.raises(BadArgumentError, match=message):
        ProducerConfig(**limits)


def test_producer_of_several_servers_is_refused() -> None:
    """Only the server that stored an event recognizes its number."""
    with pytest.raises(BadArgumentError, match="endpoints: are 2; with producer_id there must be one"):
        Producer(["a:1", "b:1"], "orders", config=ProducerConfig(producer_id="import"))
