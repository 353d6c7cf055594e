import itertools
import random
from collections.abc import Sequence

import pytest

from millrace_client._retries import Backoff
from millrace_client.consuming import delivery_buffer
from millrace_client.consuming.delivery_buffer import AttemptCounter, DeliveryBuffer
from millrace_client.consuming.subscription import (
    MOVES,
    DeliveryState,
    Subscription,
    SubscriptionState,
    TrackedDelivery,
)
from tests.fake_clock import FakeClock
from tests.unit.client.consuming.fakes import RecordingHooks, ids, response_of

STREAM = object()


class BufferHarness:
    """A buffer of some subscriptions, with a clock that the test moves."""

    def __init__(self, lane_count: int = 1, bytes_max: int = 1000) -> None:
        self.clock = FakeClock()
        self.hooks = RecordingHooks()
        self.lanes: Sequence[Subscription[TrackedDelivery]] = [
            Subscription("server", f"channel-{number}", Backoff(1.0, 1.0)) for number in range(lane_count)
        ]
        self.buffer = DeliveryBuffer(self.lanes, bytes_max, self.clock, self.hooks)
        self._ids = itertools.count(1)

    def add(self, subscription: int = 0, *bodies: bytes, stream: object = STREAM) -> TrackedDelivery:
        delivery = TrackedDelivery(None, self.lanes[subscription], stream, response_of(next(self._ids), *bodies))
        self.buffer.add(delivery)
        return delivery

    def in_state(self, state: DeliveryState) -> TrackedDelivery:
        """A delivery in this state."""
        delivery = self.add()
        if state is DeliveryState.QUEUED:
            return delivery
        assert self.buffer.take() is delivery
        if state is DeliveryState.LOST:
            self.buffer.lose(self.lanes[0], STREAM)
        elif state is not DeliveryState.IN_HAND:
            assert self.buffer.settle(delivery, state)
        return delivery

    def figures(self) -> tuple[int, int, int, int]:
        buffer = self.buffer
        return buffer.queued_count, buffer.queued_bytes, buffer.unsettled_count, buffer.unsettled_bytes


def test_take_goes_round_the_lanes() -> None:
    """A subscription with many deliveries cannot starve another; each keeps its own order."""
    harness = BufferHarness(lane_count=3)
    first = [harness.add(0) for _ in range(4)]
    second = [harness.add(1) for _ in range(2)]
    third = [harness.add(2)]
    taken = [harness.buffer.take() for _ in range(8)]
    expected = [first[0], second[0], third[0], first[1], second[1], first[2], first[3], None]
    assert ids(*taken) == ids(*expected)


@pytest.mark.parametrize("state", DeliveryState)
@pytest.mark.parametrize("target", [DeliveryState.ACKED, DeliveryState.NACKED, DeliveryState.HELD])
def test_settle_from_any_state_follows_the_table(state: DeliveryState, target: DeliveryState) -> None:
    """Moves that the table does not allow change nothing."""
    harness = BufferHarness()
    delivery = harness.in_state(state)
    allowed = target in MOVES[state]
    assert harness.buffer.settle(delivery, target) is allowed
    assert delivery.state is (target if allowed else state)


def test_settled_deliveries_make_space() -> None:
    """A delivery's bytes count until it is settled, also while it is held back."""
    harness = BufferHarness(bytes_max=1)
    delivery = harness.add()
    size = delivery.byte_count
    assert harness.figures() == (1, size, 1, size)
    assert not harness.buffer.has_space(harness.lanes[0])
    harness.buffer.take()
    assert harness.figures() == (0, 0, 1, size)
    harness.buffer.settle(delivery, DeliveryState.HELD)
    assert not harness.buffer.has_space(harness.lanes[0])
    harness.buffer.settle(delivery, DeliveryState.NACKED)
    assert harness.figures() == (0, 0, 0, 0)
    assert harness.buffer.has_space(harness.lanes[0])


def test_lane_with_nothing_out_always_has_space() -> None:
    """A subscription is not starved when another one uses all bytes."""
    harness = BufferHarness(lane_count=2, bytes_max=1)
    harness.add(0)
    assert [harness.buffer.has_space(subscription) for subscription in harness.lanes] == [False, True]


def test_lose_drops_what_is_queued_and_marks_what_is_out() -> None:
    """All deliveries of a broken stream come again, so none of them may be handed out or settled."""
    harness = BufferHarness(lane_count=2)
    in_hand, held, queued = [harness.add(0) for _ in range(3)]
    other = harness.add(1)
    assert ids(*(harness.buffer.take() for _ in range(3))) == ids(in_hand, other, held)
    harness.buffer.settle(held, DeliveryState.HELD)
    harness.buffer.lose(harness.lanes[0], STREAM)
    assert [delivery.is_lost for delivery in (in_hand, held, queued, other)] == [True, True, True, False]
    assert harness.buffer.take() is None
    assert harness.figures() == (0, 0, 1, other.byte_count)
    # The queued delivery was not seen by any caller.
    assert harness.buffer.counters.lost_deliveries == 2


def test_lose_of_another_stream_keeps_what_is_in_hand() -> None:
    """Only deliveries of the broken stream are lost."""
    harness = BufferHarness()
    delivery = harness.add()
    harness.buffer.take()
    harness.buffer.lose(harness.lanes[0], object())
    assert not delivery.is_lost


