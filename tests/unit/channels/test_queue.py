from collections.abc import Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from millrace_server.channels import queue as queue_module
from millrace_server.channels.batches import Form, StoredBatch, StoredColumns, Window
from millrace_server.channels.queue import EventQueue, ResponseBudget, ResponseLimits
from millrace_server.errors import ChannelCorruptError
from millrace_server.wal.records import Location
from tests.channel_events import batch, bodies_of, numbered


def portion(
    events_max: int = 1 << 30,
    body_bytes_max: int = 1 << 30,
    response_bytes_max: int = 1 << 30,
    form: Form = Form.COLUMNS,
) -> ResponseLimits:
    return ResponseLimits(
        events_max=events_max, body_bytes_max=body_bytes_max, response_bytes_max=response_bytes_max, form=form
    )


def queue_of(*batches: StoredBatch) -> EventQueue:
    queue = EventQueue()
    for one in batches:
        queue.append(one)
    return queue


@pytest.fixture
def queue() -> EventQueue:
    """A queue with sequences 1 to 6 in batches of 3, 1 and 2."""
    return queue_of(batch(1, b"a", b"b", b"c"), batch(4, b"dddd"), batch(5, b"e", b"f"))


class DamagedSource:
    """A source whose reads fail."""

    def read(self, stored: StoredColumns) -> bytes:
        raise ChannelCorruptError("damaged")


@pytest.mark.parametrize("limits", [portion(form=Form.ROWS), portion(events_max=4)])
def test_take_that_cannot_read_a_batch_takes_nothing(queue: EventQueue, limits: ResponseLimits) -> None:
    """The events before the damage stay in their places."""
    damaged = StoredColumns.in_log(Location(1, 64, 100), DamagedSource(), 2, 2, 100)
    first = queue.take(portion(events_max=3))
    broken = queue_of(*first, StoredBatch(4, Window.whole(damaged)))
    with pytest.raises(ChannelCorruptError):
        broken.take(limits)
    assert broken.event_count == 5
    assert broken.first_sequence == 1
    assert bodies_of(broken.take(portion(events_max=3))) == [b"a", b"b", b"c"]


def test_take_events_that_cannot_be_read_takes_none(queue: EventQueue) -> None:
    """Those before the damage stay in their places."""
    damaged = StoredColumns.in_log(Location(1, 64, 100), DamagedSource(), 2, 2, 100)
    broken = queue_of(*queue.take(portion(events_max=3)), StoredBatch(4, Window.whole(damaged)))
    with pytest.raises(ChannelCorruptError):
        broken.take_events([2, 4])
    assert (broken.first_sequence, broken.event_count) == (1, 5)
    assert bodies_of(broken.take_events([3, 1])) == [b"c", b"a"]


def test_remove_through_the_middle_of_a_batch_that_cannot_be_read_removes_nothing(queue: EventQueue) -> None:
    """The events before it stay too, and can be removed."""
    damaged = StoredColumns.in_log(Location(1, 64, 100), DamagedSource(), 3, 3, 100)
    broken = queue_of(*queue.take(portion(events_max=4)), StoredBatch(5, Window.whole(damaged)))
    with pytest.raises(ChannelCorruptError):
        broken.remove_through(6)
    assert (broken.first_sequence, broken.event_count) == (1, 7)
    assert bodies_of(broken.remove_through(4)) == [b"a", b"b", b"c", b"dddd"]
    assert [(batch.first_sequence, batch.count) for batch in broken.remove_through(7)] == [(5, 3)]


def test_take_of_an_empty_queue_returns_nothing() -> None:
    """There is no first sequence either."""
    queue = EventQueue()
    assert queue.take(portion()) == []
    assert queue.first_sequence is None
    assert queue.event_count == 0


@pytest.mark.parametrize(
    ("limits", "bodies"),
    [
        (portion(), b"a b c dddd e f"),
        (portion(events_max=1), b"a"),
        (portion(events_max=3), b"a b c"),
        (portion(events_max=5), b"a b c dddd e"),
        (portion(body_bytes_max=1), b"a"),
        (portion(body_bytes_max=2), b"a b"),
        (portion(body_bytes_max=6), b"a b c"),
        (portion(body_bytes_max=7), b"a b c dddd"),
        (portion(events_max=2, body_bytes_max=7), b"a b"),
    ],
)
def test_take_within_limits_returns_the_oldest(queue: EventQueue, limits: ResponseLimits, bodies: bytes) -> None:
    """Batches are cut at the limits; an event that does not fit ends the response, even if a later one would fit."""
    expected = bodies.split()
    assert bodies_of(queue.take(limits)) == expected
    assert bodies_of(queue) == [b"a", b"b", b"c", b"dddd", b"e", b"f"][len(expected) :]
    assert queue.event_count == 6 - len(expected)


def test_take_of_a_first_event_above_the_byte_limit_returns_it_alone(queue: EventQueue) -> None:
    """Otherwise a consumer with that limit would never get past it."""
    queue.take(portion(events_max=3))
    assert bodies_of(queue.take(portion(body_bytes_max=3))) == [b"dddd"]


