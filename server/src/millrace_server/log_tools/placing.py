"""Infers which sequences the events of PUT records have whose COMMIT is lost."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from millrace_server.storage.v1 import records_pb2 as pb
from millrace_server.wal.log import LogRecord


@dataclass(slots=True)
class Group:
    """Adjacent PUT and TAKE records, and what is missing after them: first of all, perhaps, their COMMIT."""

    missing: range
    """LSNs."""
    puts: list[tuple[LogRecord, int]] = field(default_factory=list)
    """With the number of their events."""
    takes: list[pb.Take] = field(default_factory=list)

    @property
    def event_count(self) -> int:
        return sum(count for _, count in self.puts)

    @property
    def is_commit_alone(self) -> bool:
        """Whether nothing but the COMMIT of these records can be missing."""
        return len(self.missing) == 1


class Step(NamedTuple):
    """From the sequence after the records before some groups to that of the record after them."""

    first: int
    end: int
    is_front_known: bool
    """Whether the first group may begin with `first`."""
    is_end_known: bool
    """Whether `end` is not only the highest that it may be."""
    may_have_gaps: bool
    """Whether a repair may have left gaps of which only lost records knew."""


class Placement(NamedTuple):
    """Where groups are, as far as that is certain."""

    places: Sequence[tuple[Group, int]]
    """With the first sequence of each."""
    open_first: int
    """The sequence after the groups that were placed from the front."""
    open_end: int
    """The first sequence of those that were placed from the end."""


def placed(groups: Sequence[Group], step: Step) -> Placement:
    """Places groups in order, from the front and from the end, up to the first that may be elsewhere."""
    places: list[tuple[Group, int]] = []
    unknown, open_first, open_end = list(groups), step.first, step.end
    is_explained = are_commits_alone(groups) and event_count(groups) == step.end - step.first
    places_one = step.may_have_gaps and not is_explained
    # From the front, sequences are known up to the first group after which more than a COMMIT may be missing.
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
    """Whether nothing but the COMMIT of each group can be missing."""
    return all(group.is_commit_alone for group in groups)


def event_count(groups: Iterable[Group]) -> int:
    """Returns the events of all groups."""
    return sum(group.event_count for group in groups)
