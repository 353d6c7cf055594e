"""A consistent view of a channel's files, also while a server writes to them."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from millrace_server.log_tools.layout import (
    CHECKPOINT_NAMES,
    ChannelLayout,
    UnavailableError,
    check_regular,
    segment_paths,
)
from millrace_server.log_tools.read_only_disk import ReadOnlyDisk, ReadOnlyFile
from millrace_server.wal.disk import File, OsDisk, OsFile
from millrace_server.wal.format import RECORD_HEAD_BYTES, SEGMENT_HEADER_BYTES, FormatError, Kind, SegmentHeader
from millrace_server.wal.reading import SegmentScanner
from millrace_server.wal.segments import segment_name

TRIES_MAX = 10
"""Attempts to open all files while segments come and go."""

PROOF_SECONDS_MAX = 2.0
"""How long to wait for proof of the log's end. It comes within 0.1 s from a running server, never from a killed one."""

_PAUSE_SECONDS = 0.05
_POLL_SECONDS = 0.02
_READ_BYTES = 1 << 20
_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment of a view."""

    segment_id: int
    path: Path
    file: ReadOnlyFile


@dataclass(frozen=True, slots=True)
class LogView:
    """A channel's files as they were at one moment.

    It contains all that was acknowledged before it was opened, and ends between two records.
    """

    layout: ChannelLayout
    disk: ReadOnlyDisk
    """Segments and checkpoints by their paths."""
    segments: Sequence[SegmentView]
    """Ordered by id."""
    torn_bytes: int
    """Bytes after the last record: a crash left them, or they were being written."""
    is_damaged: bool
    """Whether synced bytes of the last segment are damaged. The view then has everything ever written to the file."""
    written_bytes: int
    """How much of the last segment was ever written, as far as the file system shows."""

    @property
    def byte_count(self) -> int:
        return sum(segment.file.size() for segment in self.segments)

    @property
    def checkpoint_paths(self) -> list[Path]:
        """The checkpoints that exist, the newest first."""
        names = self.disk.list(self.layout.checkpoint_dir)
        return [self.layout.checkpoint_dir / name for name in CHECKPOINT_NAMES if name in names]

    def scanner(self, segment: SegmentView) -> SegmentScanner:
        return _scanner(segment.file, self.layout, segment.segment_id)


def _scanner(file: File, layout: ChannelLayout, segment_id: int) -> SegmentScanner:
    # The ids come from the file's name and directory, since the segment's own header may be damaged.
    return SegmentScanner(file, SegmentHeader(layout.log_id, segment_id, 0, 0))


@dataclass(frozen=True, slots=True)
class _OpenFiles:
    """Files that were opened and all existed at one moment."""

    checkpoints: dict[Path, ReadOnlyFile]
    segments: list[tuple[int, Path, OsFile]]


@contextmanager
def open_view(layout: ChannelLayout, *, is_live: bool = True) -> Iterator[LogView]:
    """Opens a view of a channel's files until the end of the block. Changes nothing and takes no lock.

    If `is_live`, a server may be writing, and the call may have to wait for the end of the log.

    Raises:
        UnavailableError: Segments come and go faster than they can be opened, or one cannot be read.
        UsageError: A segment is not a regular file.
    """
    ids_before: list[int] = []
    for _ in range(TRIES_MAX):
        with ExitStack() as opened:
            files = _open_all(layout, opened)
            # Directories are listed one after the other, so a gap may only be apparent; one that persists is real.
            ids = [segment_id for segment_id, _, _ in files.segments] if files else []
            has_gap = any(after != before + 1 for before, after in pairwise(ids))
            if files and (ids == ids_before or not has_gap):
                yield _view(layout, files, is_live=is_live)
                return
        ids_before = ids
        time.sleep(_PAUSE_SECONDS)
    raise UnavailableError(
        f"{layout.directories[0]}: segments are created and removed faster than they can be read; try again"
    )


def _open_all(layout: ChannelLayout, opened: ExitStack) -> _OpenFiles | None:
    """Opens all files; returns None if one was removed in the meantime."""
    # The checkpoints first: the segments that one refers to existed before it, and stay until it has a successor.
    before = {path for _, path in segment_paths(layout.directories)}
    checkpoints = {
        path: file
        for name in CHECKPOINT_NAMES
        if (file := _read_checkpoint(path := layout.checkpoint_dir / name)) is not None
    }
    paths = segment_paths(layout.directories)
    if not before <= {path for _, path in paths}:
        return None
    segments: list[tuple[int, Path, OsFile]] = []
    for segment_id, path in paths:
        try:
            segment = OsDisk().open(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnavailableError(f"cannot read {path}: {error.strerror}") from error
        opened.callback(segment.close)
        segments.append((segment_id, path, segment))
    return _OpenFiles(checkpoints, segments)


def _read_checkpoint(path: Path) -> ReadOnlyFile | None:
    check_regular(path)
    try:
        return ReadOnlyFile.of(path.read_bytes())
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror}") from error
    except OSError:
        # The disk has lost it. That is damage, just as an empty checkpoint is.
        return ReadOnlyFile.of(b"")


def _view(layout: ChannelLayout, files: _OpenFiles, *, is_live: bool) -> LogView:
    segments = [
        SegmentView(segment_id, path, ReadOnlyFile(file.read, file.size())) for segment_id, path, file in files.segments
    ]
    tail, written_bytes = Tail(0), 0
    if files.segments:
        segment_id, path, file = files.segments[-1]
        tail = find_tail(file, layout, segment_id, is_live=is_live)
        # The query would evict the file from the cache of a server that is writing it.
        written_bytes = tail.end if is_live and not tail.is_damaged else _written_bytes(file)
        end = file.written_end() if tail.is_damaged else tail.end
        segments[-1] = SegmentView(segment_id, path, ReadOnlyFile(file.read, end))
    disk = ReadOnlyDisk(files.checkpoints | {segment.path: segment.file for segment in segments})
    return LogView(layout, disk, segments, tail.torn_bytes, tail.is_damaged, written_bytes)


# The end of a log to which a server may be writing.
#
# A group of records becomes visible piece by piece, and is truncated again if the disk is full. So the view ends at a
# position that is certain to remain: a later record states that it was synced, or a SYNC_POINT ends there, which is
# written alone and after everything before it. Under load the next commit is that proof, in an idle log a SYNC_POINT
# 50 ms after the last sync, and in a closed log the last SYNC_POINT.


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a log's last segment."""

    end: int
    """Where to stop reading."""
    torn_bytes: int = 0
    """Bytes between the last record and the last byte that is not zero."""
    is_damaged: bool = False
    """Whether a record after the last one proves that synced bytes are damaged."""


