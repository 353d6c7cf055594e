"""The value types of the log: places in it, and the records that callers submit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from millrace_server.wal.disk import Piece
from millrace_server.wal.format import RECORD_HEAD_BYTES, Kind


# A submission fails in one of two ways. After a failure it is unknown which of its records are in the log; after a
# refusal it is certain that none are.
class LogFailedError(Exception):
    """Raised when a write or sync failed, now or before. The log accepts nothing until replay reopens it."""


class LogTakenOverError(LogFailedError):
    """Raised when another process has appended to the log since, or may do so."""


class LogFullError(Exception):
    """Raised when the disk had no space. None of the submission's records is in the log, and the log stays usable."""


# A NamedTuple, not a dataclass: one is created for each record, and creating a tuple is much faster.
class Location(NamedTuple):
    """Where a record lies."""

    segment_id: int
    position: int
    """Byte offset of its head in the segment."""
    payload_length: int


class LogPosition(NamedTuple):
    """A position between two records."""

    segment_id: int
    position: int
    """Byte offset in the segment."""
    lsn: int
    """LSN of the next record."""


# In pieces, so that a payload goes from the request to the disk without a copy.
Record = tuple[Kind, Sequence[Piece]]
"""Its kind, and its payload in pieces."""

Done = Callable[["Submission", Exception | None], None]


class Mergeable(Protocol):
    """What a submission writes, automatically or merged with its neighbours."""

    def merge(self, neighbours: Sequence[Any]) -> Iterable[tuple[int, Sequence[Record]]]:
        """Yields the records that store the first neighbours, the next ones and so on, each time with their number.

        Called on the writer's thread. The first of the neighbours, and perhaps the only one, is this one; all are of
        its type.
        """


@dataclass(slots=True, eq=False)
class Submission:
    """Records that are appended together: all of them, or none if the submission is refused.

    A crash may leave a prefix of them, so the record that gives the others effect comes last.
    """

    records: Sequence[Record]
    needs_sync: bool
    begins_segment: bool
    # Set by the log, not by the caller: it is the number of `resume` calls so far.
    generation: int
    """A refusal extends to all later submissions of the same generation; see `LogWriter`."""
    done: Done
    """Called once the records are written, and synced if `needs_sync`; never on the writer's thread."""
    mergeable: Mergeable | None = None
    """Replaces `records`, which then only tell how much space it takes, when the submission is written."""
    # Written by the writer's thread before it schedules the callback, read by the caller afterwards: no lock is needed.
    locations: Sequence[Location] = ()
    """Where the records lie; submissions that were merged have the same. Set by the writer."""
    end: LogPosition | None = None
    """The log's end behind these records. Set by the writer."""
    byte_count: int = field(init=False)
    """Size of the records in a segment before their payloads are encoded."""

    def __post_init__(self) -> None:
        # A list comprehension, not a generator: this runs once for each commit, on the event loop.
        self.byte_count = sum([RECORD_HEAD_BYTES + sum(map(len, pieces)) for _, pieces in self.records])
