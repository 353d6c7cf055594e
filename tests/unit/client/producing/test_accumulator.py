import random
import threading
from typing import Any

import pytest

from millrace_client import (
    BadArgumentError,
    BufferFullError,
    EventDroppedError,
    EventTooLargeError,
    Overflow,
    ProducerClosedError,
    ProducerConfig,
    Routing,
    SendFuture,
)
from millrace_client.producing.accumulator import PLACE_HEADER, PRODUCER_HEADER, Accumulator
from millrace_client.producing.channel_buffer import ChannelBuffer, OrderingBucket
from millrace_client.producing.metrics import ProducerCounters
from millrace_client.producing.pages import EVENT_BYTES, SIZE_BYTES, Page
from millrace_client.producing.results import Outcome

EVENT = EVENT_BYTES + SIZE_BYTES


class Bench:
    """An accumulator with a clock that stands still; counts how often the engine is woken."""

    def __init__(self, **limits: Any) -> None:
        self.now = 100.0
        self.wake_count = 0
        self.counters = ProducerCounters()
        self.config = ProducerConfig(**limits)
        self.accumulator = Accumulator(self.config, "p-1", self.counters, lambda: self.now)
        self.accumulator.wake = self._wake
        self.buffer = self.accumulator.buffer("orders")

    def _wake(self) -> None:
        self.wake_count += 1

    def put(self, body: bytes = b"", key: str | None = None, **headers: str) -> SendFuture:
        return SendFuture(*self.accumulator.put(self.buffer, key, body, headers, None, True))

    def take(self) -> list[list[bytes]]:
        return [page.bodies for page in self.take_pages()[0]]

    def take_pages(self) -> tuple[list[Page], list[OrderingBucket]]:
        self.accumulator.rearm_wakeup()
        return self.accumulator.take_batch(self.buffer, self.now, lambda _: True)

    def buckets_of(self, *keys: str) -> list[int]:
        return [self.accumulator._hash(key) % len(self.buffer.buckets) for key in keys]

    def keys_of_buckets(self, count: int) -> list[str]:
        """Keys in different buckets."""
        found: dict[int, str] = {}
        number = 0
        while len(found) < count:
            key = f"k{number}"
            found.setdefault(self.buckets_of(key)[0], key)
            number += 1
        return list(found.values())


# When batches are due.


def test_take_before_the_linger_gives_nothing() -> None:
    """Events wait for others until the linger is over."""
    bench = Bench(linger_seconds=1.0)
    bench.put(b"a")
    assert bench.take() == []
    assert bench.accumulator.next_due() == 101.0


def test_take_after_the_linger_gives_what_gathered() -> None:
    """The age of the first event counts, not that of the last."""
    bench = Bench(linger_seconds=1.0)
    bench.put(b"a")
    bench.now += 1.0
    bench.put(b"b")
    assert bench.take() == [[b"a", b"b"]]
    assert bench.accumulator.next_due() is None


def test_take_of_a_full_page_does_not_wait() -> None:
    """A full batch is due at once; the events after it are not."""
    bench = Bench(linger_seconds=1.0, batch_events_max=2)
    for body in (b"a", b"b", b"c"):
        bench.put(body)
    assert bench.take() == [[b"a", b"b"]]
    assert bench.take() == []


def test_take_of_a_page_full_by_bytes_does_not_wait() -> None:
    """The event that does not fit begins the next batch."""
    bench = Bench(linger_seconds=1.0, batch_bytes_max=300)
    for _ in range(3):
        bench.put(bytes(100))
    assert bench.take() == [[bytes(100)] * 2]


def test_take_merges_lanes_that_are_free() -> None:
    """At low rates one batch carries the events of all keys, oldest first, due or not."""
    bench = Bench(linger_seconds=1.0)
    first, second = bench.keys_of_buckets(2)
    bench.put(b"a", first)
    bench.now += 0.5
    bench.put(b"b")
    bench.put(b"c", second)
    bench.now += 0.5
    assert [sorted(bodies) for bodies in bench.take()] == [[b"a"], [b"b"], [b"c"]]


