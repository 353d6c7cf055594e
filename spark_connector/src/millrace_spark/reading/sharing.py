"""Shares of a limit, so that no shard starves."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

Key = TypeVar("Key")


def rotated(keys: Sequence[Key], turn: int) -> list[Key]:
    """The keys from another one on each turn, so that each comes first once in as many turns as there are keys."""
    start = turn % len(keys) if keys else 0
    return [*keys[start:], *keys[:start]]


def shares(available: Mapping[Key, int], limit: int, turn: int) -> dict[Key, int]:
    """Shares a limit among those who have something: evenly, and what some do not need among the others.

    Args:
        available: What each has.
        limit: How much all may give together.
        turn: Who comes first where it does not come out even. Raised by 1 each time, it has each give something at
            least once in as many turns as there are keys, whatever the others have.

    Returns:
        For each what it gives; together `limit`, or all where there is less. Two that could give more differ by 1 at
        most.
    """
    given = dict.fromkeys(available, 0)
    # Those who have least first, so that what they leave of an even share is known to the others.
    hungry = sorted((key for key in available if available[key] > 0), key=lambda key: available[key])
    satisfied_count = 0
    remaining = limit
    for key in hungry:
        if available[key] > remaining // (len(hungry) - satisfied_count):
            break
        given[key] = available[key]
        remaining -= available[key]
        satisfied_count += 1
    unsatisfied = set(hungry[satisfied_count:])
    if unsatisfied:
        share, extra = divmod(remaining, len(unsatisfied))
        in_turn = [key for key in rotated(list(available), turn) if key in unsatisfied]
        for position, key in enumerate(in_turn):
            given[key] = share + (position < extra)
    return given
