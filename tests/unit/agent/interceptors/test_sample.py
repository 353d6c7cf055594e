from collections.abc import Sequence

import pytest

from millrace_server.agent.events import EventTable
from tests.source_writers import table_of
from tests.unit.agent.interceptors.configured_interceptors import intercepted, interceptor, problem_with

COUNT = 20_000


def bodies_of(count: int = COUNT) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def kept(table: EventTable, **config: object) -> Sequence[bytes]:
    return interceptor(type="sample", **config).intercept(table).bodies


@pytest.mark.parametrize("settings", [{"seed": 1}, {"header": "key"}, {"header": "key", "seed": 7}])
def test_sample_keeps_the_fraction(settings: dict[str, object]) -> None:
    """A tenth of many events, or of many keys, is a tenth up to what chance explains."""
    table = EventTable(bodies_of(), {"key": [str(number) for number in range(COUNT)]})
    assert 1_800 < len(kept(table, fraction=0.1, **settings)) < 2_200
    assert kept(table, fraction=0, **settings) == []
    assert kept(table, fraction=1, **settings) == table.bodies


def test_sample_by_key_keeps_all_events_of_a_key_or_none() -> None:
    """The choice depends on nothing but the key: not on the batch, the order or the process."""
    keys = [str(number % 50) for number in range(500)]
    rows = intercepted(EventTable(bodies_of(500), {"key": keys}), type="sample", fraction=0.3, header="key")
    chosen = {headers["key"] for headers, _ in rows}
    assert len(rows) == 10 * len(chosen)
    for key in map(str, range(50)):
        assert bool(kept(table_of(b"x", key=key), fraction=0.3, header="key")) is (key in chosen)


def test_sample_by_key_chooses_the_same_in_every_release() -> None:
    """Servers of different releases must keep the same keys."""
    table = table_of(*bodies_of(12), key=[str(number) for number in range(12)])
    assert kept(table, fraction=0.5, header="key") == [b"2", b"4", b"6"]


def test_sample_by_key_takes_the_body_of_an_event_without_the_header() -> None:
    """Such events are sampled like the others, and equal ones alike."""
    bodies = [b"%d" % (number % 10) for number in range(100)]
    chosen = kept(EventTable(bodies, {"key": [None] * 100}), fraction=0.5, header="key")
    assert chosen == kept(EventTable(bodies), fraction=0.5, header="key")
    assert len(chosen) == 10 * len(set(chosen))
    assert 0 < len(set(chosen)) < 10


def test_sample_by_key_with_another_seed_chooses_independently() -> None:
    """Of what one sample keeps, one with another seed keeps its own fraction."""
    table = EventTable(bodies_of(), {"key": [str(number) for number in range(COUNT)]})
    first = interceptor(type="sample", fraction=0.5, header="key", seed=1).intercept(table)
    assert 0.45 < len(kept(first, fraction=0.5, header="key", seed=2)) / first.count < 0.55
    assert kept(first, fraction=0.5, header="key", seed=1) == first.bodies


def test_sample_at_random_repeats_its_choices_with_a_seed_only() -> None:
    """Without a seed each start chooses differently."""
    table = EventTable(bodies_of(1_000))
    assert kept(table, fraction=0.5, seed=3) == kept(table, fraction=0.5, seed=3)
    assert kept(table, fraction=0.5) != kept(table, fraction=0.5)


def test_sample_of_a_bad_fraction_is_refused() -> None:
    """A fraction is no percentage."""
    assert problem_with(type="sample", fraction=10) == "fraction: Input should be less than or equal to 1"
