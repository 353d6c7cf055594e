import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.columns import ColumnsCutter
from millrace_client import (
    BadArgumentError,
    BufferFullError,
    Event,
    EventTooLargeError,
    Overflow,
    ProducerClosedError,
    ProducerConfig,
    Routing,
)
from millrace_client.events import Stamp
from millrace_client.producing.accumulator import Accumulator
from millrace_client.producing.batches import columns_of_request, request_of_pages
from millrace_client.producing.channel_buffer import ChannelBuffer
from millrace_client.producing.metrics import ProducerCounters
from millrace_client.producing.pages import Page
from millrace_client.producing.results import Outcome
from millrace_client.producing.send_many import SendFutures, put_many
from millrace_client.producing.sending import bulk_of

ALIKE = [Event(b"a", {"host": "web-1", "level": "info"}), Event(b"bc", {"level": "warning", "host": "web-2"})]


class Bench:
    """An accumulator whose pages are requested as soon as they exist."""

    def __init__(self, **limits: Any) -> None:
        self.counters = ProducerCounters()
        self.now = 0.0
        config = ProducerConfig(**{"linger_seconds": 0.0, **limits})
        self.accumulator = Accumulator(config, "p-1", self.counters, lambda: self.now)
        self.buffer = self.accumulator.buffer("orders")
        self.pages: list[Page] = []

    def put_many(self, events: Sequence[Any], key: str | None = None) -> SendFutures:
        return put_many(self.accumulator, self.buffer, key, events)

    def put(self, event: Event, key: str | None = None) -> None:
        self.accumulator.put(self.buffer, key, event.body, event.headers, None, True)

    def take(self) -> list[Page]:
        taken: list[Page] = []
        while True:
            self.accumulator.rearm_wakeup()
            pages, held = self.accumulator.take_batch(self.buffer, 1e18, lambda _: True)
            self.accumulator.release_buckets(held)
            if not pages:
                return taken
            taken += pages

    def fake_waiting(self, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None] = lambda: None) -> list[float]:
        """Makes the clock jump at each wait; returns a list of the seconds waited.

        Args:
            monkeypatch: The fixture of the test.
            act: Called during each wait, with the lock held.
        """
        waits: list[float] = []

        def wait_for(is_over: Callable[[], bool], seconds: float) -> bool:
            waits.append(seconds)
            self.now += seconds
            act()
            return is_over()

        monkeypatch.setattr(self.accumulator._has_space, "wait_for", wait_for)
        return waits

    def stored(self) -> list[tuple[dict[str, str], bytes]]:
        """The events as a server would store them."""
        rows: list[tuple[dict[str, str], bytes]] = []
        for page in self.take():
            columns = columns_of_request(request_of_pages("orders", Stamp("p", 1, len(page.bodies)), [page]))
            rows += ColumnsCutter(columns).rows(0, columns.count)
        return rows


class _Lowering:
    """A lock that is acquired just after the engine has lowered the limits of a batch."""

    def __init__(self, buffer: ChannelBuffer, **limits: int) -> None:
        self._buffer = buffer
        self._limits = limits
        self._lock = threading.Lock()
        self.locked = self._lock.locked

    def __enter__(self) -> bool:
        for name, limit in self._limits.items():
            setattr(self._buffer, name, limit)
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def wire_bytes(page: Page) -> int:
    """The bytes of a page's events in a request."""
    return columns_of_request(request_of_pages("orders", Stamp("p", 1, len(page.bodies)), [page])).ByteSize()


def test_bulk_of_events_with_the_same_headers_has_their_columns() -> None:
    """The order of an event's headers does not matter."""
    bulk = bulk_of(ALIKE)
    assert bulk is not None
    assert bulk.bodies == [b"a", b"bc"]
    assert bulk.columns == {"host": ["web-1", "web-2"], "level": ["info", "warning"]}


@pytest.mark.parametrize(
    "events",
    [
        [Event(b"a"), b"b"],
        [Event(b"a", {"x": "1"}), Event(b"b")],
        [Event(b"a", {"x": "1"}), Event(b"b", {"y": "1"})],
        [Event(b"a", {"x": "1"}), Event(b"b", {"x": "1", "y": "2"})],
        [Event(b"a"), Event(b"b", {"x": "1"})],
        [Event(b"a", {"x": "ä"})],
        [Event(b"a", {"ä": "x"})],
        [Event(b"a", {"x": 1})],  # type: ignore[dict-item] # what a caller without a type checker may give
        [Event(bytearray(b"a"))],  # type: ignore[arg-type] # likewise
        ["text"],
        [7],
    ],
)
def test_bulk_of_anything_else_is_none(events: list[Any]) -> None:
    """Events that differ, are not plain, or are invalid are put one by one."""
    assert bulk_of(events) is None


