"""The outcomes of batches that are stored, refused, lost or too large."""

import random
import threading
import time
from collections import defaultdict

import grpc
import pytest

from millrace_client import ProducerHooks, SendAttempt, SendFailedError, SendResult
from millrace_client.producing.accumulator import PLACE_HEADER, PRODUCER_HEADER
from tests.unit.client.fake_server import RefusalError
from tests.unit.client.producing.conftest import AdvancedClock, FakeChannels, MakeProducer
from tests.waiting import wait_until

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
INVALID = grpc.StatusCode.INVALID_ARGUMENT


def full(retry_delay_seconds: float | None = None) -> RefusalError:
    return RefusalError(EXHAUSTED, "CHANNEL_FULL", "channel is full", retry_delay_seconds=retry_delay_seconds)


def test_send_gives_the_sequence_of_each_event(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """The sequences are those of the channel, whatever the batches."""
    producer = producer_of(channels, batch_events_max=3)
    futures = [producer.send(b"%d" % index) for index in range(10)]
    assert [future.result(60).sequence for future in futures] == list(range(1, 11))
    assert channels.stored["orders"] == [b"%d" % index for index in range(10)]
    assert {future.result(0).attempt_count for future in futures} == {1}


def test_send_that_is_refused_for_now_goes_again(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """A batch refused by a full channel is sent again with the same stamp; the result lists each attempt."""
    channels.outcomes.extend([full(), full(), None])
    result = producer_of(channels).send(b"a").result(60)
    assert result.stored
    assert [attempt.reason for attempt in result.attempts] == ["CHANNEL_FULL", "CHANNEL_FULL", ""]
    assert result.attempts[0].server == channels.address
    assert result.attempts[0].message == "channel is full"
    assert channels.stamps[0] == channels.stamps[1] == channels.stamps[2]


def test_send_waits_as_long_as_the_server_says(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """RetryInfo is used if it is longer than the producer's own pause."""
    channels.outcomes.append(full(0.1))
    began = time.monotonic()
    producer_of(channels).send(b"a").result(60)
    assert time.monotonic() - began >= 0.1


@pytest.mark.parametrize("outcome", ["break", "lose"])
def test_send_whose_stream_breaks_is_stored_once(
    channels: FakeChannels, producer_of: MakeProducer, outcome: str
) -> None:
    """Whether or not the server had stored the batch, there is one copy in the end."""
    channels.outcomes.extend([outcome, outcome])
    result = producer_of(channels).send(b"a").result(60)
    assert channels.stored["orders"] == [b"a"]
    assert (result.deduplicated, result.sequence) == ((True, None) if outcome == "lose" else (False, 1))
    assert [attempt.reason for attempt in result.attempts] == ["UNAVAILABLE", "UNAVAILABLE", ""]


def test_send_that_is_not_acknowledged_goes_again(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """A server that does not respond is abandoned after a timeout."""
    channels.outcomes.append("hang")
    result = producer_of(channels, timeout_seconds=0.2).send(b"a").result(60)
    *abandoned, last = [attempt.reason for attempt in result.attempts]
    # A busy machine may not respond to the next attempts in time either.
    assert (set(abandoned), last) == ({"DEADLINE"}, "")


def test_send_that_is_refused_for_good_fails(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """A permanent refusal is not retried; other events continue."""
    channels.outcomes.append(RefusalError(grpc.StatusCode.NOT_FOUND, "CHANNEL_NOT_FOUND", "no such channel"))
    producer = producer_of(channels)
    with pytest.raises(SendFailedError, match="no such channel") as caught:
        producer.send(b"a").result(60)
    result = caught.value.result
    assert result is not None
    assert (caught.value.reason, result.stored, result.is_outcome_known) == ("CHANNEL_NOT_FOUND", False, True)
    assert result.attempt_count == 1
    assert producer.send(b"b").result(60).stored


def test_send_gives_up_after_so_many_attempts(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """The result keeps the last attempts and counts all."""
    channels.judge = lambda _bodies: full()
    with pytest.raises(SendFailedError) as caught:
        producer_of(channels, attempts_max=5, attempts_kept_max=2).send(b"a").result(60)
    result = caught.value.result
    assert result is not None
    assert (result.attempt_count, len(result.attempts), result.is_outcome_known) == (5, 2, True)


def test_send_gives_up_after_its_time(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Events that wait behind a retried batch also fail in their own time."""
    channels.judge = lambda _bodies: full()
    producer = producer_of(channels, delivery_timeout_seconds=0.2)
    futures = [producer.send(b"a", key="k")]
    time.sleep(0.05)
    futures.append(producer.send(b"b", key="k"))
    for future in futures:
        with pytest.raises(SendFailedError):
            future.result(60)


def test_send_in_doubt_fails_as_such(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """The error after a lost response says that the event may be stored."""
    channels.outcomes.append("lose")
    channels.judge = lambda _bodies: full()
    with pytest.raises(SendFailedError) as caught:
        producer_of(channels, attempts_max=3).send(b"a").result(60)
    assert caught.value.result is not None
    assert not caught.value.result.is_outcome_known


def test_send_without_a_reachable_server_fails_in_its_time(producer_of: MakeProducer, dead: str) -> None:
    """If no server can be reached, the events were never sent, and the error says what to check."""
    producer = producer_of(dead, delivery_timeout_seconds=0.2)
    with pytest.raises(SendFailedError, match="is millraced running there") as caught:
        producer.send(b"a").result(60)
    assert caught.value.result is not None
    assert (caught.value.result.attempt_count, caught.value.result.is_outcome_known) == (0, True)


# Order.


def test_send_of_one_key_keeps_its_order_through_refusals(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """With random refusals and losses, the events of each key are stored in the order of send."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - to run it again
    draw = random.Random(seed)
    lock = threading.Lock()

    def judge(_bodies: list[bytes]) -> RefusalError | str | None:
        with lock:
            return draw.choice([full(), "break", "lose", None, None, None, None, None])

    channels.judge = judge
    hasty = {"backoff_seconds": 0.002, "backoff_seconds_max": 0.01}
    producer = producer_of(channels, batch_events_max=7, linger_seconds=0.0005, delivery_timeout_seconds=60, **hasty)
    for index in range(600):
        producer.send(b"%d %d" % (index % 20, index), key=str(index % 20))
    assert producer.flush(60) == 0
    by_key = defaultdict(list)
    for body in channels.stored["orders"]:
        key, index = map(int, body.split())
        by_key[key].append(index)
    assert sum(map(len, by_key.values())) == 600
    assert all(indexes == sorted(indexes) for indexes in by_key.values())
    assert producer.metrics().retries > 0


def test_send_without_keys_keeps_its_order_when_all_goes_well(
    channels: FakeChannels, producer_of: MakeProducer
) -> None:
    """The events of one caller are stored in the order of send, over many batches."""
    producer = producer_of(channels, batch_events_max=5)
    for index in range(500):
        producer.send(b"%d" % index)
    producer.flush(30)
    assert channels.stored["orders"] == [b"%d" % index for index in range(500)]


def test_send_while_a_key_is_held_up_lets_others_go_on(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """The retries of one key do not delay others."""
    trouble = threading.Event()

    def judge(bodies: list[bytes]) -> RefusalError | None:
        return None if trouble.is_set() or b"bad" not in bodies else RefusalError(EXHAUSTED, "TOO_MANY_TXNS")

    channels.judge = judge
    producer = producer_of(channels)
    bad = producer.send(b"bad", key="bad")
    while not channels.batches:
        time.sleep(0.001)
    assert producer.send(b"good").result(60).stored
    trouble.set()
    assert bad.result(60).stored


def test_send_behind_what_a_full_channel_refuses_fails_for_the_same_reason(
    channels: FakeChannels, producer_of: MakeProducer, clock: AdvancedClock
) -> None:
    """Events that were never in a batch fail for the reason of the others, not as if the server were unreachable."""
    channels.judge = lambda _bodies: full()
    limits = {"delivery_timeout_seconds": 600, "timeout_seconds": 6000}
    producer = producer_of(channels, batch_events_max=1, inflight_batches_max=1, **limits)
    futures = producer.send_many([b"a", b"b", b"c"])
    # The response to the first has been handled.
    wait_until(lambda: len(channels.batches) > 1)
    clock.advanced_seconds += 600
    results = futures.results(60)
    assert [result.error and result.error.reason for result in results] == ["CHANNEL_FULL"] * 3


# Batches that are too large.


def refuse_large_messages(bodies: list[bytes]) -> RefusalError | None:
    """Refuses requests as a server with a message limit of 10,000 bytes."""
    return RefusalError(EXHAUSTED, "MESSAGE_TOO_LARGE") if sum(map(len, bodies)) > 10_000 else None


def test_send_of_more_than_the_channel_takes_at_once_is_split(
    channels: FakeChannels, producer_of: MakeProducer
) -> None:
    """The producer detects a smaller transaction capacity, adapts its batches, and keeps the order."""
    channels.judge = lambda bodies: RefusalError(INVALID, "TXN_CAPACITY") if len(bodies) > 10 else None
    producer = producer_of(channels, batch_events_max=100, linger_seconds=0.05)
    futures = [producer.send(b"%d" % index, key="k") for index in range(100)]
    assert [future.result(60).sequence for future in futures] == list(range(1, 101))
    assert channels.stored["orders"] == [b"%d" % index for index in range(100)]
    refused_count = sum(len(bodies) > 10 for bodies in channels.batches)
    for index in range(100):
        producer.send(b"%d" % index)
    producer.flush(60)
    assert sum(len(bodies) > 10 for bodies in channels.batches) == refused_count


def test_send_of_batches_larger_than_a_message_finds_out_what_the_server_takes(
    channels: FakeChannels, producer_of: MakeProducer
) -> None:
    """The producer detects the limit in few steps, also with similar events, adapts, and keeps the order."""
    channels.judge = refuse_large_messages
    producer = producer_of(channels, batch_bytes_max=100_000, linger_seconds=0.05)
    bodies = [b"%0100d" % index for index in range(600)]
    assert all(result.stored for result in producer.send_many(bodies, key="k").results(60))
    assert channels.stored["orders"] == bodies
    refused_count = sum(refuse_large_messages(batch) is not None for batch in channels.batches)
    assert refused_count < 10
    assert all(result.stored for result in producer.send_many(bodies, key="k").results(60))
    assert sum(refuse_large_messages(batch) is not None for batch in channels.batches) == refused_count


def test_send_with_an_event_larger_than_a_message_fails_it_alone(
    channels: FakeChannels, producer_of: MakeProducer
) -> None:
    """An event whose size exceeds the limit is found without halving the batch."""
    channels.judge = refuse_large_messages
    producer = producer_of(channels, batch_bytes_max=100_000, linger_seconds=60)
    bodies = [*[bytes(10)] * 100, bytes(20_000), *[bytes(20)] * 100]
    futures = producer.send_many(bodies, key="k")
    producer.flush(60)
    results = futures.results(60)
    assert [result.stored for result in results] == [len(body) < 10_000 for body in bodies]
    assert [len(batch) for batch in channels.batches] == [201, 100, 1, 100]


def test_send_of_an_event_too_large_for_the_server_fails_alone(
    channels: FakeChannels, producer_of: MakeProducer
) -> None:
    """The other events of its batch are stored, in order."""

    def judge(bodies: list[bytes]) -> RefusalError | None:
        too_large = any(len(body) > 100 for body in bodies)
        return RefusalError(INVALID, "EVENT_TOO_LARGE", "too large") if too_large else None

    channels.judge = judge
    producer = producer_of(channels, linger_seconds=0.05)
    sizes = [1, 2, 200, 3, 300, 4, 5]
    futures = [producer.send(bytes(size), key="k") for size in sizes]
    stored = []
    for size, future in zip(sizes, futures, strict=True):
        if size > 100:
            with pytest.raises(SendFailedError, match="too large"):
                future.result(60)
        else:
            stored.append(future.result(60).sequence)
    assert stored == [1, 2, 3, 4, 5]
    assert [len(body) for body in channels.stored["orders"]] == [1, 2, 3, 4, 5]


# Context, metrics and hooks.


def test_send_with_context_lets_a_reader_restore_the_order(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Each event has headers with its producer and its place among all that the producer sent to the channel."""
    producer = producer_of(channels, context_headers=True)
    for index in range(50):
        producer.send(b"%d" % index, key=str(index % 7))
    producer.flush(60)
    places = [int(headers[PLACE_HEADER]) for headers in channels.headers]
    bodies = [int(body) + 1 for body in channels.stored["orders"]]
    assert places == bodies
    assert {headers[PRODUCER_HEADER] for headers in channels.headers} == {producer.producer_id}


class RecordingHooks(ProducerHooks):
    def __init__(self) -> None:
        self.stored: list[int] = []
        self.failed: list[tuple[str, int, bool]] = []

    def batch_stored(self, channel: str, server: str, event_count: int, seconds: float) -> None:
        self.stored.append(event_count)

    def attempt_failed(self, channel: str, attempt: SendAttempt, event_count: int, retry_seconds: float | None) -> None:
        self.failed.append((attempt.reason, event_count, retry_seconds is not None))


def test_metrics_and_hooks_tell_what_was_done(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Counters, gauges and hooks agree with what happened."""
    channels.outcomes.extend([full(), "lose", None])
    hooks = RecordingHooks()
    producer = producer_of(channels, hooks=hooks, linger_seconds=60)
    for _ in range(3):
        producer.send(b"a")
    producer.flush(60)
    metrics = producer.metrics()
    assert (metrics.events_stored, metrics.events_deduplicated, metrics.events_failed) == (3, 3, 0)
    assert (metrics.retries, metrics.attempts_failed, metrics.batches_stored) == (2, 2, 1)
    assert (metrics.open_events, metrics.buffer_bytes, metrics.inflight_batches, metrics.retrying_batches) == (0,) * 4
    assert metrics.latencies.count == 3
    assert metrics.latencies.percentile(50) is not None
    [server] = metrics.servers
    assert (server.server, server.is_connected) == (channels.address, True)
    producer.close(60)
    assert (hooks.stored, hooks.failed) == ([3], [("CHANNEL_FULL", 3, True), ("UNAVAILABLE", 3, True)])


def test_callback_gets_the_result_once_for_each_event(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Each callback runs once, stored or not, successes and failures on threads of their own."""
    channels.judge = lambda bodies: RefusalError(INVALID, "BAD_ARGUMENT") if bodies[0] == b"bad" else None
    reported: list[tuple[bool, str]] = []

    def callback(result: SendResult) -> None:
        reported.append((result.stored, threading.current_thread().name))

    producer = producer_of(channels, batch_events_max=1)
    producer.send(b"good", callback=callback)
    producer.send(b"bad", callback=callback)
    assert producer.close(60).is_complete
    assert sorted(reported) == [(False, "millrace-producer-failures"), (True, "millrace-producer-successes")]


def test_engine_that_waits_burns_no_processor(channels: FakeChannels, producer_of: MakeProducer) -> None:
    """Neither an idle engine nor one with an unreachable server polls."""
    others = set(threading.enumerate())
    producer = producer_of(channels, delivery_timeout_seconds=60)
    producer.send(b"a").result(60)
    # Other threads of the process may be busy.
    own = [thread for thread in set(threading.enumerate()) - others if thread.name.startswith("millrace-producer")]
    assert own

    def used_seconds() -> float:
        clocks = [time.pthread_getcpuclockid(thread.ident) for thread in own if thread.ident]
        return sum(map(time.clock_gettime, clocks))

    before = used_seconds()
    time.sleep(0.3)
    idle_seconds = used_seconds() - before
    channels.judge = lambda _bodies: full(5.0)
    producer.send(b"b")
    before = used_seconds()
    time.sleep(0.3)
    assert idle_seconds < 0.1
    assert used_seconds() - before < 0.2
