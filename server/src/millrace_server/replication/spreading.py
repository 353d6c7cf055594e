"""How servers that share channels share them evenly: each computes the same plan from the entries that all see."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from millrace_server.replication.owner_entries import Holder, Member


class Move(NamedTuple):
    """A channel that goes from one session to another."""

    channel: str
    source: str
    target: str


def counts_of(owners: Mapping[str, Holder], members: Mapping[str, Member]) -> Counter[str]:
    """Returns how many channels each living session owns or is to own, without those that an operator has moved."""
    counts = Counter(dict.fromkeys(members, 0))
    for holder in owners.values():
        session = holder.session or holder.reserved_for
        if session in members and not holder.is_pinned:
            counts[session] += 1
    return counts


def is_below_share(session: str, owners: Mapping[str, Holder], members: Mapping[str, Member]) -> bool:
    """Whether a session owns fewer channels than it would if all servers with its channels had the same number."""
    pinned = {channel for channel, holder in owners.items() if holder.is_pinned}
    channels = set(members[session].channels) - pinned
    sharing_count = sum(not channels.isdisjoint(member.channels) for member in members.values())
    return counts_of(owners, members)[session] * sharing_count < len(channels)


def planned_moves(owners: Mapping[str, Holder], members: Mapping[str, Member]) -> list[Move]:
    """Returns the moves after which no session owns two channels more than another that would take one of them."""
    counts = counts_of(owners, members)
    owned: dict[str, list[str]] = {session: [] for session in members}
    for channel, holder in sorted(owners.items()):
        if holder.session in members and not holder.is_pinned:
            owned[holder.session].append(channel)
    moves = []
    while (move := _next_move(counts, owned, members)) is not None:
        moves.append(move)
        owned[move.source].remove(move.channel)
        counts[move.source] -= 1
        counts[move.target] += 1
    return moves


def _next_move(counts: Mapping[str, int], owned: Mapping[str, list[str]], members: Mapping[str, Member]) -> Move | None:
    by_count = sorted(members, key=lambda session: (counts[session], session))
    for target in by_count:
        wanted = members[target].channels
        for source in reversed(by_count):
            if counts[source] < counts[target] + 2:
                break
            for channel in owned[source]:
                if channel in wanted:
                    return Move(channel, source, target)
    return None
