import pytest

import millrace_client as millrace
from millrace_spark import MillraceSparkError, OptionError
from millrace_spark.lookup import find_shards
from tests.unit.spark.fake_mill import FakeMill


@pytest.fixture
def mill() -> FakeMill:
    fake = FakeMill()
    for endpoint, name in (("a:1", "orders"), ("a:1", "audit-1"), ("b:1", "audit-1"), ("b:1", "audit-2")):
        fake.make(endpoint, name)
    return fake


def clients(mill: FakeMill, *endpoints: str) -> dict[str, millrace.Client]:
    return {endpoint: mill.connect(endpoint) for endpoint in endpoints}  # type: ignore[misc] # fakes of them


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (["orders"], ["orders@a:1"]),
        (["audit-*"], ["audit-1@a:1", "audit-1@b:1", "audit-2@b:1"]),
        (["orders", "*-2"], ["audit-2@b:1", "orders@a:1"]),
        (["audit-1", "audit-*"], ["audit-1@a:1", "audit-1@b:1", "audit-2@b:1"]),
    ],
)
def test_find_shards_finds_each_once_wherever_it_is(mill: FakeMill, wanted: list[str], found: list[str]) -> None:
    """A channel need not be on all servers."""
    assert [str(shard) for shard in find_shards(clients(mill, "a:1", "b:1"), wanted)] == found


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (
            ["orders", "ordres"],
            "channel ordres: there is none of that name on a:1, b:1, which have audit-1, audit-2, orders",
        ),
        (["x-*"], r"channel x-\*: the pattern fits no channel on a:1, b:1, which have audit-1, audit-2, orders"),
    ],
)
def test_find_shards_of_what_is_not_there_says_what_is(mill: FakeMill, wanted: list[str], sentence: str) -> None:
    """So that a typing error is seen at once."""
    with pytest.raises(MillraceSparkError, match=f"^{sentence}$"):
        find_shards(clients(mill, "a:1", "b:1"), wanted)


def test_find_shards_where_a_server_is_away_says_so(mill: FakeMill) -> None:
    """Nobody can tell what it has."""
    mill.away.add("b:1")
    with pytest.raises(MillraceSparkError, match=r"channel audit-\* at b:1: cannot reach b:1"):
        find_shards(clients(mill, "a:1", "b:1"), ["audit-*"])


def test_find_shards_of_a_server_under_two_names_is_refused(mill: FakeMill) -> None:
    """Its events would be read twice, and of what is written to both names a half be taken for a repeat."""
    mill.channels["localhost:1", "orders"] = mill.channels["a:1", "orders"]
    with pytest.raises(
        OptionError, match=r"^option endpoints: a:1 and localhost:1 are the same server, since channel "
    ):
        find_shards(clients(mill, "a:1", "b:1", "localhost:1"), ["orders"])


def test_find_shards_by_name_on_one_server_asks_nobody(mill: FakeMill) -> None:
    """Claiming tells as well whether they are there."""
    mill.away.add("a:1")
    assert [str(shard) for shard in find_shards(clients(mill, "a:1"), ["orders", "nowhere"])] == [
        "orders@a:1",
        "nowhere@a:1",
    ]
