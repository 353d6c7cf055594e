"""A single tailed file."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from millrace_server.agent.lines.charsets import BOM_BYTES_MAX
from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.lines.lines import Lines
from millrace_server.agent.lines.splitter import LinesError, LineSplitter
from millrace_server.agent.sources.stored_ranges import Ranges, boundaries_after
from millrace_server.agent.sources.taildir.positions import (
    HEAD_BYTES_MAX,
    TAIL_BYTES_MAX,
    FileKey,
    FilePosition,
    Fingerprint,
    open_file,
)

BLOCK_BYTES = 1024 * 1024
"""The number of bytes that are read from a file before the next file gets its turn."""

FINGERPRINTS_MAX = 32
"""The number of remembered read positions, of which recent ones are closer together."""


class FileReplacedError(Exception):
    """Raised when a file no longer contains what was read from it: it was truncated, rewritten or replaced."""


def _non_empty(lines: Lines) -> list[Lines]:
    return [lines] if lines.end > lines.start else []


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Where to start reading a file.

    Attributes:
        position: The first byte that some channel has not stored.
        boundaries: Later positions that no batch crosses; see `boundaries_after`.
    """

    position: int
    boundaries: Sequence[int] = ()

    @classmethod
    def of(cls, stored: Ranges, saved: int) -> "StartPosition":
        """Returns where to start after a restart.

        The saved position applies to channels that do not know the file: new ones, those in memory, and those that have
        forgotten it.
        """
        # Bytes before the first range were stored by a predecessor of the channel, or skipped.
        position = min((ranges[0][1] + 1 if ranges else saved for ranges in stored), default=saved)
        return cls(position, tuple(boundaries_after(position, stored)))


