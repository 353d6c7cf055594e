import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_server.channels import stamps
from millrace_server.channels.stamps import IntervalSet, Stamp, StampLedger
from millrace_server.errors import BadArgumentError, ForbiddenError, OffsetGapError
from tests.channel_events import SEQUENCE_MAX

RANGES = st.tuples(st.integers(0, 40), st.integers(0, 8)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def ledger_with(*ranges: tuple[int, int]) -> StampLedger:
    ledger = StampLedger()
    for first, last in ranges:
        ledger.accept(Stamp("p", first, last))
    return ledger


@given(st.lists(RANGES, max_size=30), RANGES)
def test_interval_set_of_any_ranges_is_the_set_of_their_numbers(
    ranges: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    """Intervals stay apart and ascending, and gaps are exactly the numbers that were not added."""
    known = set[int]()
    intervals = IntervalSet()
    for first, last in ranges:
        intervals.add(first, last)
        known.update(range(first, last + 1))
    assert len(intervals) == sum(number - 1 not in known for number in known)
    gaps = intervals.gaps(*asked)
    missing = [number for first, last in gaps for number in range(first, last + 1)]
    assert missing == [number for number in range(asked[0], asked[1] + 1) if number not in known]
    assert intervals.touches(*asked) == any(number in known for number in range(asked[0] - 1, asked[1] + 2))
    intervals.add(*asked)
    assert intervals.gaps(*asked) == []


@pytest.mark.parametrize("producer_id", ["", "ü", "a\n", "a\0", "x" * 129])
def test_stamp_of_a_malformed_producer_is_refused(producer_id: str) -> None:
    """A producer's id has 1 to 128 printable ASCII characters."""
    with pytest.raises(BadArgumentError, match=r"stamp\.producer_id: is .*printable ASCII"):
        Stamp(producer_id, 1, 1)


def test_stamp_whose_last_lies_before_its_first_is_refused() -> None:
    """A stamp covers at least one number."""
    with pytest.raises(BadArgumentError, match=r"stamp\.last_sequence: is 4; it must not be below .*, 5"):
        Stamp("p", 5, 4)


def test_stamp_that_promises_never_to_send_what_it_sends_is_refused() -> None:
    """The oldest open number must not exceed the first number of the stamp."""
    assert Stamp("p", 5, 6, oldest_open=5).oldest_open == 5
    with pytest.raises(BadArgumentError, match=r"stamp\.oldest_open_sequence: is 6; it must not be above .*, 5"):
        Stamp("p", 5, 6, oldest_open=6)


@pytest.mark.parametrize(("first", "last", "span"), [(0, 0, 1), (7, 9, 3), (0, SEQUENCE_MAX, SEQUENCE_MAX + 1)])
def test_span_of_a_stamp_counts_its_numbers(first: int, last: int, span: int) -> None:
    """Both ends are included, and numbers begin at 0."""
    assert Stamp("p", first, last).span == span


@pytest.mark.parametrize(
    ("stamp", "event_count", "ranges"),
    [
        # Each number is one event.
        (Stamp("p", 20, 22), 3, [(0, 3)]),
        (Stamp("p", 10, 14), 5, []),
        (Stamp("p", 8, 11), 4, [(0, 2)]),
        (Stamp("p", 13, 16), 4, [(2, 4)]),
        (Stamp("p", 9, 15), 7, [(0, 1), (6, 7)]),
        (Stamp("p", 15, 15), 1, [(0, 1)]),
        (Stamp("p", 0, 0), 1, [(0, 1)]),
        # The stamp covers all or nothing.
        (Stamp("p", 20, 20), 3, [(0, 3)]),
        (Stamp("p", 0, 9), 3, [(0, 3)]),
        (Stamp("p", 10, 14), 3, []),
        (Stamp("p", 12, 12), 100, []),
        (Stamp("p", 20, 20), 0, [(0, 0)]),
        (Stamp("p", 10, 10), 0, []),
        # The numbers of another producer are independent.
        (Stamp("q", 10, 14), 5, [(0, 5)]),
    ],
)
def test_new_ranges_with_numbers_accepted_name_what_is_new(
    stamp: Stamp, event_count: int, ranges: list[tuple[int, int]]
) -> None:
    """The producer has stored 10 to 14; only other numbers are new."""
    assert ledger_with((10, 14)).new_ranges(stamp, event_count) == ranges


def test_new_ranges_with_several_gaps_name_each() -> None:
    """An overlap is cut off event by event, wherever it lies."""
    assert ledger_with((1, 1), (3, 4), (6, 6)).new_ranges(Stamp("p", 0, 7), 8) == [(0, 1), (2, 3), (5, 6), (7, 8)]


@pytest.mark.parametrize("stamp", [Stamp("p", 14, 15), Stamp("p", 0, 10), Stamp("p", 0, 99)])
def test_new_ranges_of_a_whole_in_part_accepted_are_refused(stamp: Stamp) -> None:
    """What is stored as a whole cannot be cut, and the refusal changes nothing."""
    ledger = ledger_with((10, 14))
    with pytest.raises(BadArgumentError, match="covers 5 events as a whole and overlaps in part"):
        ledger.new_ranges(stamp, 5)
    assert ledger.new_ranges(Stamp("p", 9, 15), 7) == [(0, 1), (6, 7)]


@pytest.mark.parametrize(("first", "last", "is_accepted"), [(5, 9, True), (6, 6, True), (4, 9, False), (5, 10, False)])
def test_has_accepted_requires_every_number(first: int, last: int, *, is_accepted: bool) -> None:
    """A part of them is not enough; an unknown producer has none."""
    ledger = StampLedger()
    ledger.accept(Stamp("p", 5, 9))
    assert ledger.has_accepted(Stamp("p", first, last)) is is_accepted
    assert not ledger.has_accepted(Stamp("q", first, last))


def test_accept_of_the_largest_numbers_remembers_them() -> None:
    """The whole range of 64 bits can be used."""
    ledger = ledger_with((SEQUENCE_MAX, SEQUENCE_MAX), (0, 0))
    assert ledger.new_ranges(Stamp("p", SEQUENCE_MAX, SEQUENCE_MAX), 1) == []
    assert ledger.new_ranges(Stamp("p", SEQUENCE_MAX - 1, SEQUENCE_MAX), 2) == [(0, 1)]
    assert ledger.new_ranges(Stamp("p", 0, SEQUENCE_MAX), 1 << 64) == [(1, SEQUENCE_MAX)]


def test_new_ranges_beyond_the_intervals_allowed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that leaves gap after gap is stopped, but may fill its gaps and repeat itself."""
    monkeypatch.setattr(stamps, "INTERVALS_MAX", 3)
    ledger = ledger_with((1, 1), (3, 3), (5, 5))
    with pytest.raises(BadArgumentError, match="has left 3 gaps in its numbers; fill some first"):
        ledger.new_ranges(Stamp("p", 7, 7), 1)
    assert ledger.new_ranges(Stamp("p", 3, 3), 1) == []
    assert ledger.new_ranges(Stamp("p", 6, 6), 1) == [(0, 1)]
    assert ledger.new_ranges(Stamp("q", 7, 7), 1) == [(0, 1)]
    ledger.accept(Stamp("p", 2, 2))
    assert ledger.new_ranges(Stamp("p", 7, 7), 1) == [(0, 1)]


def test_accept_beyond_the_producers_allowed_forgets_the_most_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer that was silent for longest is forgotten; a repetition counts as activity."""
    monkeypatch.setattr(stamps, "PRODUCERS_MAX", 2)
    ledger = StampLedger()
    for producer_id in ("a", "b", "a", "c"):
        ledger.accept(Stamp(producer_id, 1, 1))
    assert len(ledger) == 2
    assert ledger.new_ranges(Stamp("a", 1, 1), 1) == []
    assert ledger.new_ranges(Stamp("b", 1, 1), 1) == [(0, 1)]
    assert ledger.new_ranges(Stamp("c", 1, 1), 1) == []


def test_accept_of_many_passing_producers_forgets_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that chooses a key for each request must not cause the lines of a file to be stored twice."""
    monkeypatch.setattr(stamps, "PRODUCERS_MAX", 3)
    ledger = StampLedger()
    ledger.accept(Stamp("file", 1, 1))
    for key in range(5):
        ledger.accept(Stamp(f"passing/{key}", 1, 1))
    assert [producer_id for producer_id, _ in ledger.producers()] == ["file", "passing/3", "passing/4"]
    for producer_id in ("b", "c"):
        ledger.accept(Stamp(producer_id, 1, 1))
    assert [producer_id for producer_id, _ in ledger.producers()] == ["file", "b", "c"]


def test_undo_of_a_passing_producer_for_which_there_was_no_space_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The passing producer itself was the one forgotten."""
    monkeypatch.setattr(stamps, "PRODUCERS_MAX", 1)
    ledger = StampLedger()
    ledger.accept(Stamp("file", 1, 1))
    acceptance = ledger.accept(Stamp("passing/1", 1, 1))
    assert not ledger.has_accepted(Stamp("passing/1", 1, 1))
    ledger.undo(acceptance)
    assert list(ledger.producers()) == [("file", [(1, 1)])]


@pytest.mark.parametrize("after", [None, 10, 12, 14])
def test_refuse_gap_behind_what_was_accepted_passes(after: int | None) -> None:
    """There is no gap without a condition, or after an accepted number."""
    ledger_with((10, 14)).refuse_gap(Stamp("p", 20, 22, after=after))


@pytest.mark.parametrize(
    "stamp", [Stamp("p", 20, 22, after=15), Stamp("p", 20, 22, after=9), Stamp("q", 1, 1, after=10)]
)
def test_refuse_gap_behind_what_was_not_accepted_refuses(stamp: Stamp) -> None:
    """Only numbers of this producer count; the message names the missing number."""
    with pytest.raises(
        OffsetGapError, match=rf"stamp\.after_sequence: is {stamp.after}, .* from producer '{stamp.producer_id}'"
    ):
        ledger_with((10, 14)).refuse_gap(stamp)


def test_accept_with_an_oldest_open_number_keeps_all_before_it_as_one_range(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer that spreads its numbers over many channels does not exceed the number of gaps."""
    monkeypatch.setattr(stamps, "INTERVALS_MAX", 3)
    ledger = ledger_with((1, 1), (3, 3), (5, 5))
    stamp = Stamp("p", 7, 7, oldest_open=5)
    assert ledger.new_ranges(stamp, 1) == [(0, 1)]
    assert list(ledger.intervals_of("p")) == [(1, 1), (3, 3), (5, 5)]
    ledger.accept(stamp)
    assert list(ledger.intervals_of("p")) == [(0, 5), (7, 7)]
    assert ledger.new_ranges(Stamp("p", 2, 6), 5) == [(4, 5)]


def test_new_ranges_with_an_oldest_open_number_that_closes_too_few_gaps_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The number of intervals stays bounded."""
    monkeypatch.setattr(stamps, "INTERVALS_MAX", 3)
    with pytest.raises(BadArgumentError, match="has left 4 gaps"):
        ledger_with((3, 3), (5, 5), (7, 7)).new_ranges(Stamp("p", 9, 9, oldest_open=2), 1)


def test_accept_with_an_oldest_open_number_of_an_unknown_producer_remembers_only_what_is_stored() -> None:
    """The open number of an unknown producer does not count."""
    ledger = ledger_with((4, 4))
    ledger.accept(Stamp("q", 7, 7, oldest_open=7))
    ledger.accept(Stamp("p", 7, 7, oldest_open=0))
    assert dict(ledger.producers()) == {"p": [(4, 4), (7, 7)], "q": [(7, 7)]}


def test_undo_of_a_stamp_opens_the_gaps_that_it_closed() -> None:
    """The commit is not in the log, and neither are the closed gaps; the producer closes them again."""
    ledger = ledger_with((3, 3))
    ledger.undo(ledger.accept(Stamp("p", 8, 9, oldest_open=6)))
    assert list(ledger.intervals_of("p")) == [(3, 3)]


def test_accept_of_what_another_ledger_found_new_makes_it_the_same() -> None:
    """Replaying the new ranges restores the ledger; stamps without new numbers change nothing."""
    ledger, replayed = ledger_with((3, 3)), ledger_with((3, 3))
    for stamp in (Stamp("p", 8, 9, oldest_open=6), Stamp("p", 8, 9, oldest_open=8), Stamp("p", 12, 12, oldest_open=12)):
        for first, last in ledger.accept(stamp).new:
            replayed.accept(Stamp("p", first, last))
    assert dict(ledger.producers()) == dict(replayed.producers()) == {"p": [(0, 12)]}


@given(st.lists(RANGES, max_size=10), st.integers(0, 48), st.data())
def test_remove_of_any_range_in_the_set_leaves_the_rest(
    ranges: list[tuple[int, int]], number: int, data: st.DataObject
) -> None:
    """The range may be at the ends of an interval or inside it."""
    intervals = IntervalSet()
    for first, last in [*ranges, (number, number)]:
        intervals.add(first, last)
    low, high = next((low, high) for low, high in intervals if low <= number <= high)
    first = data.draw(st.integers(low, number))
    last = data.draw(st.integers(number, high))
    known = {one for low, high in intervals for one in range(low, high + 1)}
    intervals.remove(first, last)
    left = list(intervals)
    assert {one for low, high in left for one in range(low, high + 1)} == known - set(range(first, last + 1))
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(left))


@given(st.lists(st.tuples(st.sampled_from("pqr"), RANGES), max_size=12), st.integers(0, 12))
def test_undo_of_the_last_stamps_leaves_what_was_accepted_before(
    accepted: list[tuple[str, tuple[int, int]]], kept_count: int
) -> None:
    """The stamps may overlap; the last is undone first."""
    stamps_of = [Stamp(producer_id, first, last) for producer_id, (first, last) in accepted]
    expected = StampLedger()
    for stamp in stamps_of[:kept_count]:
        expected.accept(stamp)
    ledger = StampLedger()
    acceptances = [ledger.accept(stamp) for stamp in stamps_of]
    for acceptance in reversed(acceptances[kept_count:]):
        ledger.undo(acceptance)
    assert dict(ledger.producers()) == dict(expected.producers())


@given(st.lists(st.tuples(st.sampled_from("pqr"), RANGES), max_size=12), st.integers(0, 12), st.booleans())
def test_snapshot_stays_as_it_is_whatever_is_accepted_or_undone(
    accepted: list[tuple[str, tuple[int, int]]],
    seen_count: int,
    is_whole: bool,  # noqa: FBT001 - Hypothesis passes it by position
) -> None:
    """A thread encodes it meanwhile; the same holds for that of a ledger without some stamps."""
    ledger = StampLedger()
    early = [ledger.accept(Stamp(producer_id, first, last)) for producer_id, (first, last) in accepted[:seen_count]]
    snapshot = ledger.snapshot() if is_whole else ledger.without(early[:1]).snapshot()
    seen = [(producer_id, list(intervals)) for producer_id, intervals in snapshot.items()]
    late = [ledger.accept(Stamp(producer_id, first, last)) for producer_id, (first, last) in accepted[seen_count:]]
    for acceptance in reversed([*early, *late]):
        ledger.undo(acceptance)
        assert [(producer_id, list(intervals)) for producer_id, intervals in snapshot.items()] == seen
    assert list(ledger.producers()) == []


@given(st.lists(RANGES, max_size=10), RANGES)
def test_remove_of_any_range_at_all_leaves_the_other_numbers(
    ranges: list[tuple[int, int]], removed: tuple[int, int]
) -> None:
    """Some or all of its numbers may be missing."""
    intervals = IntervalSet()
    for first, last in ranges:
        intervals.add(first, last)
    known = {one for low, high in intervals for one in range(low, high + 1)}
    intervals.remove(*removed)
    left = list(intervals)
    assert {one for low, high in left for one in range(low, high + 1)} == known - set(range(removed[0], removed[1] + 1))
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(left))


@given(st.lists(st.tuples(st.sampled_from("pqr"), RANGES, st.booleans()), max_size=12))
def test_without_any_stamps_a_ledger_is_as_if_they_had_never_been(
    accepted: list[tuple[str, tuple[int, int], bool]],
) -> None:
    """Only the numbers added by these stamps are left out; the ledger itself is unchanged."""
    ledger = StampLedger()
    expected: dict[str, set[int]] = {}
    left_out = []
    for producer_id, (first, last), is_left_out in accepted:
        acceptance = ledger.accept(Stamp(producer_id, first, last))
        new = {number for low, high in acceptance.new for number in range(low, high + 1)}
        if is_left_out:
            left_out.append(acceptance)
        elif new:
            expected.setdefault(producer_id, set()).update(new)
    before = dict(ledger.producers())
    rest = ledger.without(left_out)
    assert {
        producer_id: {number for low, high in intervals for number in range(low, high + 1)}
        for producer_id, intervals in rest.producers()
    } == expected
    assert dict(ledger.producers()) == before


def test_without_stamps_of_a_producer_that_was_forgotten_knows_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The producer may be accepted again."""
    monkeypatch.setattr(stamps, "PRODUCERS_MAX", 1)
    ledger = StampLedger()
    forgotten = ledger.accept(Stamp("a", 1, 5))
    ledger.accept(Stamp("b", 1, 1))
    assert list(ledger.without([forgotten]).producers()) == [("b", [(1, 1)])]


def test_undo_of_a_stamp_remembers_the_producer_that_was_forgotten_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is restored as the least recently active one."""
    monkeypatch.setattr(stamps, "PRODUCERS_MAX", 2)
    ledger = StampLedger()
    for producer_id in ("a", "b"):
        ledger.accept(Stamp(producer_id, 1, 1))
    third, fourth = ledger.accept(Stamp("c", 1, 1)), ledger.accept(Stamp("d", 1, 1))
    assert [producer_id for producer_id, _ in ledger.producers()] == ["c", "d"]
    ledger.undo(fourth)
    ledger.undo(third)
    assert list(ledger.producers()) == [("a", [(1, 1)]), ("b", [(1, 1)])]
    ledger.accept(Stamp("c", 1, 1))
    assert [producer_id for producer_id, _ in ledger.producers()] == ["b", "c"]


def test_restore_of_producers_continues_where_they_were() -> None:
    """The order given is that of their last activity."""
    ledger = StampLedger()
    ledger.restore("p", [(0, 3), (SEQUENCE_MAX, SEQUENCE_MAX)])
    ledger.restore("q", [])
    assert list(ledger.producers()) == [("p", [(0, 3), (SEQUENCE_MAX, SEQUENCE_MAX)]), ("q", [])]
    assert ledger.new_ranges(Stamp("p", 3, 4), 2) == [(1, 2)]


def test_new_ranges_of_a_producer_of_another_identity_are_refused() -> None:
    """The producer belongs to the identity that first stamped; callers without identity, such as sources, may go on."""
    ledger = StampLedger()
    ledger.accept(Stamp("p", 1, 3))
    assert ledger.new_ranges(Stamp("p", 3, 4, owner="web"), 2) == [(1, 2)], "from before there were identities"
    ledger.accept(Stamp("p", 4, 4, owner="web"))
    for first in (4, 5):
        with pytest.raises(ForbiddenError, match=r"stamp\.producer_id: 'p' belongs to the identity that used it first"):
            ledger.new_ranges(Stamp("p", first, first, owner="other"), 1)
        assert ledger.new_ranges(Stamp("p", first, first), 1) == [(0, 1)] * (first == 5)
    assert ledger.new_ranges(Stamp("q", 1, 1, owner="other"), 1) == [(0, 1)]


def test_new_ranges_of_a_replay_belong_to_no_identity() -> None:
    """One operator continues what another has begun."""
    ledger = StampLedger()
    ledger.accept(Stamp("replay/x/0", 1, 3, owner="alice"))
    assert ledger.new_ranges(Stamp("replay/x/0", 3, 4, owner="bob"), 2) == [(1, 2)]


def test_undo_of_a_first_stamp_leaves_its_producer_to_anybody() -> None:
    """What was not stored reserves no name."""
    ledger = StampLedger()
    ledger.undo(ledger.accept(Stamp("p", 1, 3, owner="web")))
    assert ledger.new_ranges(Stamp("p", 1, 1, owner="other"), 1) == [(0, 1)]


def test_follows_needs_the_same_identity() -> None:
    """Appends of several callers share a commit, which has one stamp."""
    before = Stamp("p", 1, 3, owner="web")
    assert Stamp("p", 4, 4, owner="web").follows(before)
    assert not Stamp("p", 4, 4, owner="other").follows(before)
