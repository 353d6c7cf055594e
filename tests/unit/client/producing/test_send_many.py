import threading
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.columns import ColumnsCutter
from millrace_client import BadArgumentError, BufferFullError, Event, EventTooLargeError, Overflow, ProducerConfig
from millrace_client.events import Stamp
from millrace_client.producing.bulk import bulk_of
from millrace_client.producing.encoding import columns_of_request, request_of_pages
from millrace_client.producing.intake import Intake
from millrace_client.producing.metrics import Tally
from millrace_client.producing.pages import Page
from millrace_client.producing.results import Outcome
from millrace_client.producing.send_many import SendFutures, put_many

ALIKE = [Event(b"a", {"host": "web-1", "level": "info"}), Event(b"bc", {"level": "warning", "host": "web-2"})]


class Bench:
    """An intake, whose pages are asked for as soon as they are there."""

    def __init__(self, **limits: Any) -> None:
        self.tally = Tally()
        self.intake = Intake(ProducerConfig(linger_seconds=0.0, **limits), "p-1", self.tally)
        self.gathering = self.intake.gathering("orders")
        self.pages: list[Page] = []

    def put_many(self, events: Sequence[Any], key: str | None = None) -> SendFutures:
        return put_many(self.intake, self.gathering, key, events)

    def put(self, event: Event, key: str | None = None) -> None:
        self.intake.put(self.gathering, key, event.body, event.headers, None, True)

    def take(self) -> list[Page]:
        taken: list[Page] = []
        while True:
            self.intake.begin_turn()
            pages, held = self.intake.take(self.gathering, 1e18, lambda _: True)
            self.intake.free(held)
            if not pages:
                return taken
            taken += pages

    def stored(self) -> list[tuple[dict[str, str], bytes]]:
        """The events as they would be stored."""
        rows: list[tuple[dict[str, str], bytes]] = []
        for page in self.take():
            columns = columns_of_request(request_of_pages("orders", Stamp("p", 1, len(page.bodies)), [page]))
            rows += ColumnsCutter(columns).rows(0, columns.count)
        return rows


def test_bulk_of_events_with_the_same_headers_has_their_columns() -> None:
    """The order in which an event names its headers does not matter."""
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
        [Event(b"a", {"x": "ä"})],
        [Event(b"a", {"ä": "x"})],
        [Event(b"a", {"x": 1})],  # type: ignore[dict-item] # what a caller without a type checker may give
        [Event(bytearray(b"a"))],  # type: ignore[arg-type] # likewise
        ["text"],
        [7],
    ],
)
def test_bulk_of_anything_else_is_none(events: list[Any]) -> None:
    """Whatever is not alike, or not plain, or wrong, goes the way of single events."""
    assert bulk_of(events) is None


HEADERS = st.dictionaries(st.sampled_from(["a", "b", "ä"]), st.sampled_from(["", "x", "ü"]), max_size=2)
EVENTS = st.lists(st.builds(Event, st.binary(max_size=3), HEADERS), max_size=400)


@given(runs=st.lists(st.tuples(st.booleans(), EVENTS), max_size=3), events_max=st.sampled_from([1, 7, 100, 4_000]))
def test_put_many_stores_what_single_puts_would(runs: list[tuple[bool, list[Event]]], events_max: int) -> None:
    """However events are mixed, and wherever pages end: the same events in the same order."""
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


def test_put_many_keeps_each_page_within_its_limits() -> None:
    """Neither more events nor more bytes than a batch may have."""
    bench = Bench(batch_events_max=300, batch_bytes_max=10_000)
    bench.put_many([bytes(40)] * 5_000)
    pages = bench.take()
    assert sum(len(page.bodies) for page in pages) == 5_000
    assert max(len(page.bodies) for page in pages) <= 300
    assert max(page.encoded_bytes for page in pages) <= 10_000


def test_put_many_counts_the_memory_that_single_puts_would() -> None:
    """The buffer's limit holds for both, and both give back what they took."""
    many, single = Bench(), Bench()
    many.put_many(ALIKE * 64)
    for event in ALIKE * 64:
        single.put(event)
    assert many.intake.held_bytes == pytest.approx(single.intake.held_bytes, rel=0.05)
    assert many.intake.held_bytes == sum(page.held_bytes for page in many.take())


