"""Segments: the files of a log. FORMAT.md, "Rotation" and "Opening", describes their life."""

import re
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from millrace_server.wal.disk import Disk, File, Piece, allocate
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, FormatError, SegmentHeader, UnknownVersionError

SEGMENT_NAME = re.compile(r"segment-(\d{12})\.log")
_TEMPORARY_SUFFIX = ".new"


class LogCorruptError(Exception):
    """Raised when bytes that were synced are not what was written. Nothing was changed."""


class NameUnsyncedError(Exception):
    """Raised when a segment has its name, but a crash may still remove that name."""


@dataclass(slots=True)
class Segment:
    """One file of the log, open."""

    path: Path
    header: SegmentHeader
    # Opened once and kept: readers use it from any thread, with positional reads, so it has no shared offset.
    file: File

    @property
    def segment_id(self) -> int:
        return self.header.segment_id


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """Creates and opens the segments of one log."""

    disk: Disk
    directories: Sequence[Path]
    """New segments go into them in turn, so that several disks fill evenly. All are searched for existing ones."""
    channel_id: bytes
    """16 bytes."""

    def create(self, header: SegmentHeader, records: Sequence[Piece], reserve_bytes: int = 0) -> Segment:
        """Creates a segment. After a crash it exists with its first records, or not at all.

        Args:
            header: Its header.
            records: Its first records, encoded.
            reserve_bytes: Space to allocate behind them.

        Raises:
            OSError: It was not created.
            NameUnsyncedError: It was created, but the sync of its name failed.
        """
        # Round robin by id: no state to keep, and reopening the log continues it.
        directory = self.directories[header.segment_id % len(self.directories)]
        # Opened first: if descriptors run out, that happens before there is a name that must be synced, and the log
        # need not fail for it.
        with closing(self.disk.open_directory(directory)) as names:
            segment = self._create_under(directory, header, records, reserve_bytes)
            try:
                # The last step: from here on the segment survives a crash, and its records may be acknowledged.
                names.sync()
            except OSError as error:
                # Its name is left in place: unlinking it could be lost in a crash just as well.
                segment.file.close()
                raise NameUnsyncedError(error.strerror) from error
        return segment

    def _create_under(
        self, directory: Path, header: SegmentHeader, records: Sequence[Piece], reserve_bytes: int
    ) -> Segment:
        path = directory / segment_name(header.segment_id)
        temporary = path.with_suffix(_TEMPORARY_SUFFIX)
        if temporary.name in self.disk.list(directory):
            # A crash or an error left it. It can only have this name: the id is not used until a segment is complete.
            self.disk.unlink(temporary)
        # Under a temporary name, which replay ignores, so a crash before the rename leaves no trace in the log.
        file = self.disk.create(temporary)
        try:
            # One write for header and records: a segment never exists without its STATE.
            file.write(pieces := [header.encode(), *records], 0)
            if reserve_bytes:
                allocate(file, sum(map(len, pieces)), reserve_bytes)
            # Before the rename: the final name must never refer to bytes that are not durable, since replay takes it
            # as proof that the segment has its first record.
            file.sync()
            self.disk.rename(temporary, path)
        except OSError:
            file.close()
            with suppress(OSError):
                # A full disk needs its space for other things. If this fails as well, the next attempt removes it.
                self.disk.unlink(temporary)
            raise
        return Segment(path, header, file)

    def find(self, *, writable: bool = True) -> list[Segment]:
        """Opens all segments, ordered by id, and checks that they form one log. Changes nothing.

        Args:
            writable: Whether to open them for writing as well.

        Raises:
            LogCorruptError: One is missing between two others, is damaged, or belongs to another channel.
            UnknownVersionError: Another version of Millrace wrote one.
        """
        # All directories: a data directory may have been added, which changes where new segments go, not old ones.
        paths = [directory / name for directory in self.directories for name in self.disk.list(directory)]
        # Names are matched exactly, so temporary files and files of the operator are ignored.
        found = [(path, int(match[1])) for path in paths if (match := SEGMENT_NAME.fullmatch(path.name))]
        segments = [self._open(path, segment_id, writable=writable) for path, segment_id in found]
        # By id, not by path: the segments of one log are spread over directories.
        segments.sort(key=lambda segment: segment.segment_id)
        for before, after in pairwise(segments):
            _check_chain(before, after)
        return segments

    def _open(self, path: Path, segment_id: int, *, writable: bool) -> Segment:
        file = self.disk.open(path, writable=writable)
        try:
            header = SegmentHeader.decode(file.read(SEGMENT_HEADER_BYTES, 0))
        except FormatError as error:
            file.close()
            # An unknown version is no damage: the file is kept, and the operator needs the program that wrote it.
            kind = UnknownVersionError if isinstance(error, UnknownVersionError) else LogCorruptError
            raise kind(f"{path.name}: {error}") from None
        # A copied or renamed file has a valid header, but of another segment.
        if (header.segment_id, header.channel_id) != (segment_id, self.channel_id):
            file.close()
            raise LogCorruptError(
                f"{path.name}: its header says that it is segment {header.segment_id} of channel "
                f"{header.channel_id.hex()}; it must be segment {segment_id} of {self.channel_id.hex()}"
            )
        return Segment(path, header, file)


def segment_name(segment_id: int) -> str:
    """Returns the file name of a segment."""
    return f"segment-{segment_id:012}.log"


def _check_chain(before: Segment, after: Segment) -> None:
    if after.segment_id != before.segment_id + 1:
        # Segments are removed from the front only, each durably before the next, so no crash leaves a gap.
        raise LogCorruptError(f"{before.path.name} is followed by {after.path.name}; the segments between are missing")
    # Exact, since a segment is truncated and synced before its successor is created, and never written again.
    length, length_then = before.file.size(), after.header.previous_length
    if length != length_then:
        raise LogCorruptError(f"{before.path.name}: has {length} bytes; it had {length_then} when it was full")