class TailedFile:
    """One file: its identity, its path, and the position up to which it was read.

    It is used by one thread; only `stored` is set by another one.

    Attributes:
        path: The path under which it was first found.
        found_path: The path under which a pattern last found it; None if no pattern matches it any more.
        place: Its current path, as far as known, with symbolic links resolved.
        stored: One past the last byte that all channels have stored.
        has_unread: Whether it has, or may have, unread bytes.
        is_deleted: Whether it no longer has a path.
        has_failed: Whether it is no longer read because of its content.
        size_max: Its largest known size.
        read_fingerprints: Fingerprints of the bytes before some of the positions up to which it was read, ascending;
            the last one is `tail`.
    """

    def __init__(self, known: FilePosition, start: StartPosition, config: LinesConfig) -> None:
        self.producer_id = known.producer_id
        self.path = known.path
        self.found_path: str | None = None
        self.pattern = known.pattern
        self.place = known.place
        self.key = known.key
        self.stored = start.position
        self.has_unread = True
        self.is_deleted = False
        self.has_failed = False
        self.changed_at = 0.0
        self.size_max = 0
        self._config = config
        self.head = known.head
        self.read_fingerprints = [known.tail]
        self._boundaries = list(start.boundaries)
        self._read_position = start.position
        self._splitter: LineSplitter | None = None
        self._descriptor: int | None = None
        self._last_status: tuple[int, int] | None = None

    @property
    def tail(self) -> Fingerprint:
        return self.read_fingerprints[-1]

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    @property
    def pending_bytes(self) -> int:
        """Bytes of an unfinished event in memory."""
        return self._splitter.pending_bytes if self._splitter else 0

    @property
    def is_rotated(self) -> bool:
        """Whether it is no longer found under the path under which it was first found."""
        return self.found_path != self.path

    @property
    def is_behind(self) -> bool:
        """Whether it has bytes that were not read, or were read but discarded."""
        return self._last_status is not None and self._last_status[0] > self._read_position

    @property
    def failure(self) -> LinesError | None:
        """The reason why it cannot be read any further, or None."""
        return self._splitter.failure if self._splitter else None

    @property
    def long_line_count(self) -> int:
        """Lines that were too long since it was last opened for splitting."""
        return self._splitter.long_line_count if self._splitter else 0

    def to_position(self) -> FilePosition:
        return FilePosition(
            producer_id=self.producer_id,
            path=self.path,
            pattern=self.pattern,
            place=self.place,
            device=self.key.device,
            inode=self.key.inode,
            position=self.stored,
            head=self.head,
            tail=self.tail,
        )

    def update_status(self, status: os.stat_result, now: float) -> None:
        seen = status.st_size, status.st_mtime_ns
        self.size_max = max(self.size_max, status.st_size)
        if seen != self._last_status:
            self._last_status = seen
            self.changed_at = now
            self.has_unread = True

    def refresh(self, now: float) -> None:
        if self._descriptor is not None:
            status = os.fstat(self._descriptor)
            self.is_deleted = status.st_nlink == 0
            self.update_status(status, now)

    def retry_later(self) -> None:
        """Makes the next status count as a change."""
        self._last_status = None
        self.has_unread = False

    def move_to(self, place: str, key: FileKey) -> None:
        """Continues in its copy, or under its new key."""
        self.close()
        self.place = place
        self.key = key
        self.size_max = 0
        self._last_status = None
        self.has_unread = True

    def open(self) -> None:
        """Opens it. Raises FileReplacedError if its content has changed, FileNotFoundError if it is another file."""
        if self._descriptor is not None:
            return
        descriptor = open_file(self.place, self.key)
        try:
            self._compare(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def is_unchanged(self) -> bool:
        """Whether it still contains what was read from it, or cannot be read at the moment."""
        try:
            descriptor = open_file(self.place, self.key) if self._descriptor is None else self._descriptor
            try:
                self._compare(descriptor)
            finally:
                if descriptor != self._descriptor:
                    os.close(descriptor)
        except FileReplacedError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read(self) -> list[Lines]:
        """Reads the next block of an open file.

        Returns:
            The events that it completes, in consecutive parts; nothing if there is nothing to read, or no event is
            complete.

        Raises:
            FileReplacedError: It no longer contains what was read from it.
            LinesError: A line is not valid in its charset and `decode_errors` is "fail".
        """
        assert self._descriptor is not None, "opened before"
        data = self._read_block(self._descriptor)
        if not data:
            return []
        if self._splitter is None:
            mark = os.pread(self._descriptor, BOM_BYTES_MAX, 0)
            self._splitter = LineSplitter(self._config, self._read_position, mark)
        splitter = self._splitter
        self._read_position += len(data)
        found = _non_empty(splitter.feed(data))
        if self._boundaries and self._read_position == self._boundaries[0]:
            # Some channel has stored an event that ends here, whatever follows.
            del self._boundaries[0]
            found += _non_empty(splitter.finish())
        return found

    def finish_event(self) -> list[Lines]:
        return _non_empty(self._splitter.finish_event()) if self._splitter else []

    def finish(self) -> list[Lines]:
        """Returns all remaining events, including the last line; raises LinesError as `read` does."""
        return _non_empty(self._splitter.finish()) if self._splitter else []

    def discard_pending(self) -> None:
        """Discards an unfinished event from memory, which is read again when the file grows."""
        if self._splitter is not None:
            self._read_position = self._splitter.position
            self._splitter = None

    def _read_block(self, descriptor: int) -> bytes:
        """Returns the next bytes, after a check that those before them are unchanged."""
        wanted = BLOCK_BYTES if not self._boundaries else min(BLOCK_BYTES, self._boundaries[0] - self._read_position)
        # A single read for both, so that the file cannot change in between.
        tail = self.tail
        known_size = tail.size if tail.end == self._read_position else 0
        if known_size == 0:
            self._compare(descriptor)
        content = os.pread(descriptor, known_size + wanted, self._read_position - known_size)
        if known_size and not tail.matches(content[:known_size]):
            raise FileReplacedError
        data = content[known_size:]
        self.has_unread = len(data) == wanted
        end = self._read_position + len(data)
        if end > tail.end:
            last = content[-TAIL_BYTES_MAX:]
            self.read_fingerprints.append(Fingerprint.of(end - len(last), last))
            if len(self.read_fingerprints) > FINGERPRINTS_MAX:
                del self.read_fingerprints[:-1:2]
        if self.head.size < HEAD_BYTES_MAX:
            self._extend_head(descriptor)
        return data

    def _compare(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_size < self._read_position or not (
            self.head.matches_file(descriptor) and self.tail.matches_file(descriptor)
        ):
            raise FileReplacedError

    def _extend_head(self, descriptor: int) -> None:
        content = os.pread(descriptor, HEAD_BYTES_MAX, self.head.start)
        if len(content) > self.head.size and self.head.matches(content[: self.head.size]):
            self.head = Fingerprint.of(self.head.start, content)
