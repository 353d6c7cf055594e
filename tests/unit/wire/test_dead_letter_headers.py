"""The headers of dead letters, and what they keep of the event's own."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.columns import HEADER_KEYS_MAX
from millrace.dead_letters import DEAD_LETTER_PREFIX, DeadLetterField, letter_headers, own_headers

FIELDS = {DeadLetterField.REASON: "refused", DeadLetterField.CHANNEL: "orders", DeadLetterField.SEQUENCE: "7"}
OTHER_FIELDS = {DeadLetterField.REASON: "again", DeadLetterField.CHANNEL: "rejected", DeadLetterField.SINK: "alert"}
HEADERS = DeadLetterField.HEADERS.header


def many(count: int) -> dict[str, str]:
    return {f"key-{number}": f"value {number}" for number in range(count)}


@pytest.mark.parametrize(("count", "hidden_count"), [(0, 0), (253, 0), (254, 2), (256, 4)])
def test_letter_headers_hide_only_what_has_no_space(count: int, hidden_count: int) -> None:
    """All others stay as they are, so that a consumer of dead letters finds them."""
    letter = letter_headers(many(count), FIELDS)
    assert len(letter) <= HEADER_KEYS_MAX
    assert len(json.loads(letter.get(HEADERS, "{}"))) == hidden_count
    assert letter.items() >= {field.header: value for field, value in FIELDS.items()}.items()
    assert own_headers(letter) == many(count)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))
    ),
    st.integers(0, HEADER_KEYS_MAX),
)
def test_own_headers_of_a_letter_are_those_of_its_event(some: dict[str, str], count: int) -> None:
    """Whatever they are, also about an earlier rejection."""
    own = dict(list((many(count) | some).items())[-HEADER_KEYS_MAX:])
    letter = letter_headers(own, FIELDS)
    assert own_headers(letter) == own
    again = letter_headers(letter, OTHER_FIELDS)
    assert own_headers(again) == letter
    assert max(len(letter), len(again)) <= HEADER_KEYS_MAX


@pytest.mark.parametrize("count", [1, HEADER_KEYS_MAX])
def test_letter_of_a_letter_keeps_the_first_rejection_and_does_not_grow(count: int) -> None:
    """Two channels may exchange their dead letters for ever."""
    first = letter_headers(many(count), FIELDS)
    second = letter_headers(first, OTHER_FIELDS)
    later = second
    for _ in range(20):
        later = letter_headers(later, OTHER_FIELDS)
    assert later == second
    assert later[DeadLetterField.CHANNEL.header] == "rejected"
    assert own_headers(later) == first
    assert own_headers(own_headers(later)) == many(count)


@pytest.mark.parametrize(
    "forged",
    ["", "{", "[]", "1", '{"a": 1}', '{"a": ["b"]}', "[" * 100_000, json.dumps(many(HEADER_KEYS_MAX))],
    ids=["empty", "broken", "list", "number", "of numbers", "of lists", "deep", "too many"],
)
def test_own_headers_of_a_forged_letter_are_those_outside_it(forged: str) -> None:
    """Any client can write such headers; what a server has not written is ignored."""
    assert own_headers({"host": "a", HEADERS: forged, DEAD_LETTER_PREFIX + "x": "y"}) == {"host": "a"}
