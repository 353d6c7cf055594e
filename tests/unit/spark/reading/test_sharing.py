from hypothesis import given
from hypothesis import strategies as st

from millrace_spark.reading.sharing import shares

AVAILABLE = st.dictionaries(st.integers(0, 20), st.integers(0, 1_000), max_size=12)


@given(AVAILABLE, st.integers(0, 3_000), st.integers(0, 100))
def test_shares_give_the_limit_to_the_event(available: dict[int, int], limit: int, turn: int) -> None:
    """All there is, or exactly the limit; nobody gives what it has not."""
    given_out = shares(available, limit, turn)
    assert sum(given_out.values()) == min(limit, sum(available.values()))
    assert all(0 <= given_out[key] <= available[key] for key in available)


@given(AVAILABLE, st.integers(0, 3_000), st.integers(0, 100))
def test_shares_are_even_among_those_who_have_more(available: dict[int, int], limit: int, turn: int) -> None:
    """Whoever could give more gives at least as much, but for one, as anybody else does."""
    given_out = shares(available, limit, turn)
    least = min((given_out[key] for key in available if given_out[key] < available[key]), default=0)
    hungry = any(given_out[key] < available[key] for key in available)
    assert not hungry or max(given_out.values()) <= least + 1


@given(st.integers(1, 12), st.integers(1, 30), st.data())
def test_shares_starve_nobody(count: int, limit: int, data: st.DataObject) -> None:
    """One who always has something comes in turn within as many turns as there are, whatever the others have."""
    first_turn = data.draw(st.integers(0, 50))
    received = 0
    for turn in range(first_turn, first_turn + count):
        others = {key: data.draw(st.integers(0, 100)) for key in range(1, count)}
        received += shares({0: 1} | others, limit, turn)[0]
    assert received > 0
