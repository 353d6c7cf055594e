"""Segments: the files of a log."""

import re
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from millrace_server.wal.disk import Disk, File, Piece
from millrace_server.wal.format import SEGMENT_HEADER_BYTES, FormatError, SegmentHeader, UnknownVersionError

_NAME = re.compile(r"segment-(\d{12})\.log")
_TEMPORARY_SUFFIX = ".new"


class LogCorruptError(Exception):
    """Returned when bytes that were synced are not what was written. Nothing was changed."""


class NameUnsyncedError(Exception):
    """Returned when a segment has its name, and nobody knows whether a crash takes it away again."""


@dataclass(slots=True)
class Segment:
    """One file of the log."""

    path: Path
    header: SegmentHeader
    file: File

    @property
    def segment_id(self) -> int:
        """Its number, from 1."""
        return self.header.segment_id


@dataclass(frozen=True, slots=True)
class SegmentFiles:
    """Where one log's segments lie."""

    disk: Disk
    directories: Sequence[Path]
    """New segments go into them in turn, so that several disks fill evenly."""
    channel_id: bytes
    """Whose log it is, 16 bytes."""

    def create(self, header: SegmentHeader, records: Sequence[Piece]) -> Segment:
        """Makes a segment, so that after a crash it is there with its first records or not at all.

        Args:
            header: Who it is.
            records: Its first records, encoded.

        Raises:
            OSError: It was not made.
            NameUnsyncedError: It was made, but the sync of its name failed.
        """
        directory = self.directories[header.segment_id % len(self.directories)]
        # Opened first: should descriptors run out, they do so before there is a name that must be synced.
        with closing(self.disk.open_directory(directory)) as names:
            segment = self._create_under(directory, header, records)
            try:
                names.sync()
            except OSError as error:
                segment.file.close()
                raise NameUnsyncedError(error.strerror) from error
        return segment

    def _create_under(self, directory: Path, header: SegmentHeader, records: Sequence[Piece]) -> Segment:
        path = directory / segment_name(header.segment_id)
        temporary = path.with_suffix(_TEMPORARY_SUFFIX)
        if temporary.name in self.disk.list(directory):
            # A crash, or an error, left it; it has the same name, since no segment has come since.
            self.disk.unlink(temporary)
        file = self.disk.create(temporary)
        try:
            file.write([header.encode(), *records], 0)
            # The name must not point at bytes that are not on the disk.
            file.sync()
            self.disk.rename(temporary, path)
        except OSError:
            file.close()
            with suppress(OSError):
                # On a full disk its room is wanted elsewhere.
                self.disk.unlink(temporary)
            raise
        return Segment(path, header, file)

    def find(self, *, writable: bool = True) -> list[Segment]:
        """Opens all segments, by number, after making sure that they belong together. Changes nothing.

        Args:
            writable: Whether they can be written to, or only read.

        Raises:
            LogCorruptError: One is missing between two others, is damaged or another channel's.
            UnknownVersionError: Another version of Millrace wrote one.
        """
        paths = [directory / name for directory in self.directories for name in self.disk.list(directory)]
        found = [(path, int(match[1])) for path in paths if (match := _NAME.fullmatch(path.name))]
        segments = [self._open(path, segment_id, writable=writable) for path, segment_id in found]
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
            kind = UnknownVersionError if isinstance(error, UnknownVersionError) else LogCorruptError
            raise kind(f"{path.name}: {error}") from None
        if (header.segment_id, header.channel_id) != (segment_id, self.channel_id):
            file.close()
            raise LogCorruptError(
                f"{path.name}: its header says that it is segment {header.segment_id} of channel "
                f"{header.channel_id.hex()}; it must be segment {segment_id} of {self.channel_id.hex()}"
            )
        return Segment(path, header, file)


def segment_name(segment_id: int) -> str:
    """The file's name."""
    return f"segment-{segment_id:012}.log"


def _check_chain(before: Segment, after: Segment) -> None:
    if after.segment_id != before.segment_id + 1:
        raise LogCorruptError(f"{before.path.name} is followed by {after.path.name}; what lay between is missing")
    length, length_then = before.file.size(), after.header.previous_length
    if length != length_then:
        raise LogCorruptError(f"{before.path.name}: has {length} bytes; it had {length_then} when it was full")