@dataclass(slots=True)
class _Progress:
    end: int
    """The end of the last valid record."""
    proven: int
    """The end of a record; everything before it is certain to remain."""
    is_damaged: bool = False


def find_tail(file: File, layout: ChannelLayout, segment_id: int, *, is_live: bool) -> Tail:
    """Finds the end of a log's last segment, which may grow in the meantime and get a successor.

    If `is_live`, a server may be writing, and the call waits for a proof of the end.
    """
    scanner = _scanner(file, layout, segment_id)
    progress = _scan(scanner, _Progress(SEGMENT_HEADER_BYTES, 0))
    # Everything that was acknowledged before this call is before this position.
    wanted = progress.end
    deadline = time.monotonic() + (PROOF_SECONDS_MAX if is_live else 0.0)
    while not progress.is_damaged:
        if progress.proven >= wanted:
            return Tail(progress.proven, _torn_bytes(file, progress.end))
        if (length := _full_length(layout, segment_id)) is not None:
            return Tail(length)
        if time.monotonic() >= deadline:
            # No server is writing, so valid records remain.
            return Tail(_last_end(scanner, progress.proven, wanted), _torn_bytes(file, progress.end))
        time.sleep(_POLL_SECONDS)
        progress = _scan(scanner, _Progress(progress.proven, progress.proven))
    return Tail(file.size(), is_damaged=True)


def _scan(scanner: SegmentScanner, progress: _Progress) -> _Progress:
    """Reads to the end of the valid records, and checks whether that is damage."""
    while True:
        for record in scanner.records(progress.end):
            progress.end = record.end
            # A segment gets its name only after its first record was synced, so this record needs no proof.
            is_proof = record.head.kind is Kind.SYNC_POINT or not progress.proven
            progress.proven = record.end if is_proof else max(progress.proven, record.head.synced_position)
        evidence = scanner.synced_position_behind(progress.end + 1)
        if max(evidence, SEGMENT_HEADER_BYTES + 1) <= progress.end:
            return progress
        # A later record states that this position was synced before it. If there is a valid record by now, it was read
        # too early; otherwise it is damaged.
        if scanner.record_at(progress.end) is None:
            progress.is_damaged = True
            return progress


def _last_end(scanner: SegmentScanner, start: int, wanted: int) -> int:
    """Returns the end of the last record that ends at or before `wanted` and was not truncated in the meantime."""
    ends = (record.end for record in scanner.records(start))
    return max((end for end in ends if end <= wanted), default=start)


def _full_length(layout: ChannelLayout, segment_id: int) -> int | None:
    """Returns the segment's length if it has a successor by now, whose header states it."""
    for directory in layout.directories:
        try:
            with (directory / segment_name(segment_id + 1)).open("rb") as file:
                return SegmentHeader.decode(file.read(SEGMENT_HEADER_BYTES)).previous_length
        except (OSError, FormatError):
            continue
    return None


def _written_bytes(file: OsFile) -> int:
    """Returns how much of a segment was ever written.

    A block that the disk has lost may read as zeros. So only zeros after other bytes in the same block count as never
    written, less those that may be the end of a record's head.
    """
    end = file.written_end()
    start = max(max(end - 1, 0) // _BLOCK_BYTES * _BLOCK_BYTES, SEGMENT_HEADER_BYTES)
    content = file.read(max(end - start, 0), start).rstrip(b"\0")
    return min(start + len(content) + RECORD_HEAD_BYTES, end) if content else end


def _torn_bytes(file: File, end: int) -> int:
    size = file.size()
    last = end
    for start in range(end, size, _READ_BYTES):
        block = file.read(_READ_BYTES, start).rstrip(b"\0")
        last = start + len(block) if block else last
    return last - end
