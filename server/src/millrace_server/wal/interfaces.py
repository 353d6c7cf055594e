"""What a channel needs of its log and its checkpoints, whatever stores them."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from millrace_server.wal.checkpoints import Checkpoint
from millrace_server.wal.log import LogRecord
from millrace_server.wal.payload_codec import Payload
from millrace_server.wal.records import Done, Location, LogPosition, Mergeable, Record


class Log(Protocol):
    """A channel's log, replayed and started; `WriteAheadLog` says in full what its methods promise."""

    @property
    def first_segment_id(self) -> int:
        """The oldest segment's id; 0 if there is none."""

    @property
    def newest_segment_id(self) -> int:
        """The id of the segment that is written to; 0 if there is none."""

    @property
    def segment_count(self) -> int:
        """Number of segments."""

    @property
    def end(self) -> LogPosition:
        """The log's end as replay found it."""

    def byte_count(self) -> int:
        """Returns the log's size."""

    def byte_count_behind(self, start: LogPosition | None) -> int:
        """Returns about how many bytes a replay from `start` reads."""

    def replay(
        self, start: LogPosition | None = None, *, first_needed: int = 0, read_only: bool = False
    ) -> Iterator[LogRecord]:
        """Yields the log's records in order; raises LogCorruptError where one is missing or damaged."""

    def compress(self, *, compresses: bool) -> None:
        """Turns compression on or off for later submissions."""

    def submit(
        self,
        records: Sequence[Record],
        *,
        needs_sync: bool,
        begins_segment: bool = False,
        done: Done,
        mergeable: Mergeable | None = None,
    ) -> int:
        """Appends records after those submitted before, all of them or none; `done` is called in this order."""

    def resume(self) -> None:
        """Accepts submissions again after one ended with LogFullError."""

    def read_run(self, locations: Sequence[Location], *, cached_only: bool = False) -> list[Payload] | None:
        """Reads records' payloads; returns None with `cached_only` if that would block."""

    def read_puts(self, location: Location, *, cached_only: bool = False) -> list[Payload] | None:
        """Reads the payloads of all PUT records in a place; otherwise like `read_run`."""

    def remove_before(self, segment_id: int) -> int:
        """Removes the segments before one and returns their number."""

    def close(self) -> None:
        """Writes what was submitted and closes the log."""


class Checkpoints(Protocol):
    """The checkpoints of a channel; `CheckpointFiles` says in full what its methods promise."""

    def write(self, checkpoint: Checkpoint) -> None:
        """Replaces the newest checkpoint durably."""

    def remove_previous(self) -> bool:
        """Removes the previous checkpoint for space; returns False where the newest does not suffice."""

    def valid_checkpoints(self) -> Iterator[Checkpoint]:
        """Yields the checkpoints that exist and are valid, the newest first."""