def test_take_merges_no_more_than_fits() -> None:
    """A merged batch keeps to the limits."""
    bench = Bench(linger_seconds=0, batch_events_max=3)
    for key in bench.keys_of_buckets(3):
        for _ in range(2):
            bench.put(b"x", key)
    assert [len(bodies) for bodies in bench.take()] == [2]


def test_take_leaves_lanes_that_a_batch_holds() -> None:
    """No event of a key is sent while another one is in progress; other keys and events without one continue."""
    bench = Bench(linger_seconds=0)
    first, second = bench.keys_of_buckets(2)
    bench.put(b"a", first)
    _, held = bench.take_pages()
    bench.put(b"b", first)
    bench.put(b"c", second)
    bench.put(b"d")
    assert sorted(bench.take()) == [[b"c"], [b"d"]]
    assert bench.take() == []
    bench.accumulator.release_buckets(held)
    assert bench.take() == [[b"b"]]


def test_take_of_events_without_a_key_holds_no_lane() -> None:
    """Events without a key fill the pipeline."""
    bench = Bench(linger_seconds=0)
    for body in (b"a", b"b"):
        bench.put(body)
        pages, buckets = bench.take_pages()
        assert ([page.bodies for page in pages], buckets) == ([[body]], [])


def test_take_takes_only_lanes_that_are_accepted() -> None:
    """With by-key routing a batch contains buckets of one server."""
    bench = Bench(linger_seconds=0)
    bench.put(b"a", "k")
    [index] = bench.buckets_of("k")
    assert bench.accumulator.take_batch(bench.buffer, bench.now, lambda bucket: bucket.index != index) == ([], [])
    assert len(bench.accumulator.take_batch(bench.buffer, bench.now, lambda bucket: bucket.index == index)[0]) == 1


def test_close_pages_makes_all_due() -> None:
    """A flush does not wait for the linger, and later events do not join."""
    bench = Bench(linger_seconds=9.0)
    bench.put(b"a")
    assert len(bench.accumulator.close_pages()) == 1
    bench.put(b"b")
    assert (bench.take(), bench.take()) == ([[b"a"]], [])


def test_key_has_the_same_lane_everywhere_with_by_key_routing() -> None:
    """Processes must agree on the servers of keys, but Python's own hash differs in each."""
    bench = Bench(routing=Routing.BY_KEY)
    assert bench.accumulator._hash("customer-1") == bench.accumulator._hash(b"customer-1") == 3_958_365_309


# Waking.


def test_put_wakes_once_for_many_events() -> None:
    """One wake-up is enough for all events until the engine looks."""
    bench = Bench(linger_seconds=1.0)
    for _ in range(10):
        bench.put()
    assert bench.wake_count == 1
    bench.accumulator.rearm_wakeup()
    bench.accumulator.next_due()
    bench.put(key="other")
    assert bench.wake_count == 1


def test_put_that_fills_a_page_wakes_again() -> None:
    """The timer of the first wake-up would be too late."""
    bench = Bench(linger_seconds=1.0, batch_events_max=2)
    bench.put()
    bench.accumulator.rearm_wakeup()
    bench.accumulator.next_due()
    bench.put()
    assert bench.wake_count == 2


# What events hold.


