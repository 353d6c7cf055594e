import random
from itertools import pairwise

from millrace_server.agent.sources.stored_ranges import StoredRanges


def test_stored_ranges_of_an_unknown_producer_begin_at_the_start() -> None:
    """Nothing is stored, and a batch may end anywhere."""
    stored = StoredRanges([[], []])
    assert stored.position == 0
    assert stored.next_boundary(0) is None
    assert StoredRanges([]).position == 0


def test_stored_ranges_of_one_channel_continue_behind_them() -> None:
    """The stored part needs no second scan."""
    stored = StoredRanges([[(0, 99)]])
    assert stored.position == 100
    assert stored.next_boundary(100) is None


def test_stored_ranges_of_channels_that_differ_begin_with_the_one_behind() -> None:
    """Events that the other channel has stored are a batch of their own."""
    stored = StoredRanges([[(0, 99)], [(0, 299)], [(0, 99), (200, 249)]])
    assert stored.position == 100
    boundaries = [stored.position]
    while (boundary := stored.next_boundary(boundaries[-1])) is not None:
        boundaries.append(boundary)
    assert boundaries == [100, 200, 250, 300]


def test_stored_ranges_that_do_not_begin_at_the_start_have_a_border_there() -> None:
    """A first range that begins later leaves a gap before it."""
    stored = StoredRanges([[(50, 99)]])
    assert stored.position == 0
    assert (stored.next_boundary(0), stored.next_boundary(50), stored.next_boundary(100)) == (50, 100, None)


def test_batches_between_borders_never_overlap_a_range_in_part() -> None:
    """For any ranges, each batch from the position on is entirely new or entirely stored for each channel."""
    for seed in range(200):
        choice = random.Random(seed)
        channels = []
        for _ in range(choice.randint(1, 3)):
            cuts = sorted(choice.sample(range(100), 2 * choice.randint(0, 3)))
            channels.append([(first, last) for first, last in zip(cuts[::2], cuts[1::2], strict=True)])
        stored = StoredRanges(channels)
        boundaries = [stored.position]
        while (boundary := stored.next_boundary(boundaries[-1])) is not None:
            boundaries.append(boundary)
        for ranges in channels:
            stored_numbers = {number for first, last in ranges for number in range(first, last + 1)}
            assert stored_numbers.issuperset(range(stored.position)), f"seed {seed}"
            for start, end in pairwise([*boundaries, 200]):
                numbers = set(range(start, end))
                assert numbers <= stored_numbers or numbers.isdisjoint(stored_numbers), f"seed {seed}"
