import pytest

from millrace_client.consuming import delivery_buffer
from millrace_client.consuming.delivery_buffer import AttemptCounter


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