def test_put_keeps_what_headers_were() -> None:
    """The caller may reuse its dict."""
    bench = Bench(linger_seconds=0)
    headers = {"n": "1"}
    bench.accumulator.put(bench.buffer, None, b"", headers, None, True)
    headers["n"] = "2"
    bench.accumulator.put(bench.buffer, None, b"", headers, None, True)
    [page], _ = bench.take_pages()
    assert page.columns == {"n": ["1", "2"]}


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"a": 1}, TypeError),
        ({1: "a"}, TypeError),
        ({"a": "\ud800"}, BadArgumentError),
        ({"\ud800": "a"}, BadArgumentError),
    ],
)
@pytest.mark.parametrize("earlier_count", [0, 1])
def test_put_of_impossible_headers_leaves_no_trace(
    headers: dict[Any, Any], error: type[Exception], earlier_count: int
) -> None:
    """Only this event fails, whether it would have been the first of its page or not."""
    bench = Bench(linger_seconds=0)
    for _ in range(earlier_count):
        bench.put(b"good", good="1")
    held = bench.accumulator.held_bytes
    with pytest.raises(error):
        bench.accumulator.put(bench.buffer, None, b"bad", {"good": "2", **headers}, None, True)
    assert bench.accumulator.held_bytes == held
    bench.put(b"better", good="3")
    [page], _ = bench.take_pages()
    assert page.columns == {"good": ["1", "3"][1 - earlier_count :]}
    assert len(page.bodies) == earlier_count + 1


@pytest.mark.parametrize("earlier_count", [0, 1])
@pytest.mark.parametrize("roomy_bytes", [-1, 1 << 20])
def test_put_of_headers_that_are_no_mapping_leaves_no_trace(earlier_count: int, roomy_bytes: int) -> None:
    """The error says what to give, and the next event has its page."""
    bench = Bench(linger_seconds=0)
    for _ in range(earlier_count):
        bench.put(b"good")
    bench.accumulator._roomy_bytes = roomy_bytes
    pairs: Any = [("a", "b")]
    held = bench.accumulator.held_bytes
    with pytest.raises(TypeError, match="headers: is a list; give a dict of header names to values"):
        bench.accumulator.put(bench.buffer, None, b"bad", pairs, None, True)
    assert bench.accumulator.held_bytes == held
    assert len(bench.accumulator.open_pages) == earlier_count
    bench.put(b"better")
    [page], _ = bench.take_pages()
    assert len(page.bodies) == earlier_count + 1


def test_put_of_a_new_key_for_a_full_table_begins_a_new_page() -> None:
    """A batch, as an event, has at most 256 header keys."""
    bench = Bench(linger_seconds=0)
    for part in range(3):
        bench.put(b"", None, **{f"h{part}-{index}": "x" for index in range(100)})
    pages, _ = bench.take_pages()
    assert [len(page.columns) for page in pages] == [200]
    pages, _ = bench.take_pages()
    assert [len(page.columns) for page in pages] == [100]
    bench.put(b"", None, **{f"h{index}": "x" for index in range(256)})
    with pytest.raises(BadArgumentError, match="257 headers; at most 256"):
        bench.put(b"", None, **{f"h{index}": "x" for index in range(257)})


def test_put_of_too_large_an_event_is_refused_alone() -> None:
    """The limit is that of a batch, unless events may be larger."""
    bench = Bench(batch_bytes_max=1000)
    with pytest.raises(EventTooLargeError, match="1000 bytes"):
        bench.put(bytes(1000))
    with pytest.raises(EventTooLargeError):
        bench.put(a="x" * 1000)
    assert bench.accumulator.held_bytes == 0


def test_put_of_an_event_above_its_own_limit_is_refused() -> None:
    """`event_bytes_max` may be below `batch_bytes_max`."""
    bench = Bench(event_bytes_max=1000)
    bench.put(bytes(900))
    for headers in ({}, {"a": "x" * 100}, {"a": "ä" * 50}):
        with pytest.raises(EventTooLargeError, match="up to 1000 bytes"):
            bench.put(bytes(996), **headers)
    bench.put(bytes(900))
    bench.now += 1
    [bodies] = bench.take()
    assert [len(body) for body in bodies] == [900, 900]


def test_put_of_an_event_above_a_batch_goes_alone_where_it_may() -> None:
    """`event_bytes_max` above `batch_bytes_max` lets single events be larger than batches."""
    bench = Bench(batch_bytes_max=1000, event_bytes_max=5000, linger_seconds=0)
    for size in (10, 3000, 10):
        bench.put(bytes(size))
    taken = [bench.take() for _ in range(3)]
    assert [len(body) for [[body]] in taken] == [10, 3000, 10]


