from dataclasses import replace

import pytest

from millrace_spark import ClaimedRange, MillraceSparkError
from millrace_spark.reading.batch_bounds import bounded
from millrace_spark.reading.options import BatchOptions, parse_batch_options

CLAIMED = ClaimedRange(
    endpoint="a:1",
    channel="orders",
    reader_id="r",
    epoch=1,
    first_sequence=10,
    next_sequence=20,
    lease_seconds=5.0,
    channel_id="id",
    is_held=False,
)


def options(**given: str) -> BatchOptions:
    return parse_batch_options({"endpoints": "a:1", "channels": "orders"} | given, "somebody")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (10, 20)),
        ({"startingSequences": '{"orders": 12}', "endingSequences": '{"orders@a:1": 15}'}, (12, 15)),
        ({"startingSequences": "latest"}, (20, 20)),
        ({"endingSequences": '{"orders": 10}'}, (10, 10)),
        ({"startingSequences": '{"orders": 5}', "failOnDataLoss": "false"}, (10, 20)),
        (
            {"startingSequences": '{"orders": 5}', "endingSequences": '{"orders": 7}', "failOnDataLoss": "false"},
            (10, 10),
        ),
    ],
)
def test_bounded_gives_the_range_to_the_event(given: dict[str, str], expected: tuple[int, int]) -> None:
    """From the start, included, to the end, excluded."""
    [claimed] = bounded([CLAIMED], options(**given))
    assert (claimed.first_sequence, claimed.next_sequence) == expected
    assert claimed == replace(CLAIMED, first_sequence=expected[0], next_sequence=expected[1])


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"startingSequences": '{"orders": 9}'},
            "events 9 to 9 have been consumed; start at 10, or set the option failOn",
        ),
        (
            {"startingSequences": '{"orders": 21}'},
            "option startingSequences: is 21, but channel orders@a:1 holds 10 to 19",
        ),
        ({"endingSequences": '{"orders": 21}'}, "option endingSequences: is 21, but channel orders@a:1 holds 10 to 19"),
        (
            {"startingSequences": '{"orders": 15}', "endingSequences": '{"orders": 14}'},
            "option endingSequences: is 14 for orders@a:1, before its start, 15; swap them, or leave one out",
        ),
        (
            {"endingSequences": '{"order": 14}'},
            "option endingSequences: names order, which is not read; what is read is",
        ),
    ],
)
def test_bounded_beyond_what_is_there_is_refused(given: dict[str, str], sentence: str) -> None:
    """Never fewer rows than were asked for without a word."""
    with pytest.raises(MillraceSparkError) as refused:
        bounded([CLAIMED], options(**given))
    assert sentence in str(refused.value)
