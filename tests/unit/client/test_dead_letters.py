from dataclasses import replace
from typing import cast

import pytest

from millrace.dead_letters import DEAD_LETTER_PREFIX, DeadLetterField
from millrace_client import Event, Transaction
from millrace_client.dead_letters import DeadLetter, LetterSelection, letter_of
from millrace_client.dead_letters.parked_events import LeaseKeeper

TOLD = {
    "reason": "No Such Customer",
    "time": "2026-01-02T03:04:05.678+00:00",
    "sink": "web",
    "channel": "orders",
    "sequence": "17",
    "deliveries": "5",
}
EVENT = Event(b"body", {"host": "a", **{DEAD_LETTER_PREFIX + key: value for key, value in TOLD.items()}}, sequence=3)


class Leased:
    lease_seconds = 30.0
    renewals = 0

    def renew(self) -> None:
        self.renewals += 1


def letter_with(**reported: str) -> DeadLetter:
    return DeadLetter(replace(EVENT, headers={DEAD_LETTER_PREFIX + key: value for key, value in reported.items()}))


def test_letter_of_an_event_that_a_sink_rejected_tells_all() -> None:
    """The headers are converted to the types of the fields."""
    letter = letter_of(EVENT)
    assert letter is not None
    assert (letter.sequence, letter.origin, letter.origin_sequence, letter.deliveries) == (3, "orders", 17, 5)
    assert (letter.component, letter.reason, letter.time) == ("sinks/web", TOLD["reason"], TOLD["time"])


def test_letter_of_an_event_that_a_source_could_not_store_tells_what_there_is() -> None:
    """The event was in no channel, and no sink has read it."""
    letter = letter_with(reason="ValueError", source="access", step="interceptors[0]")
    assert (letter.component, letter.step) == ("sources/access", "interceptors[0]")
    assert (letter.origin, letter.origin_sequence, letter.deliveries) == ("", None, None)


def test_letter_of_an_ordinary_event_is_none() -> None:
    """Only the headers distinguish a dead letter."""
    assert letter_of(Event(b"body", {"millrace": "x"}, sequence=1)) is None


@pytest.mark.parametrize("text", ["", "-1", "1.5", "many", "9" * 5000, "\u0661"])
def test_numbers_that_are_none_are_left_out(text: str) -> None:
    """Headers may contain anything, which must not raise."""
    assert letter_with(sequence=text).origin_sequence is None


def test_restored_event_has_its_own_headers_or_all() -> None:
    """The headers about the rejection are removed, unless they are wanted; sequences are not sent."""
    letter = DeadLetter(EVENT)
    assert letter.restored() == Event(b"body", {"host": "a"})
    assert letter.restored(keep_headers=True) == Event(b"body", EVENT.headers)


@pytest.mark.parametrize(
    ("choice", "is_chosen"),
    [
        (LetterSelection(), True),
        (LetterSelection(origin="orders"), True),
        (LetterSelection(origin="order"), False),
        (LetterSelection(reason="no such"), True),
        (LetterSelection(reason="none such"), False),
        (LetterSelection(origin="orders", reason="CUSTOMER"), True),
        (LetterSelection(origin="logs", reason="customer"), False),
    ],
)
def test_choice_has_letters_that_fit_all_that_it_says(choice: LetterSelection, is_chosen: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """A channel must match as a whole, a reason in part and in any case."""
    assert choice.includes(DeadLetter(EVENT)) is is_chosen


def test_lease_is_renewed_when_a_third_of_it_has_passed_and_not_before() -> None:
    """A channel may be full for longer than a transaction's lease."""
    times = iter([0.0, 9.9, 10.0, 10.0, 19.9, 20.1, 20.1])
    txn = Leased()
    keeper = LeaseKeeper(cast("Transaction", txn), lambda: next(times))
    renewals = []
    for _ in range(4):
        keeper.renew_if_due()
        renewals.append(txn.renewals)
    assert renewals == [0, 1, 1, 2]


def test_fields_of_headers_have_the_prefix() -> None:
    """The names are fixed, since stored events contain them."""
    assert {field.header for field in DeadLetterField} == {
        f"millrace.dead_letter.{name}"
        for name in ("reason", "time", "sink", "source", "channel", "sequence", "deliveries", "step", "headers")
    }