def test_put_with_context_tells_producer_and_place() -> None:
    """Places count a channel's events in the order of `send`, over all buckets; a user's own header is replaced."""
    bench = Bench(context_headers=True, linger_seconds=0)
    first, second = bench.keys_of_buckets(2)
    for key in (first, second, first):
        bench.put(b"", key, **{"a": "1", PLACE_HEADER: "mine"})
    pages, _ = bench.take_pages()
    assert sorted(page.columns[PLACE_HEADER] for page in pages) == [["1", "3"], ["2"]]
    assert {name for page in pages for name in page.columns[PRODUCER_HEADER]} == {"p-1"}


# Space.


def test_put_into_a_full_buffer_raises_where_that_is_the_policy() -> None:
    """The buffer is bounded, and nothing of the event is kept."""
    bench = Bench(buffer_bytes_max=2 * EVENT, overflow=Overflow.RAISE)
    bench.put()
    bench.put()
    with pytest.raises(BufferFullError):
        bench.put()
    assert bench.accumulator.held_bytes == 2 * EVENT


def test_put_into_a_full_buffer_waits_for_space() -> None:
    """Released memory admits the next event."""
    bench = Bench(buffer_bytes_max=EVENT, max_block_seconds=30.0)
    bench.put(b"")
    thread = threading.Thread(target=bench.put)
    thread.start()
    bench.accumulator.release(EVENT)
    thread.join(60)
    assert not thread.is_alive()
    assert bench.accumulator.held_bytes == EVENT


def test_put_into_a_full_buffer_gives_up_in_time() -> None:
    """The put raises after its maximum time."""
    bench = Bench(buffer_bytes_max=EVENT, max_block_seconds=0.01)
    bench.put()
    with pytest.raises(BufferFullError):
        bench.put()


def test_put_that_waits_is_ended_by_the_close() -> None:
    """Closing raises in callers that wait for space."""
    bench = Bench(buffer_bytes_max=EVENT, max_block_seconds=30.0)
    bench.put()
    errors: list[BaseException] = []

    def put() -> None:
        try:
            bench.put()
        except ProducerClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    bench.accumulator.refuse(ProducerClosedError("closed"))
    thread.join(60)
    assert len(errors) == 1


def test_put_that_drops_the_oldest_says_so() -> None:
    """As few events as needed are dropped, oldest first and across buckets; their futures fail, and are counted."""
    bench = Bench(buffer_bytes_max=3 * EVENT + 10, overflow=Overflow.DROP_OLDEST, linger_seconds=0)
    futures = []
    for index, key in enumerate(("a", None, "a", None, "b")):
        bench.now += 1
        futures.append(bench.put(b"%d" % index, key))
    assert [future.done() for future in futures] == [True, False, True, False, False]
    for index in (0, 2):
        with pytest.raises(Exception, match="dropped") as caught:
            futures[index].result(0)
        assert isinstance(caught.value.__cause__, EventDroppedError)
    assert bench.counters.events_dropped == 2
    assert sorted(body for bodies in bench.take() for body in bodies) == [b"1", b"3", b"4"]


def test_put_that_drops_keeps_the_headers_of_the_others() -> None:
    """The header columns are cut as the bodies are."""
    bench = Bench(buffer_bytes_max=3 * 300, overflow=Overflow.DROP_OLDEST, linger_seconds=0)
    for index in range(6):
        bench.put(b"%d" % index, **{"n": str(index)} if index % 2 else {})
    [page], _ = bench.take_pages()
    bodies = [int(body) for body in page.bodies]
    assert bodies == list(range(6))[-len(bodies) :]
    column = page.columns["n"] + [None] * (len(bodies) - len(page.columns["n"]))
    assert column == [str(body) if body % 2 else None for body in bodies]
    assert page.held_bytes == bench.accumulator.held_bytes