@pytest.mark.parametrize("body_bytes", [10, 100, 500])
def test_put_many_of_many_fills_its_pages(body_bytes: int) -> None:
    """However large events are, little of a page's room is left unused for taking many of them together."""
    bench = Bench(batch_bytes_max=100_000)
    bench.put_many([bytes(body_bytes)] * 6_000)
    *full, _last = bench.take()
    assert full
    assert all(page.encoded_bytes > 60_000 or page.count > 3_500 for page in full)


def test_put_many_with_an_event_that_is_too_large_fails_it_alone() -> None:
    """Its future tells why; those around it are on their way."""
    bench = Bench(batch_bytes_max=1_000)
    futures = bench.put_many([b"before", bytes(2_000), b"behind"])
    assert [future.done() for future in futures] == [False, True, False]
    result = futures[1].settled(0)
    assert isinstance(result.error, EventTooLargeError)
    assert result.is_outcome_known
    assert [body for _, body in bench.stored()] == [b"before", b"behind"]


def test_put_many_beyond_the_buffer_fails_the_rest() -> None:
    """Where the policy is to refuse, the first ones fit and the last ones have failed."""
    bench = Bench(buffer_bytes_max=100_000, overflow=Overflow.RAISE)
    futures = bench.put_many([bytes(100)] * 1_000)
    done = [future.done() for future in futures]
    assert done == sorted(done)
    assert 0 < done.count(True) < 1_000
    assert isinstance(futures[-1].settled(0).error, BufferFullError)
    assert bench.intake.held_bytes <= 100_000


def test_put_many_into_a_full_buffer_waits_for_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wakes for each single event, and all of them go in columns."""
    bench = Bench(buffer_bytes_max=200_000, max_block_seconds=30.0)
    bench.put_many([bytes(100)] * 500)
    assert bench.intake.held_bytes > 100_000
    [first] = bench.take()
    monkeypatch.delattr(Intake, "put")
    thread = threading.Thread(target=bench.put_many, args=([bytes(100)] * 500,))
    thread.start()
    bench.intake.release(first.held_bytes)
    thread.join(10)
    assert not thread.is_alive()
    assert sum(page.count for page in bench.take()) == 500


@pytest.mark.parametrize("last", [bytes(100), Event(bytes(100), {"other": "headers"})])
def test_put_many_into_a_buffer_that_stays_full_waits_no_longer_than_one_send(last: bytes | Event) -> None:
    """The time that a send may wait is not waited for each of them, whether they are alike or not."""
    bench = Bench(buffer_bytes_max=100_000, max_block_seconds=0.2)
    futures = bench.put_many([bytes(100), last] * 500)
    failed = [future.settled(0).error for future in futures if future.done()]
    assert len(failed) > 100
    assert all(isinstance(error, BufferFullError) for error in failed)
    assert bench.tally.blocked_seconds < len(failed) * 0.2 / 10


def test_put_many_of_what_is_no_event_raises() -> None:
    """A program's mistake is told at once; an event's own fails with it."""
    with pytest.raises(TypeError, match="event: is a int"):
        Bench().put_many([b"fine", 7])
    refused = Bench().put_many([Event(b"a", {"x": "\udc80"})])[0].settled(0).error
    assert isinstance(refused, BadArgumentError)


def test_futures_of_many_tell_of_each_event() -> None:
    """They are found by index from either end, in slices, and in their order."""
    bench = Bench(batch_events_max=100)
    futures = bench.put_many([bytes([number]) for number in range(250)])
    for first, page in enumerate(bench.take()):
        bench.intake.settle(page, 0, page.count, 0, Outcome("orders", first_sequence=1_000 * (first + 1)))
    sequences = [result.sequence for result in futures.results(0)]
    assert len(sequences) == len(futures) == 250
    assert sequences[0] == futures[0].result(0).sequence == 1_000
    assert futures[-1].result(0).sequence == sequences[-1]
    assert [future.result(0).sequence for future in futures[98:130:7]] == sequences[98:130:7]
    with pytest.raises(IndexError, match="250 events"):
        futures[250]


def test_results_of_many_when_one_is_open_times_out() -> None:
    """Nobody waits longer than they said."""
    with pytest.raises(TimeoutError, match="not settled"):
        Bench().put_many([b"a"]).results(0.01)
