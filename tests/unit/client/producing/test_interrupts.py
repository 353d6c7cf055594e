"""Ctrl-C while a producer is used: whatever it interrupts, the producer works on, and events are whole or absent."""

import threading
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from millrace.columns import ColumnsCutter
from millrace_client import Event, ProducerConfig, Stamp
from millrace_client.producing.accumulator import Accumulator
from millrace_client.producing.batches import columns_of_request, request_of_pages
from millrace_client.producing.metrics import ProducerCounters
from millrace_client.producing.send_many import put_many
from tests.interrupts import interrupt_at
from tests.unit.client.producing.conftest import FakeChannels, MakeProducer

BEFORE, INTERRUPTED, AFTER = Event(b"1", {"a": "1"}), Event(b"2", {"a": "2", "b": "2"}), Event(b"3")

Put = Callable[[Accumulator, Event], object]


def put(accumulator: Accumulator, event: Event) -> object:
    return accumulator.put(accumulator.buffer("orders"), None, event.body, event.headers, None, True)


def put_together(accumulator: Accumulator, event: Event) -> object:
    return put_many(accumulator, accumulator.buffer("orders"), None, [event])


def sent_events(accumulator: Accumulator) -> Iterator[Event]:
    """Encodes all events as the engine does, and yields them as a server decodes them."""
    accumulator.close_pages()
    buffer = accumulator.buffer("orders")
    while pages := accumulator.take_batch(buffer, 1e9, lambda _: True)[0]:
        columns = columns_of_request(request_of_pages("orders", Stamp("p", 1, 1), pages))
        assert columns.count, "a batch without events"
        for headers, body in ColumnsCutter(columns).rows(0, columns.count):
            yield Event(body, headers)


@pytest.mark.parametrize("events_before", [[], [BEFORE]])
@pytest.mark.parametrize("add", [put, put_together])
@pytest.mark.parametrize("batch_events_max", [1, 2, 10])
def test_send_interrupted_anywhere_leaves_the_event_whole_or_absent(
    add: Put, events_before: list[Event], batch_events_max: int
) -> None:
    """No lock stays locked, no later event gets its headers, and the engine is awake for what is buffered."""
    for step in count():
        wakeups: list[Any] = []
        config = ProducerConfig(batch_events_max=batch_events_max)
        accumulator = Accumulator(config, "p", ProducerCounters())
        accumulator.wake = lambda: wakeups.append(None)  # noqa: B023 - called in this round only
        for event in events_before:
            add(accumulator, event)
        was_interrupted = interrupt_at(step, lambda: add(accumulator, INTERRUPTED))  # noqa: B023 - called at once
        assert not accumulator.lock.locked()
        assert wakeups or not accumulator.buffer("orders").waiting
        add(accumulator, AFTER)
        sent = list(sent_events(accumulator))
        assert sent in ([*events_before, INTERRUPTED, AFTER], [*events_before, AFTER])
        if not was_interrupted:
            assert step > 10
            return


def test_first_send_interrupted_leaves_a_producer_that_closes_with_all_stored(
    channels: FakeChannels, producer_of: MakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread may just be starting: the next send waits for it, and the close flushes."""
    producer = producer_of(channels, linger_seconds=60.0)
    caller, wait = threading.current_thread(), threading.Event.wait

    def interrupted(event: threading.Event, seconds: float | None = None) -> bool:
        # Other threads wait for events, too.
        if threading.current_thread() is caller:
            raise KeyboardInterrupt
        return wait(event, seconds)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.send(b"interrupted")
    future = producer.send(b"after")
    assert producer.close(60).is_complete
    assert future.result(0).sequence == 1
