"""How channels are spread over servers."""

from collections import Counter

import pytest

from millrace_server.replication.owner_entries import Holder, Member
from millrace_server.replication.spreading import is_below_share, planned_moves


def _members(*sessions: str, channels: int = 6) -> dict[str, Member]:
    return {one: Member(channels=[f"c{number}" for number in range(channels)]) for one in sessions}


def _owners(sessions: str) -> dict[str, Holder]:
    return {f"c{number}": Holder(session) for number, session in enumerate(sessions)}


@pytest.mark.parametrize(
    ("sessions", "before", "after"),
    [
        ("ab", "aaaaaa", [3, 3]),
        ("abc", "aaaaaa", [2, 2, 2]),
        ("abc", "aaabbb", [2, 2, 2]),
        ("abcd", "aaabbb", [1, 1, 2, 2]),
        ("ab", "aaabbb", [3, 3]),
        ("ab", "aaab", [2, 2]),
        ("ab", "aab", [1, 2]),
        ("a", "aaa", [3]),
        # A server that has ended owns nothing that could be moved.
        ("ab", "xxxaaa", [1, 2]),
    ],
)
def test_planned_moves_leave_all_servers_with_the_same_number(sessions: str, before: str, after: list[int]) -> None:
    """Or with one more or less; no move is in vain."""
    owners, members = _owners(before), _members(*sessions)
    counts = Counter(holder.session for holder in owners.values() if holder.session in members)
    counts.update(dict.fromkeys(members, 0))
    moves = planned_moves(owners, members)
    for move in moves:
        assert owners[move.channel].session == move.source
        counts[move.source] -= 1
        counts[move.target] += 1
    assert sorted(counts.values()) == after
    assert planned_moves(owners | {move.channel: Holder(move.target) for move in moves}, members) == []


def test_planned_moves_keep_what_an_operator_moved_or_the_target_does_not_have() -> None:
    """Such channels do not count."""
    owners = _owners("aaaa") | {"c0": Holder("a", is_pinned=True), "c1": Holder("a", is_pinned=True)}
    members = {"a": Member(channels=["c0", "c1", "c2", "c3"]), "b": Member(channels=["c0", "c3"])}
    assert [move.channel for move in planned_moves(owners, members)] == ["c3"]
    assert planned_moves(owners, members | {"b": Member(channels=["c0"])}) == []


def test_planned_moves_count_what_is_on_its_way() -> None:
    """A channel that is left to a server is not made up for by another one."""
    owners = _owners("aa") | {"c3": Holder(reserved_for="b")}
    assert planned_moves(owners, _members("a", "b")) == []


def test_server_below_its_share_wants_more() -> None:
    """The share of three among two is two for one of them, whichever comes first."""
    members = _members("a", "b", channels=3)
    assert is_below_share("a", {}, members)
    assert is_below_share("a", _owners("a"), members)
    assert not is_below_share("a", _owners("aa"), members)
    assert is_below_share("b", _owners("aa"), members)
    assert not is_below_share("a", _owners("aab"), members)


def test_server_with_other_channels_has_no_share() -> None:
    """Only those count that share channels, and what an operator has moved does not."""
    members = {"a": Member(channels=["c0", "c1"]), "b": Member(channels=["x", "y", "z"])}
    assert is_below_share("a", {"c0": Holder("a")}, members)
    assert not is_below_share("a", {"c0": Holder("a"), "c1": Holder("a", is_pinned=True)}, members)
