"""Infers the sequences of events in PUT records whose COMMIT is lost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.log import LogRecord


@dataclass(slots=True)
class Group:
    """Adjacent PUT and TAKE records, and the missing records after them, the first of which may be their COMMIT."""

    missing: range
    """LSNs."""
    puts: list[tuple[LogRecord, int]] = field(default_factory=list)
    """Each with the number of its events."""
    takes: list[pb.Take] = field(default_factory=list)

    @property
    def event_count(self) -> int:
        return sum(count for _, count in self.puts)

    @property
    def is_commit_alone(self) -> bool:
        """Whether only the COMMIT of these records can be missing."""
        return len(self.missing) == 1


class Step(NamedTuple):
    """The sequences between the last record before some groups, and the first one after them."""

    first: int
    end: int
    is_front_known: bool
    """Whether the first group may begin with `first`."""
    is_end_known: bool
    """Whether `end` is exact; otherwise it is an upper bound."""
    may_have_gaps: bool
    """Whether a repair may have left gaps that only lost records stated."""


class Placement(NamedTuple):
    """The sequences of groups, as far as they are certain."""

    sequences: Sequence[tuple[Group, int]]
    """Groups, each with its first sequence."""
    open_first: int
    """The sequence after the groups that were placed from the front."""
    open_end: int
    """The first sequence of those that were placed from the end."""


def placed(groups: Sequence[Group], step: Step) -> Placement:
    """Assigns sequences to groups, from both ends inwards, until those of a group are ambiguous."""
    places: list[tuple[Group, int]] = []
    unknown, open_first, open_end = list(groups), step.first, step.end
    is_explained = are_commits_alone(groups) and event_count(groups) == step.end - step.first
    places_one = step.may_have_gaps and not is_explained
    # From the front, sequences are known up to the first group that may lack more than its COMMIT.
    while step.is_front_known and unknown and open_first + unknown[0].event_count <= step.end:
        group = unknown.pop(0)
        places.append((group, open_first))
        open_first += group.event_count
        if places_one or not group.is_commit_alone:
            break
    while step.is_end_known and unknown and unknown[-1].is_commit_alone:
        first = open_end - unknown[-1].event_count
        if first < open_first:
            break
        places.append((unknown.pop(), first))
        open_end = first
        if places_one:
            break
    return Placement(places, open_first, open_end)


def are_commits_alone(groups: Iterable[Group]) -> bool:
    """Whether only the COMMIT of each group can be missing."""
    return all(group.is_commit_alone for group in groups)


def event_count(groups: Iterable[Group]) -> int:
    """Returns the number of events of all groups."""
    return sum(group.event_count for group in groups)