@pytest.mark.parametrize("form", Form)
def test_take_in_small_responses_returns_all_in_order(form: Form) -> None:
    """A large batch is returned in parts, each within the limit of the response."""
    bodies = [bytes([65 + number]) * 30 for number in range(26)]
    queue = queue_of(batch(1, *bodies[:13]), batch(14, *bodies[13:]))
    taken = list[bytes]()
    while queue.event_count:
        response = queue.take(portion(response_bytes_max=300, form=form))
        assert 0 < sum(len(body) for body in bodies_of(response)) < 300
        taken += bodies_of(response)
    assert taken == bodies


def test_take_of_empty_bodies_without_bytes_left_continues() -> None:
    """Events without a body cost no bytes."""
    queue = queue_of(batch(1, b"", b""), batch(3, b"x"), batch(4, b""), batch(5, b"y"))
    assert bodies_of(queue.take(portion(body_bytes_max=1))) == [b"", b"", b"x", b""]


def test_put_back_in_another_order_restores_the_order(queue: EventQueue) -> None:
    """Interleaved rollbacks: T1 takes two, T2 one, T1 rolls back first; the order is as it was."""
    first = queue.take(portion(events_max=2))
    second = queue.take(portion(events_max=1))
    queue.put_back(first)
    assert bodies_of(queue) == [b"a", b"b", b"dddd", b"e", b"f"]
    queue.put_back(second)
    assert bodies_of(queue) == [b"a", b"b", b"c", b"dddd", b"e", b"f"]


def test_put_back_of_all_parts_joins_them_again(queue: EventQueue) -> None:
    """A batch that was taken event by event and returned is one whole batch again."""
    taken = [queue.take(portion(events_max=1)) for _ in range(6)]
    for one in (taken[2], taken[0], taken[5], taken[3], taken[1], taken[4]):
        queue.put_back(one)
    assert [one.count for one in queue] == [3, 1, 2]
    assert all(one.window.is_whole for one in queue)


def test_put_back_beside_a_gap_stays_apart(queue: EventQueue) -> None:
    """Batches on both sides of events that are still taken are not joined."""
    taken = [queue.take(portion(events_max=1)) for _ in range(3)]
    queue.put_back(taken[0])
    queue.put_back(taken[2])
    assert numbered(queue)[:2] == [(1, b"a"), (3, b"c")]
    assert [one.count for one in queue] == [1, 1, 1, 2]


@pytest.mark.parametrize(
    ("sequence", "removed"),
    [(0, b""), (1, b"a"), (3, b"a b c"), (5, b"a b c dddd e"), (6, b"a b c dddd e f"), (99, b"a b c dddd e f")],
)
def test_remove_through_a_sequence_returns_what_it_removed(queue: EventQueue, sequence: int, removed: bytes) -> None:
    """The sequence itself is included; the rest stays."""
    expected = removed.split()
    assert bodies_of(queue.remove_through(sequence)) == expected
    assert bodies_of(queue) == [b"a", b"b", b"c", b"dddd", b"e", b"f"][len(expected) :]
    assert queue.event_count == 6 - len(expected)


@pytest.mark.parametrize(
    ("from_sequence", "to_sequence", "sequences"),
    [
        (1, 7, [1, 2, 3, 4, 5, 6]),
        (0, 99, [1, 2, 3, 4, 5, 6]),
        (2, 4, [2, 3]),
        (2, 3, [2]),
        (3, 6, [3, 4, 5]),
        (4, 5, [4]),
        (6, 7, [6]),
        (7, 99, []),
        (50, 99, []),
        (0, 1, []),
        # Empty ranges, also inside a batch.
        (1, 1, []),
        (2, 2, []),
        (4, 4, []),
        (5, 2, []),
    ],
)
def test_read_of_a_range_returns_its_events(
    queue: EventQueue, from_sequence: int, to_sequence: int, sequences: list[int]
) -> None:
    """Nothing is removed, and no empty batch is returned."""
    batches = queue.read(from_sequence, to_sequence)
    assert [sequence for sequence, _ in numbered(batches)] == sequences
    assert all(one.count for one in batches)
    assert queue.event_count == 6