def test_counters_and_hooks_follow_a_delivery() -> None:
    """Deliveries, work times and settlements are counted; hooks run after the engine has released its lock."""
    harness = BufferHarness()
    harness.add(0, b"a", b"b")
    harness.add(0)
    for seconds, target in ((2.0, DeliveryState.ACKED), (3.0, DeliveryState.NACKED)):
        delivery = harness.buffer.take()
        assert delivery is not None
        harness.clock.now += seconds
        harness.buffer.settle(delivery, target)
    counters = harness.buffer.counters
    assert (counters.delivered_deliveries, counters.delivered_events) == (2, 3)
    assert (counters.acked_deliveries, counters.acked_events) == (1, 2)
    assert (counters.nacked_deliveries, counters.nacked_events) == (1, 1)
    assert counters.work.summary().sum_seconds == 5.0
    assert harness.hooks.all == []
    harness.buffer.deferred.run()
    assert harness.hooks.all == [
        ("delivered", 1),
        ("delivered", 2),
        ("settled", 1, 2.0, True),
        ("settled", 2, 3.0, False),
    ]


@pytest.mark.parametrize("target", [DeliveryState.ACKED, DeliveryState.NACKED])
def test_note_lost_takes_back_what_was_counted(target: DeliveryState) -> None:
    """An ack that could not be sent is not counted."""
    harness = BufferHarness()
    delivery = harness.add()
    harness.buffer.take()
    harness.buffer.settle(delivery, target)
    harness.buffer.note_lost(delivery)
    counters = harness.buffer.counters
    assert (counters.acked_events, counters.nacked_events, counters.lost_events) == (0, 0, 1)
    assert delivery.is_lost


def test_hook_that_raises_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    """The exception is logged, and the other hooks run."""
    harness = BufferHarness()

    def fail(*_args: object) -> None:
        raise ValueError("mine")

    harness.buffer.deferred.add(fail)
    harness.add()
    harness.buffer.deferred.run()
    assert harness.hooks.all == [("delivered", 1)]
    assert "ValueError: mine" in caplog.text


@pytest.mark.parametrize("state", SubscriptionState)
@pytest.mark.parametrize("target", SubscriptionState)
def test_lane_moves_follow_the_table(state: SubscriptionState, target: SubscriptionState) -> None:
    """A subscription that has failed or ended stays so."""
    subscription: Subscription[TrackedDelivery] = Subscription("a", "b", Backoff(1.0, 1.0))
    subscription._state = state
    allowed = {
        (SubscriptionState.WAITING, SubscriptionState.READING),
        (SubscriptionState.WAITING, SubscriptionState.ENDED),
        (SubscriptionState.READING, SubscriptionState.WAITING),
        (SubscriptionState.READING, SubscriptionState.FAILED),
        (SubscriptionState.READING, SubscriptionState.ENDED),
    }
    if (state, target) in allowed:
        subscription.move(target)
        assert subscription.state is target
    else:
        with pytest.raises(AssertionError):
            subscription.move(target)
    assert subscription.is_over is (subscription.state in (SubscriptionState.FAILED, SubscriptionState.ENDED))


def test_any_history_keeps_the_figures() -> None:
    """After each random step the figures equal a fresh count."""
    seed = random.randrange(1 << 32)
    print("seed", seed)  # noqa: T201 - a failure is repeated with it
    chance = random.Random(seed)
    harness = BufferHarness(lane_count=3)
    buffer = harness.buffer
    for _ in range(2_000):
        match chance.randrange(6):
            case 0 | 1 | 2:
                harness.add(chance.randrange(3), *[b"x"] * chance.randrange(1, 4))
            case 3:
                buffer.take()
            case 4:
                if out := [each for subscription in harness.lanes for each in subscription.unsettled]:
                    buffer.settle(chance.choice(out), chance.choice(list(DeliveryState)[2:5]))
            case _:
                if chance.random() < 0.1:
                    buffer.lose(chance.choice(harness.lanes), STREAM)
        unsettled = [each for subscription in harness.lanes for each in subscription.unsettled]
        queued = [each for subscription in harness.lanes for each in subscription.queued]
        assert all(each.state is DeliveryState.QUEUED for each in queued)
        assert harness.figures() == (
            len(queued),
            sum(each.byte_count for each in queued),
            len(unsettled),
            sum(each.byte_count for each in unsettled),
        )


def test_failures_in_a_row_count_by_place() -> None:
    """Failures are counted per place, until work on it succeeds."""
    known = AttemptCounter()
    assert [known.note_failure("a", 1) for _ in range(3)] == [1, 2, 3]
    assert [known.number_of(*place) for place in (("a", 1), ("a", 2), ("b", 1))] == [4, 1, 1]
    known.forget("a", 1)
    assert known.number_of("a", 1) == 1


def test_places_beyond_the_maximum_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The place whose last failure is the oldest is dropped first."""
    monkeypatch.setattr(delivery_buffer, "POSITIONS_MAX", 2)
    known = AttemptCounter()
    for place in (1, 2, 1, 3):
        known.note_failure("a", place)
    assert [known.number_of("a", place) for place in (1, 2, 3)] == [3, 1, 2]
