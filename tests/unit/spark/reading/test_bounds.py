from dataclasses import replace

import pytest

from millrace_spark import ClaimedRange, MillraceSparkError, OptionError
from millrace_spark.reading.bounds import Bounds, cut_ranges, parse_bounds
from millrace_spark.reading.options import parse_batch_options
from millrace_spark.shards import Shard

ORDERS_A, ORDERS_B, AUDIT = Shard("orders", "a:1"), Shard("orders", "b:2"), Shard("audit", "a:1")


@pytest.mark.parametrize(
    ("text", "sequences"),
    [
        ("earliest", (5, 5, 5)),
        ("Latest", (9, 9, 9)),
        ('{"orders": 7}', (7, 7, 5)),
        ('{"orders": 7, "orders@b:2": "latest", "audit": 8}', (7, 9, 8)),
        ("{}", (5, 5, 5)),
    ],
)
def test_sequence_is_that_of_shard_then_of_channel(text: str, sequences: tuple[int, ...]) -> None:
    """The bound of a shard overrides that of its channel, and the default is the oldest event."""
    bounds = parse_bounds(text)
    assert tuple(bounds.sequence(shard, 5, 9) for shard in (ORDERS_A, ORDERS_B, AUDIT)) == sequences


def test_check_names_names_what_is_not_read() -> None:
    """A misspelt name is an error."""
    Bounds("earliest", {"orders": 7, "orders@b:2": 8}).check_names("startingSequences", [ORDERS_A, ORDERS_B])
    with pytest.raises(OptionError, match=r"names orders@c:3, which is not read; these are read: orders, orders@a:1$"):
        Bounds("earliest", {"orders@c:3": 7}).check_names("startingSequences", [ORDERS_A])


def test_bounds_since_a_time_are_where_events_were_found() -> None:
    """An event that came after the claim, or none, is the end of what can be read; other channels keep their own."""
    found = {ORDERS_A: 7, ORDERS_B: 9, AUDIT: 12}
    bounds = Bounds.since(found, dict.fromkeys(found, 9))
    assert [bounds.sequence(shard, 5, 9) for shard in found] == [7, 9, 9]
    assert [bounds.is_latest(shard) for shard in found] == [False, True, True]


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


def cut(**given: str) -> tuple[ClaimedRange, ...]:
    options = parse_batch_options({"endpoints": "a:1", "channels": "orders"} | given, "somebody")
    assert isinstance(options.starting, Bounds)
    return cut_ranges([CLAIMED], options.starting, options.ending, fail_on_data_loss=options.tasks.fail_on_data_loss)


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
def test_cut_ranges_is_exact(given: dict[str, str], expected: tuple[int, int]) -> None:
    """The start is inclusive, and the end exclusive."""
    [claimed] = cut(**given)
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
            "option endingSequences: is 14 for orders@a:1, before its start, 15; swap them, or remove one",
        ),
        (
            {"endingSequences": '{"order": 14}'},
            "option endingSequences: names order, which is not read; these are read:",
        ),
    ],
)
def test_cut_ranges_beyond_the_end_is_refused(given: dict[str, str], sentence: str) -> None:
    """A bound beyond the end is an error instead of fewer rows."""
    with pytest.raises(MillraceSparkError) as refused:
        cut(**given)
    assert sentence in str(refused.value)
