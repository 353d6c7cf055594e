"""A look at a channel's files that holds together, also while a server writes to them."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Self

from millrace_server.log_tools.errors import UnavailableError
from millrace_server.log_tools.frozen_disk import FrozenDisk, FrozenFile
from millrace_server.log_tools.places import CHECKPOINT_NAMES, LogPlaces, check_regular, segment_paths
from millrace_server.log_tools.tail import Tail, find_tail
from millrace_server.log_tools.walking import SegmentWalker
from millrace_server.wal.disk import File, OsDisk

TRIES_MAX = 10
"""Looks that are taken while segments come and go."""

_PAUSE_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class ViewedSegment:
    """A segment of a view."""

    segment_id: int
    path: Path
    file: FrozenFile


@dataclass(frozen=True, slots=True)
class LogView:
    """A channel's files as they were at one moment; to be used as a context.

    All that was acknowledged before the look began is in it, and it ends between two records.
    """

    places: LogPlaces
    disk: FrozenDisk
    """Segments and checkpoints by their paths."""
    segments: Sequence[ViewedSegment]
    """By number."""
    torn_bytes: int
    """What lies behind the last record: a crash left it, or it was about to be written."""
    is_rotten: bool
    """Whether the last segment is damaged in what was synced; then it is in the view as far as there is anything."""
    _opened: ExitStack

    @property
    def byte_count(self) -> int:
        """Bytes of all segments."""
        return sum(segment.file.size() for segment in self.segments)

    @property
    def checkpoint_paths(self) -> list[Path]:
        """The checkpoints that are there, the newest first."""
        names = self.disk.list(self.places.checkpoint_dir)
        return [self.places.checkpoint_dir / name for name in CHECKPOINT_NAMES if name in names]

    def walker(self, segment: ViewedSegment) -> SegmentWalker:
        """Reads a segment's records."""
        return SegmentWalker(segment.file, self.places.log_id, segment.segment_id)

    def close(self) -> None:
        """Closes the files."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Found:
    """Files that were opened, all of which were there at once."""

    checkpoints: dict[Path, FrozenFile]
    segments: list[tuple[int, Path, File]]

    @property
    def segment_ids(self) -> list[int]:
        """The segments' numbers."""
        return [segment_id for segment_id, _, _ in self.segments]


def take_view(places: LogPlaces, *, waits: bool = True) -> LogView:
    """Looks at a channel's files. Changes nothing, and takes no lock.

    Args:
        places: Where they lie.
        waits: Whether a server may be writing to them, so that the end of the log may have to be waited for.

    Raises:
        UnavailableError: Segments come and go faster than they can be opened, or one cannot be read.
        UsageError: A segment is no file.
    """
    ids_before: list[int] = []
    for _ in range(TRIES_MAX):
        with ExitStack() as opened:
            found = _open_all(places, opened)
            # A gap may be there because directories are listed one after the other. If it stays, it is a gap.
            if found and (found.segment_ids == ids_before or not _has_gap(found.segment_ids)):
                return _view(places, found, opened, waits=waits)
        ids_before = found.segment_ids if found else []
        time.sleep(_PAUSE_SECONDS)
    raise UnavailableError(f"{places.directories[0]}: segments come and go faster than they can be read; try again")


def _open_all(places: LogPlaces, opened: ExitStack) -> _Found | None:
    """Opens all files; None where one has gone meanwhile."""
    # The checkpoint first: what it needs was there before it, and stays until it has a successor.
    before = {path for _, path in segment_paths(places.directories)}
    checkpoints = {
        path: file
        for name in CHECKPOINT_NAMES
        if (file := _read_checkpoint(path := places.checkpoint_dir / name)) is not None
    }
    paths = segment_paths(places.directories)
    if not before <= {path for _, path in paths}:
        return None
    segments: list[tuple[int, Path, File]] = []
    for segment_id, path in paths:
        try:
            segment = OsDisk().open(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnavailableError(f"cannot read {path}: {error.strerror}") from error
        opened.callback(segment.close)
        segments.append((segment_id, path, segment))
    return _Found(checkpoints, segments)


def _read_checkpoint(path: Path) -> FrozenFile | None:
    check_regular(path)
    try:
        return FrozenFile.of(path.read_bytes())
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise UnavailableError(f"cannot read {path}: {error.strerror}") from error
    except OSError:
        # The disk has lost it: that is damage, and no content is that of a checkpoint.
        return FrozenFile.of(b"")


def _has_gap(segment_ids: Sequence[int]) -> bool:
    return any(after != before + 1 for before, after in pairwise(segment_ids))


def _view(places: LogPlaces, found: _Found, opened: ExitStack, *, waits: bool) -> LogView:
    segments = [
        ViewedSegment(number, path, FrozenFile(file.read, file.size())) for number, path, file in found.segments
    ]
    tail = Tail(0)
    if found.segments:
        number, path, file = found.segments[-1]
        tail = find_tail(file, places, number, waits=waits)
        segments[-1] = ViewedSegment(number, path, FrozenFile(file.read, tail.cut))
    disk = FrozenDisk(found.checkpoints | {segment.path: segment.file for segment in segments})
    return LogView(places, disk, segments, tail.torn_bytes, tail.is_rotten, opened.pop_all())
