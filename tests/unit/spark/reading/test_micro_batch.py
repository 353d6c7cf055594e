from hypothesis import given
from hypothesis import strategies as st

from millrace_spark.reading.micro_batch import BatchPlanner, fair_shares
from millrace_spark.reading.offsets import ShardOffset
from millrace_spark.reading.options import TriggerLimits
from millrace_spark.shards import Shard

A, B, C = (Shard("orders", f"{name}:1") for name in "abc")
POSITIONS = {A: ShardOffset("id-a", 1, 5), B: ShardOffset("id-b", 2, 7), C: ShardOffset("id-c", 1, 1)}


def planner(
    events_max: int | None = None, bytes_max: int | None = None, events_min: int = 1, delay_seconds_max: float = 10.0
) -> BatchPlanner:
    return BatchPlanner(
        TriggerLimits(
            events_max=events_max, bytes_max=bytes_max, events_min=events_min, delay_seconds_max=delay_seconds_max
        )
    )


def test_next_batch_without_limits_takes_all_there_is() -> None:
    """Each range starts at the position of its shard; a shard that may not be read has no events."""
    batch = planner().next_batch(POSITIONS, {A: 15, C: 1}, {})
    assert batch == {A: ShardOffset("id-a", 5, 15), B: ShardOffset("id-b", 7, 7), C: ShardOffset("id-c", 1, 1)}


def test_next_batch_within_a_limit_takes_turns() -> None:
    """With a limit below the number of shards, each shard has its turn."""
    planning = planner(events_max=2)
    positions = {shard: ShardOffset("id", 1, 1) for shard in (A, B, C)}
    given_out = []
    for _ in range(3):
        positions = planning.next_batch(positions, dict.fromkeys(positions, 100), {})
        given_out.append({shard for shard, offset in positions.items() if offset.event_count})
    assert given_out == [{A, B}, {B, C}, {A, C}]


@given(
    st.dictionaries(st.sampled_from([A, B, C]), st.tuples(st.integers(0, 500), st.floats(0, 5_000)), min_size=1),
    st.integers(1, 20_000),
    st.integers(1, 300),
)
def test_next_batch_within_bytes_passes_them_by_one_event_at_most(
    there: dict[Shard, tuple[int, float]], bytes_max: int, events_max: int
) -> None:
    """Batches respect the limit by mean sizes, but hold at least one event."""
    positions = {shard: ShardOffset("id", 1, 1) for shard in there}
    ends = {shard: 1 + count for shard, (count, _) in there.items()}
    sizes = {shard: size for shard, (_, size) in there.items()}
    batch = planner(events_max=events_max, bytes_max=bytes_max).next_batch(positions, ends, sizes)
    counts = {shard: offset.event_count for shard, offset in batch.items()}
    assert sum(counts.values()) <= events_max
    assert bool(sum(counts.values())) == any(count for count, _ in there.values())
    largest = max(max(size, 1.0) for size in sizes.values())
    assert sum(counts[shard] * max(sizes[shard], 1.0) for shard in counts) <= bytes_max + largest


def test_next_batch_of_large_and_small_events_starves_neither() -> None:
    """An event above its shard's share is read when its turn comes."""
    planning = planner(bytes_max=1_000)
    positions = {shard: ShardOffset("id", 1, 1) for shard in (A, B)}
    for _ in range(4):
        positions = planning.next_batch(positions, {A: 1_000_000, B: 100}, {A: 1.0, B: 5_000.0})
    assert positions[A].to_sequence > 1_000
    assert positions[B].to_sequence == 3


def test_is_held_until_there_are_enough() -> None:
    """Few events wait for others up to the delay, which starts over for each batch."""
    planning = planner(events_min=10, delay_seconds_max=5.0)
    assert not planning.is_held(0, now=0.0)
    assert planning.is_held(9, now=100.0)
    assert planning.is_held(9, now=104.9)
    assert not planning.is_held(9, now=105.0)
    assert planning.is_held(3, now=106.0)
    assert not planning.is_held(10, now=107.0)
    assert planning.is_held(9, now=111.5)


def test_unlimited_batch_has_no_limit() -> None:
    """If Spark passes no limit, all events are read."""
    batch = planner(events_max=1).unlimited_batch(POSITIONS, {A: 15, B: 8, C: 1})
    assert [batch[shard].event_count for shard in (A, B, C)] == [10, 1, 0]


AVAILABLE = st.dictionaries(st.integers(0, 20), st.integers(0, 1_000), max_size=12)


@given(AVAILABLE, st.integers(0, 3_000), st.integers(0, 100))
def test_fair_shares_sum_up_to_the_limit(available: dict[int, int], limit: int, turn: int) -> None:
    """The shares sum up to the limit or to everything available, and none exceeds what its key has."""
    given_out = fair_shares(available, limit, turn)
    assert sum(given_out.values()) == min(limit, sum(available.values()))
    assert all(0 <= given_out[key] <= available[key] for key in available)


@given(AVAILABLE, st.integers(0, 3_000), st.integers(0, 100))
def test_fair_shares_are_even(available: dict[int, int], limit: int, turn: int) -> None:
    """The shares of keys with more available differ by at most one."""
    given_out = fair_shares(available, limit, turn)
    least = min((given_out[key] for key in available if given_out[key] < available[key]), default=0)
    hungry = any(given_out[key] < available[key] for key in available)
    assert not hungry or max(given_out.values()) <= least + 1


@given(st.integers(1, 12), st.integers(1, 30), st.data())
def test_fair_shares_starve_no_key(count: int, limit: int, data: st.DataObject) -> None:
    """Each key receives a share within as many turns as there are keys."""
    first_turn = data.draw(st.integers(0, 50))
    received = 0
    for turn in range(first_turn, first_turn + count):
        others = {key: data.draw(st.integers(0, 100)) for key in range(1, count)}
        received += fair_shares({0: 1} | others, limit, turn)[0]
    assert received > 0