@pytest.mark.parametrize("overflow", [Overflow.DROP_OLDEST, Overflow.RAISE])
@pytest.mark.parametrize("context_headers", [False, True])
@pytest.mark.parametrize("has_callbacks", [False, True])
def test_put_never_passes_the_bound(overflow: Overflow, *, context_headers: bool, has_callbacks: bool) -> None:
    """Headers, context headers and callbacks are counted before the event is added."""
    chance = random.Random(1)
    bench = Bench(buffer_bytes_max=20_000, overflow=overflow, context_headers=context_headers)
    refused_count = 0
    for _ in range(500):
        headers = {name: chance.choice("xü") * chance.randrange(100) for name in chance.choice(["", "a", "ab", "b"])}
        callback = (lambda _result: None) if has_callbacks else None
        body = bytes(chance.randrange(300))
        try:
            bench.accumulator.put(bench.buffer, chance.choice([None, "k"]), body, headers, callback, True)
        except BufferFullError:
            refused_count += 1
        assert bench.accumulator.held_bytes <= 20_000
        assert bench.accumulator.held_bytes == sum(page.held_bytes for page in bench.accumulator.open_pages)
    assert refused_count or bench.counters.events_dropped > 300


def test_put_that_drops_counts_what_is_left() -> None:
    """Dropping an event releases exactly the bytes that it took, including its headers."""
    bench = Bench(buffer_bytes_max=20_000, overflow=Overflow.DROP_OLDEST, context_headers=True, linger_seconds=0)
    for index in range(500):
        bench.put(b"x" * (index % 100), note="ü" * (index % 70))
    left = bench.accumulator.held_bytes
    [page], _ = bench.take_pages()
    assert left == sum(page.event_bytes(position) for position in range(len(page.bodies)))


def test_put_with_all_in_batches_has_nothing_to_drop() -> None:
    """Events that are being sent are not dropped."""
    bench = Bench(buffer_bytes_max=EVENT, overflow=Overflow.DROP_OLDEST, linger_seconds=0)
    bench.put()
    bench.take()
    with pytest.raises(BufferFullError):
        bench.put()


def test_put_larger_than_the_buffer_is_refused_at_once() -> None:
    """Waiting could not make space for it."""
    bench = Bench(buffer_bytes_max=1000, max_block_seconds=30.0)
    with pytest.raises(EventTooLargeError, match="the buffer holds at most 1000"):
        bench.put(bytes(1000))


# Settling.


def test_settle_in_ranges_tells_each_event_its_own() -> None:
    """A page may be settled in parts, for example if its batch was split."""
    bench = Bench(linger_seconds=0)
    futures = [bench.put() for _ in range(3)]
    [page], _ = bench.take_pages()
    bench.accumulator.settle(page, 1, 3, 0, Outcome("orders", first_sequence=7))
    assert [future.done() for future in futures] == [False, True, True]
    assert [future.result(0).sequence for future in futures[1:]] == [7, 8]
    assert bench.accumulator.open_event_count() == 1
    with pytest.raises(TimeoutError):
        futures[0].result(0.001)


def test_wait_settled_counts_what_is_left() -> None:
    """A flush that times out returns how many events are open."""
    bench = Bench()
    bench.put()
    bench.put()
    assert bench.accumulator.wait_settled(bench.accumulator.close_pages(), 0.001) == 2


def test_take_older_takes_all_of_a_time() -> None:
    """Events that have waited too long are found in all buckets, blocked ones too."""
    bench = Bench(linger_seconds=0)
    bench.put(b"a", "k")
    bench.take()
    bench.put(b"b", "k")
    bench.now += 1
    bench.put(b"c")
    taken = bench.accumulator.take_expired(100.0)
    assert [page.bodies for _, page in taken] == [[b"b"]]
    assert isinstance(bench.buffer, ChannelBuffer)


def test_put_with_a_key_that_is_not_utf_8_is_accepted() -> None:
    """Keys are not sent, only hashed."""
    bench = Bench(routing=Routing.BY_KEY, linger_seconds=0)
    bench.put(b"a", "\ud800")
    assert bench.take() == [[b"a"]]