def test_read_of_many_batches_ends_some_way_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long queue is copied a part at a time."""
    monkeypatch.setattr(queue_module, "_READ_AHEAD", 2)
    queue = queue_of(*(batch(sequence, b"x") for sequence in range(1, 6)))
    assert [one.first_sequence for one in queue.read(2, 6)] == [2, 3]
    assert [one.first_sequence for one in queue.read(4, 6)] == [4, 5]


def test_first_of_batches_that_do_not_all_fit_leaves_no_gap() -> None:
    """Events after one that does not fit are left out, even if they would fit."""
    batches = [batch(1, b"a"), batch(2, b"b" * 10), batch(3, b"c")]
    meter = ResponseBudget(portion(body_bytes_max=5))
    assert numbered(meter.first_of(batches)) == [(1, b"a")]


def test_first_of_batches_one_of_which_fits_in_part_ends_there() -> None:
    """No batch follows one that was cut."""
    batches = [batch(1, b"a"), batch(2, b"b", b"b" * 10), batch(4, b"c")]
    meter = ResponseBudget(portion(body_bytes_max=5))
    assert numbered(meter.first_of(batches)) == [(1, b"a"), (2, b"b")]


class QueueModel(RuleBasedStateMachine):
    """A queue compared with a plain list, with takes that are returned in any order."""

    @initialize()
    def begin(self) -> None:
        self.queue = EventQueue()
        self.expected: list[tuple[int, bytes]] = []
        self.away: list[list[StoredBatch]] = []
        self.next_sequence = 1

    @rule(bodies=st.lists(st.binary(max_size=5), min_size=1, max_size=6))
    def append(self, bodies: list[bytes]) -> None:
        self.queue.append(self.batch_of(*bodies))
        self.expected += enumerate(bodies, start=self.next_sequence)
        self.next_sequence += len(bodies)

    def batch_of(self, *bodies: bytes) -> StoredBatch:
        return batch(self.next_sequence, *bodies)

    @rule(events_max=st.integers(1, 8), body_bytes_max=st.integers(0, 20))
    def take(self, events_max: int, body_bytes_max: int) -> None:
        taken = self.queue.take(portion(events_max=events_max, body_bytes_max=body_bytes_max))
        expected = list(_first_within(self.expected, events_max, body_bytes_max))
        assert numbered(taken) == expected
        del self.expected[: len(expected)]
        if taken:
            self.away.append(taken)

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def put_back(self, data: st.DataObject) -> None:
        batches = self.away.pop(data.draw(st.integers(0, len(self.away) - 1)))
        self.queue.put_back(batches)
        self.expected = sorted(self.expected + numbered(batches))

    @precondition(lambda self: self.away)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        self.away.pop(data.draw(st.integers(0, len(self.away) - 1)))

    @rule(data=st.data())
    def remove_through(self, data: st.DataObject) -> None:
        sequence = data.draw(st.integers(0, self.next_sequence))
        removed = numbered(self.queue.remove_through(sequence))
        assert removed == [event for event in self.expected if event[0] <= sequence]
        self.expected = self.expected[len(removed) :]

    @rule(data=st.data())
    def take_events(self, data: st.DataObject) -> None:
        wanted = data.draw(st.lists(st.integers(0, self.next_sequence), max_size=4))
        taken = self.queue.take_events(wanted)
        assert sorted(numbered(taken)) == [event for event in self.expected if event[0] in wanted]
        self.expected = [event for event in self.expected if event[0] not in wanted]
        if taken:
            self.away.append(taken)

    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, self.next_sequence))
        end = data.draw(st.integers(first, self.next_sequence + 1))
        assert numbered(self.queue.read(first, end)) == [event for event in self.expected if first <= event[0] < end]

    @invariant()
    def holds_what_is_expected(self) -> None:
        assert numbered(self.queue) == self.expected
        assert self.queue.event_count == len(self.expected)
        assert self.queue.first_sequence == (self.expected[0][0] if self.expected else None)


def _first_within(events: list[tuple[int, bytes]], events_max: int, body_bytes_max: int) -> Iterator[tuple[int, bytes]]:
    body_bytes = 0
    for index, event in enumerate(events[:events_max]):
        body_bytes += len(event[1])
        if index and body_bytes > body_bytes_max:
            return
        yield event
        if body_bytes > body_bytes_max:
            return


def test_queue_driven_at_random_is_a_sorted_list() -> None:
    """Takes are returned in any order, or never; reads and removals see what a sorted list would show."""
    run_state_machine_as_test(QueueModel)


@pytest.mark.parametrize(
    ("first_sequence", "count", "left"),
    [
        (1, 1, [2, 3, 4, 5, 6]),
        (1, 3, [4, 5, 6]),
        (2, 1, [1, 3, 4, 5, 6]),
        (2, 2, [1, 4, 5, 6]),
        (4, 1, [1, 2, 3, 5, 6]),
        (5, 2, [1, 2, 3, 4]),
        (6, 1, [1, 2, 3, 4, 5]),
    ],
)
def test_remove_range_anywhere_in_a_batch_leaves_the_rest(
    queue: EventQueue, first_sequence: int, count: int, left: list[int]
) -> None:
    """Nothing is read from the log to compute what remains, unless both sides remain."""
    body_bytes = 4 if first_sequence == 4 else count
    assert queue.remove_range(first_sequence, count, body_bytes) == count
    assert [sequence for sequence, _ in numbered(queue)] == left
    assert queue.event_count == len(left)
    assert all(one.window.body_bytes == sum(map(len, bodies_of([one]))) for one in queue)
    # The same range again: it is already removed.
    assert queue.remove_range(first_sequence, count, body_bytes) == 0
    assert queue.event_count == len(left)


@pytest.mark.parametrize("first_sequence", [0, 7, 100])
def test_remove_range_that_is_not_there_removes_nothing(queue: EventQueue, first_sequence: int) -> None:
    """Its segment, which was not needed any more, has been deleted."""
    assert queue.remove_range(first_sequence, 1, 1) == 0
    assert queue.event_count == 6
    assert EventQueue().remove_range(1, 1, 1) == 0
