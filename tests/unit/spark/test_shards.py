import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace_spark.shards import Shard, is_meant, parse_channels


@given(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True), st.sampled_from(["a:1", "[::1]:7070", "h@x:1"]))
def test_parse_of_a_shard_s_name_gives_it_back(channel: str, endpoint: str) -> None:
    """Checkpoints contain these names."""
    assert Shard.parse(str(Shard(channel, endpoint))) == Shard(channel, endpoint)


@pytest.mark.parametrize("name", ["", "orders", "@a:1", "orders@"])
def test_parse_of_another_name_is_refused(name: str) -> None:
    """Other names are invalid."""
    with pytest.raises(ValueError, match="is not channel@host:port"):
        Shard.parse(name)


def test_is_meant_knows_names_and_patterns() -> None:
    """A name matches itself, and a pattern all channels that it describes."""
    wanted = parse_channels("orders, audit-*,log-[12]")
    meant = [
        name
        for name in ("orders", "orders-2", "audit-", "audit-eu", "audit", "log-1", "log-3")
        if is_meant(name, wanted)
    ]
    assert meant == ["orders", "audit-", "audit-eu", "log-1"]