HEADERS = st.dictionaries(st.sampled_from(["a", "b", "ä"]), st.sampled_from(["", "x", "ü"]), max_size=2)
EVENTS = st.lists(st.builds(Event, st.binary(max_size=3), HEADERS), max_size=400)


@given(runs=st.lists(st.tuples(st.booleans(), EVENTS), max_size=3), events_max=st.sampled_from([1, 7, 100, 4_000]))
def test_put_many_stores_what_single_puts_would(runs: list[tuple[bool, list[Event]]], events_max: int) -> None:
    """Any mixture of events gives the same events in the same order, wherever pages end."""
    many, single = Bench(batch_events_max=events_max), Bench(batch_events_max=events_max)
    for is_many, events in runs:
        if is_many:
            assert len(many.put_many(events)) == len(events)
        else:
            for event in events:
                many.put(event)
        for event in events:
            single.put(event)

    assert many.stored() == single.stored()


@pytest.mark.parametrize(
    "runs",
    [
        [[Event(b"a", {"x": "1"})] * 2, [Event(b"b", {"y": "2"})] * 2],
        [[Event(b"a", {"x": "1"})] * 2, [b"b"] * 2, [Event(b"c", {"x": "3"})] * 2],
        [[Event(b"a", {"x": "1"}), b"b"], [Event(b"c", {"x": "3"})] * 2],
        [[b"a"] * 128 + [Event(b"b", {"x": "1"})] * 128],
    ],
)
@pytest.mark.parametrize("has_context", [False, True])
def test_put_many_of_other_headers_than_those_before_stores_what_single_puts_would(
    runs: list[list[Any]], *, has_context: bool
) -> None:
    """Each event keeps its own headers and those of its context."""
    many, single = Bench(context_headers=has_context), Bench(context_headers=has_context)
    for events in runs:
        many.put_many(events)
        for event in events:
            single.put(event if isinstance(event, Event) else Event(event))
    assert many.stored() == single.stored()


@pytest.mark.parametrize("routing", [Routing.ROUND_ROBIN, Routing.BY_KEY])
@pytest.mark.parametrize("key", ["a", "b", None])
def test_put_many_with_a_key_goes_where_a_single_put_does(routing: Routing, key: str | None) -> None:
    """A key's events stay in order, and go to the server on which all producers agree."""
    bench = Bench(routing=routing)
    bench.put(Event(b"0"), key)
    bench.put_many([b"1"] * 2, key)
    bench.put(Event(b"2"), key)
    bench.put_many([b"other"], None if key else "a")
    assert sorted(page.bodies for page in bench.take()) == [[b"0", b"1", b"1", b"2"], [b"other"]]


@pytest.mark.parametrize(
    ("events_max", "bytes_max"), [(300, 1_000_000), (100, 1_000_000), (4_000, 10_000), (4_000, 100_000)]
)
def test_put_many_keeps_each_page_within_its_limits(events_max: int, bytes_max: int) -> None:
    """Each page keeps to the batch's limits for events and for bytes on the wire."""
    bench = Bench(batch_events_max=events_max, batch_bytes_max=bytes_max)
    bench.put_many([bytes(40)] * 5_000)
    pages = bench.take()
    assert sum(len(page.bodies) for page in pages) == 5_000
    assert max(len(page.bodies) for page in pages) <= events_max
    assert max(map(wire_bytes, pages)) <= bytes_max


def test_put_many_with_long_names_of_headers_leaves_less_space_to_single_puts() -> None:
    """Header names count too, once per page."""
    names = [f"{number:05000}" for number in range(10)]
    events = [Event(bytes(40), dict.fromkeys(names, str(number % 10))) for number in range(2_000)]
    bench = Bench(batch_bytes_max=100_000)
    bench.put_many(events[:200])
    for event in events[200:]:
        bench.put(event)
    assert max(map(wire_bytes, bench.take())) <= 100_000


def test_put_many_of_an_iterator_that_raises_adds_what_it_has_yielded() -> None:
    """The iterator may read what cannot be read again, such as a socket."""
    bench = Bench(linger_seconds=0)

    def events() -> Iterator[bytes]:
        yield from [b"a"] * 200
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        put_many(bench.accumulator, bench.buffer, None, events())
    assert [len(page.bodies) for page in bench.take()] == [200]


def test_put_many_wakes_the_engine() -> None:
    """The engine is woken for the first event of a page and for a full page."""
    bench = Bench(batch_events_max=128, linger_seconds=60.0)
    woken: list[int] = []
    bench.accumulator.wake = lambda: woken.append(bench.accumulator.held_bytes)
    bench.put_many([b"a"] * 100)
    assert len(woken) == 1
    bench.accumulator.rearm_wakeup()
    bench.put_many([b"b"] * 28)
    assert len(woken) == 2
    [page], _ = bench.accumulator.take_batch(bench.buffer, 0.0, lambda _: True)
    assert page.count == 128


