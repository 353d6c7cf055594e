"""One file that is tailed."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from millrace_server.agent.lines.config import LinesConfig
from millrace_server.agent.lines.lines import Lines
from millrace_server.agent.lines.splitter import LinesError, LineSplitter
from millrace_server.agent.sources.taildir.positions import (
    HEAD_BYTES_MAX,
    TAIL_BYTES_MAX,
    FileKey,
    FilePosition,
    Fingerprint,
    open_file,
)

BLOCK_BYTES = 1024 * 1024
"""So much of a file is read before the next one has its turn."""

LANDMARKS_MAX = 32
"""So many places are kept in mind up to which a file was read, the later ones closer together."""

_MARK_BYTES_MAX = 4
"""What the first bytes of a file may tell of the order of bytes in its charset."""


class FileReplacedError(Exception):
    """Returned when a file does not hold what was read of it: it was cut short, written anew, or is another one."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a file is read from.

    Attributes:
        position: The first byte that some channel has not stored.
        borders: Where further on what a channel has stored begins or ends, ascending. No batch goes across.
    """

    position: int
    borders: Sequence[int] = ()

    @classmethod
    def of(cls, accepted: Sequence[Sequence[tuple[int, int]]], saved: int) -> "Start":
        """Where to begin after a restart.

        Args:
            accepted: For each channel the ranges of bytes that it has stored, both ends included.
            saved: The position that was kept elsewhere. It counts for channels that know nothing of the file: they are
                new, in memory, or have forgotten it.
        """
        # What lies before the first range was stored by a channel that this one stands for, or was never wanted.
        position = min((ranges[0][1] + 1 if ranges else saved for ranges in accepted), default=saved)
        borders = {border for ranges in accepted for first, last in ranges for border in (first, last + 1)}
        return cls(position, tuple(sorted(border for border in borders if border > position)))


class TailedFile:
    """One file: what it is, where it is, and how far it was read.

    For one thread; only `stored` is set by another one.

    Args:
        known: What is known of it.
        start: Where to read on.
        config: What its lines are.

    Attributes:
        producer_id: What channels know it by.
        path: The path under which it was first seen.
        found_path: The path under which a pattern has found it last; None where none does any more.
        pattern: The pattern that has found it.
        place: Where it is now, as far as is known, links resolved.
        key: Which file it is, of those that are there now.
        stored: One past the last byte that all channels have stored.
        has_news: Whether a look at it has told of bytes that were not read, or may have.
        is_deleted: Whether no name leads to it any more.
        is_set_aside: Whether it is not read any more, because of what it holds.
        changed_at: When a look at it has told of a change last.
        size_max: The largest size that a look at it has told.
    """

    def __init__(self, known: FilePosition, start: Start, config: LinesConfig) -> None:
        self.producer_id = known.producer_id
        self.path = known.path
        self.found_path: str | None = None
        self.pattern = known.pattern
        self.place = known.place
        self.key = known.key
        self.stored = start.position
        self.has_news = True
        self.is_deleted = False
        self.is_set_aside = False
        self.changed_at = 0.0
        self.size_max = 0
        self._config = config
        self._head = known.head
        self._landmarks = [known.tail]
        self._borders = list(start.borders)
        self._fed = start.position
        self._splitter: LineSplitter | None = None
        self._descriptor: int | None = None
        self._seen: tuple[int, int] | None = None

    @property
    def head(self) -> Fingerprint:
        """What it begins with."""
        return self._head

    @property
    def tail(self) -> Fingerprint:
        """What lay before the place where it was read last."""
        return self._landmarks[-1]

    @property
    def landmarks(self) -> Sequence[Fingerprint]:
        """What lay before some of the places up to which it was read, ascending; the last one is `tail`."""
        return self._landmarks

    @property
    def is_open(self) -> bool:
        """Whether it is open."""
        return self._descriptor is not None

    @property
    def pending_bytes(self) -> int:
        """Bytes in memory of an event that is not finished."""
        return self._splitter.pending_bytes if self._splitter else 0

    @property
    def is_rotated(self) -> bool:
        """Whether the path under which it was first seen leads elsewhere."""
        return self.found_path != self.path

    @property
    def is_behind(self) -> bool:
        """Whether it is known to have bytes that were not read, or not kept."""
        return self._seen is not None and self._seen[0] > self._fed

    @property
    def failure(self) -> LinesError | None:
        """Why it cannot be read on; None where it can."""
        return self._splitter.failure if self._splitter else None

    @property
    def long_line_count(self) -> int:
        """Lines that were too long, since it was read anew."""
        return self._splitter.long_line_count if self._splitter else 0

    def described(self) -> FilePosition:
        """What is to be kept of it."""
        return FilePosition(
            producer_id=self.producer_id,
            path=self.path,
            pattern=self.pattern,
            place=self.place,
            device=self.key.device,
            inode=self.key.inode,
            position=self.stored,
            head=self._head,
            tail=self.tail,
        )

    def look_at(self, status: os.stat_result, now: float) -> None:
        """Takes note of its size and of when it was written to."""
        seen = status.st_size, status.st_mtime_ns
        self.size_max = max(self.size_max, status.st_size)
        if seen != self._seen:
            self._seen = seen
            self.changed_at = now
            self.has_news = True

    def look_at_open(self, now: float) -> None:
        """Takes note of what it is like now, where it is open."""
        if self._descriptor is not None:
            status = os.fstat(self._descriptor)
            self.is_deleted = status.st_nlink == 0
            self.look_at(status, now)

    def try_again(self) -> None:
        """Has the next look at it tell of news, whatever it finds."""
        self._seen = None
        self.has_news = False

    def moves(self, place: str, key: FileKey) -> None:
        """Goes on in another file, which is its copy."""
        self.close()
        self.place = place
        self.key = key
        self.size_max = 0
        self._seen = None
        self.has_news = True

    def open(self) -> None:
        """Opens it, and makes sure that it is still the same.

        Raises:
            FileReplacedError: It is not.
            OSError: It cannot be opened; FileNotFoundError also where another file is in its place.
        """
        if self._descriptor is not None:
            return
        descriptor = open_file(self.place, self.key)
        try:
            self._compare(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor

    def is_same(self) -> bool:
        """Whether it still holds what was read of it; also where that cannot be told now."""
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
        """Closes it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def read(self) -> list[Lines]:
        """Reads the next block of an open file.

        Returns:
            The events that it finishes, in parts that follow one another; none where there is nothing to be read, or
            no event is finished yet.

        Raises:
            FileReplacedError: It does not hold what was read of it.
            LinesError: A line is not in its charset, and that is not allowed.
            OSError: It cannot be read.
        """
        data = self._read_block()
        if not data:
            return []
        splitter = self._splitter = self._splitter or self._begun()
        self._fed += len(data)
        found = [splitter.feed(data)]
        if self._borders and self._fed == self._borders[0]:
            # Some channel has an event that ends here, whatever follows.
            del self._borders[0]
            found.append(splitter.finish())
        return [lines for lines in found if lines.end > lines.start]

    def finish_event(self) -> list[Lines]:
        """The event that waits for further lines, without them."""
        return self._handed_out(self._splitter.finish_event()) if self._splitter else []

    def finish(self) -> list[Lines]:
        """All that was read of it, the last line too.

        Raises:
            LinesError: As with `read`.
        """
        return self._handed_out(self._splitter.finish()) if self._splitter else []

    def forget_waiting(self) -> None:
        """Gives back the memory of an event that is not finished; it is read once more when the file grows."""
        if self._splitter is not None:
            self._fed = self._splitter.position
            self._splitter = None

    def _handed_out(self, lines: Lines) -> list[Lines]:
        return [lines] if lines.end > lines.start else []

    def _begun(self) -> LineSplitter:
        assert self._descriptor is not None, "opened before"
        mark = os.pread(self._descriptor, _MARK_BYTES_MAX, 0)
        return LineSplitter(self._config, self._fed, mark)

    def _read_block(self) -> bytes:
        """The next bytes, once those before them are found to be what they were."""
        assert self._descriptor is not None, "opened before"
        wanted = BLOCK_BYTES if not self._borders else min(BLOCK_BYTES, self._borders[0] - self._fed)
        # One read for both, so that nothing can happen between them.
        tail = self.tail
        known_size = tail.size if tail.end == self._fed else 0
        if known_size == 0:
            self._compare(self._descriptor)
        content = os.pread(self._descriptor, known_size + wanted, self._fed - known_size)
        if known_size and not tail.matches(content[:known_size]):
            raise FileReplacedError
        data = content[known_size:]
        self.has_news = len(data) == wanted
        end = self._fed + len(data)
        if end > tail.end:
            last = content[-TAIL_BYTES_MAX:]
            self._landmarks.append(Fingerprint.of(end - len(last), last))
            if len(self._landmarks) > LANDMARKS_MAX:
                del self._landmarks[:-1:2]
        if self._head.size < HEAD_BYTES_MAX:
            self._extend_head(self._descriptor)
        return data

    def _compare(self, descriptor: int) -> None:
        if os.fstat(descriptor).st_size < self._fed or not (
            self._head.is_found_in(descriptor) and self.tail.is_found_in(descriptor)
        ):
            raise FileReplacedError

    def _extend_head(self, descriptor: int) -> None:
        content = os.pread(descriptor, HEAD_BYTES_MAX, self._head.start)
        if len(content) > self._head.size and self._head.matches(content[: self._head.size]):
            self._head = Fingerprint.of(self._head.start, content)
