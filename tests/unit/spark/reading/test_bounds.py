import pytest

from millrace_spark import OptionError
from millrace_spark.reading.bounds import Bounds, parse_bounds
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
    """A shard's own bound wins over its channel's; what is not named begins at the oldest."""
    bounds = parse_bounds(text)
    assert tuple(bounds.sequence(shard, 5, 9) for shard in (ORDERS_A, ORDERS_B, AUDIT)) == sequences


def test_refuse_strangers_names_what_is_not_read() -> None:
    """A typing error in a name would otherwise begin somewhere else in silence."""
    Bounds("earliest", {"orders": 7, "orders@b:2": 8}).refuse_strangers("startingSequences", [ORDERS_A, ORDERS_B])
    with pytest.raises(OptionError, match=r"names orders@c:3, which is not read; what is read is orders, orders@a:1$"):
        Bounds("earliest", {"orders@c:3": 7}).refuse_strangers("startingSequences", [ORDERS_A])