def test_put_many_where_nothing_is_taken_any_more_fails_all() -> None:
    """As with single sends, the futures fail for the known reason."""
    bench = Bench()
    bench.accumulator.refuse(ProducerClosedError("the producer is closed"))
    errors = [future.settled(0).error for future in bench.put_many(ALIKE * 100)]
    assert [type(error) for error in errors] == [ProducerClosedError] * 200
    assert not bench.take()


def test_put_many_with_too_many_headers_fails_each() -> None:
    """No page has more keys than a batch may have."""
    bench = Bench()
    futures = bench.put_many([Event(b"", {f"{number}": "" for number in range(300)})] * 2)
    assert [type(future.settled(0).error) for future in futures] == [BadArgumentError] * 2


@pytest.mark.parametrize("body_bytes", range(9_860, 9_940))
def test_put_many_of_what_just_fits_a_batch_closes_no_empty_page(body_bytes: int) -> None:
    """A batch without events would break the producer."""
    bench = Bench(batch_bytes_max=10_000)
    bench.put_many([bytes(body_bytes)])
    assert [len(page.bodies) for page in bench.take()] == [1]


@pytest.mark.parametrize("limits", [{"events_max": 50}, {"bytes_max": 500}])
def test_put_many_while_batches_become_smaller_closes_no_empty_page(
    limits: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine lowers the limits of a batch whenever a server asks for it."""
    bench = Bench()
    monkeypatch.setattr(bench.accumulator, "lock", _Lowering(bench.buffer, **limits))
    bench.put_many([b"a"] * 100)
    assert [len(page.bodies) for page in bench.take()] == [100]


@pytest.mark.parametrize("event", [bytes(1_000), Event(b"", {"a": "x" * 1_000})])
def test_put_many_of_events_above_their_own_limit_refuses_them(event: Any) -> None:
    """`event_bytes_max` may be below `batch_bytes_max`."""
    bench = Bench(event_bytes_max=1_000)
    futures = bench.put_many([event] * 2)
    assert all(isinstance(result.error, EventTooLargeError) for result in futures.results(0))
    assert bench.take() == []


def test_put_many_counts_the_memory_that_single_puts_would() -> None:
    """The buffer's limit holds for both, and both release the same amount."""
    many, single = Bench(), Bench()
    many.put_many(ALIKE * 64)
    for event in ALIKE * 64:
        single.put(event)
    assert many.accumulator.held_bytes == single.accumulator.held_bytes
    assert many.accumulator.held_bytes == sum(page.held_bytes for page in many.take())


@pytest.mark.parametrize("body_bytes", [10, 100, 500])
def test_put_many_of_many_fills_its_pages(body_bytes: int) -> None:
    """Pages are filled well, whatever the sizes of the events."""
    bench = Bench(batch_bytes_max=100_000)
    bench.put_many([bytes(body_bytes)] * 6_000)
    *full, _last = bench.take()
    assert full
    assert all(page.encoded_bytes > 60_000 or page.count > 3_500 for page in full)


def test_put_many_with_an_event_that_is_too_large_fails_it_alone() -> None:
    """The future of that event has the reason; the others are sent."""
    bench = Bench(batch_bytes_max=1_000)
    futures = bench.put_many([b"before", bytes(2_000), b"behind"])
    assert [future.done() for future in futures] == [False, True, False]
    result = futures[1].settled(0)
    assert isinstance(result.error, EventTooLargeError)
    assert result.is_outcome_known
    assert [body for _, body in bench.stored()] == [b"before", b"behind"]


def test_put_many_beyond_the_buffer_fails_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the overflow policy RAISE the first events fit, the last ones fail, and no call waits."""
    bench = Bench(buffer_bytes_max=1_000_000, overflow=Overflow.RAISE)
    waits = bench.fake_waiting(monkeypatch)
    futures = bench.put_many([bytes(100)] * 10_000)
    done = [future.done() for future in futures]
    assert done == sorted(done)
    assert 0 < done.count(True) < 10_000
    assert isinstance(futures[-1].settled(0).error, BufferFullError)
    assert bench.accumulator.held_bytes <= 1_000_000
    assert not waits


def test_put_many_into_a_full_buffer_waits_for_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller does not wake for each event, and all events are sent in columns."""
    bench = Bench(buffer_bytes_max=200_000, max_block_seconds=30.0)
    bench.put_many([bytes(100)] * 500)
    assert bench.accumulator.held_bytes > 100_000
    [first] = bench.take()
    monkeypatch.delattr(Accumulator, "put")
    thread = threading.Thread(target=bench.put_many, args=([bytes(100)] * 500,))
    thread.start()
    bench.accumulator.release(first.held_bytes)
    thread.join(60)
    assert not thread.is_alive()
    assert sum(page.count for page in bench.take()) == 500


@pytest.mark.parametrize("last", [bytes(100), Event(bytes(100), {"other": "headers"})], ids=["alike", "mixed"])
def test_put_many_into_a_buffer_that_stays_full_waits_no_longer_than_one_send(
    monkeypatch: pytest.MonkeyPatch, last: bytes | Event
) -> None:
    """The maximum time of a send holds for all events together, alike or not."""
    bench = Bench(buffer_bytes_max=1_000_000, max_block_seconds=30.0)
    waits = bench.fake_waiting(monkeypatch)
    futures = bench.put_many([bytes(100), last] * 5_000)
    failed = [future.settled(0).error for future in futures if future.done()]
    assert len(failed) > 100
    assert all(isinstance(error, BufferFullError) for error in failed)
    assert waits == [30.0]
    assert bench.counters.blocked_seconds == 30.0


def test_put_many_with_an_event_that_is_wrong_waits_for_those_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later events wait again, unless the wait for space has timed out."""
    bench = Bench(buffer_bytes_max=100_000, max_block_seconds=30.0)
    bench.put(Event(bytes(99_000)))
    waits = bench.fake_waiting(monkeypatch)
    wrong, large = bench.put_many([Event(b"", {"x": "\udc80"}), bytes(900)])
    assert isinstance(wrong.settled(0).error, BadArgumentError)
    assert isinstance(large.settled(0).error, BufferFullError)
    assert waits == [30.0]


def test_put_many_that_never_fit_together_waits_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that exceed the buffer together enter it one after the other."""
    bench = Bench(buffer_bytes_max=20_000, max_block_seconds=30.0)

    def give_back() -> None:
        bench.accumulator.held_bytes = 0

    waits = bench.fake_waiting(monkeypatch, give_back)
    futures = bench.put_many([bytes(100)] * 1_000)
    assert not any(future.done() for future in futures)
    assert len(waits) > 10


def test_put_many_of_what_is_no_event_raises() -> None:
    """Other objects raise at once; an invalid event fails alone."""
    with pytest.raises(TypeError, match="event: is a int"):
        Bench().put_many([b"fine", 7])
    headers: Any
    for headers in ([("a", "b")], "text", 7):
        with pytest.raises(TypeError, match=f"headers: is a {type(headers).__name__}; give a dict"):
            Bench().put_many([Event(b"a", headers)])
    refused = Bench().put_many([Event(b"a", {"x": "\udc80"})])[0].settled(0).error
    assert isinstance(refused, BadArgumentError)


@pytest.mark.parametrize("batch_events_max", [100, 300, 4_000])
def test_futures_of_many_tell_of_each_event(batch_events_max: int) -> None:
    """Futures are accessible by index from either end, by slice and by iteration, whatever their pages."""
    bench = Bench(batch_events_max=batch_events_max)
    futures = bench.put_many([b"%d" % number for number in range(1_000)])
    expected: list[int] = []
    for first, page in enumerate(bench.take()):
        sequences = range(10_000 * (first + 1), 10_000 * (first + 1) + page.count)
        bench.accumulator.settle(page, 0, page.count, 0, Outcome("orders", first_sequence=sequences.start))
        expected += sequences
    assert [result.sequence for result in futures.results(0)] == expected
    assert [future.result(0).sequence for future in futures[:]] == expected
    assert len(futures) == 1_000
    assert futures[-1].result(0).sequence == expected[-1]
    assert [future.result(0).sequence for future in futures[98:330:7]] == expected[98:330:7]
    for index in (1_000, -1_001):
        with pytest.raises(IndexError, match=f"index {index} is out of range; there are 1000 events"):
            futures[index]


def test_futures_of_many_behind_events_that_were_dropped_tell_of_theirs() -> None:
    """The indexes of a page continue after its oldest events were dropped."""
    bench = Bench(buffer_bytes_max=100_000, overflow=Overflow.DROP_OLDEST)
    bench.put(Event(bytes(60_000)))
    bench.put(Event(b"kept"))
    bench.put(Event(bytes(50_000)))
    futures = bench.put_many([bytes(10)] * 100)
    [page] = bench.take()
    assert (page.dropped_count, page.count) == (1, 103)
    bench.accumulator.settle(page, 1, page.count, 0, Outcome("orders", first_sequence=1))
    assert [result.sequence for result in futures.results(0)] == list(range(3, 103))


def test_results_of_many_when_one_is_open_times_out() -> None:
    """The wait ends at its timeout."""
    with pytest.raises(TimeoutError, match="not settled"):
        Bench().put_many([b"a"]).results(0.01)
