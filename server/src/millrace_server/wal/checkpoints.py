"""Checkpoints: how a channel stood at a place in its log, so that replay begins there and not at the beginning.

A checkpoint is one file, written beside the one before, synced, and renamed. The one before is kept under another
name: should the newest be damaged, replay begins at the older one and reads some more of the log.

    0   8  magic, "MILLCHKP"
    8   2  format version
   10   6  zeros
   16  16  channel id
   32   8  segment id of the log position
   40   8  byte offset of the log position
   48   8  write number of the record that comes next
   56   4  length of the state
   60   4  CRC-32 of bytes 0 to 59 and of the state
   64      the state
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from millrace_server.wal.disk import Disk
from millrace_server.wal.format import UnknownVersionError
from millrace_server.wal.writer import LogPosition

NEWEST = "checkpoint"
PREVIOUS = "checkpoint.previous"

_MAGIC = b"MILLCHKP"
_VERSION = 1
_HEAD = struct.Struct("<8sH6x16sQQQI")
_CHECKSUM = struct.Struct("<I")
_TEMPORARY = "checkpoint.new"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A channel's state at a place in its log."""

    position: LogPosition
    """Everything before it is in the state, and was synced before the checkpoint was written."""
    state: bytes


class CheckpointFiles:
    """The checkpoints of one channel.

    Args:
        disk: Where they are.
        directory: The directory, which no other channel uses.
        channel_id: Whose they are, 16 bytes.
        keeps_previous: Whether the one before is kept.
    """

    def __init__(self, disk: Disk, directory: Path, channel_id: bytes, *, keeps_previous: bool) -> None:
        self._disk = disk
        self._directory = directory
        self._channel_id = channel_id
        self._keeps_previous = keeps_previous

    def write(self, checkpoint: Checkpoint) -> None:
        """Puts a checkpoint in the place of the newest. Once this returns, it survives a power cut.

        Raises:
            OSError: The newest is still the one before, and good.
        """
        names = self._disk.list(self._directory)
        if _TEMPORARY in names:
            self._disk.unlink(self._directory / _TEMPORARY)
        try:
            self._write_temporary(checkpoint)
        except OSError:
            with suppress(OSError):
                # On a full disk its room is wanted elsewhere.
                self._disk.unlink(self._directory / _TEMPORARY)
            raise
        if self._keeps_previous and NEWEST in names:
            # Between the two renames there is no newest; then the previous one, which is it, is read.
            self._disk.rename(self._directory / NEWEST, self._directory / PREVIOUS)
        self._disk.rename(self._directory / _TEMPORARY, self._directory / NEWEST)
        self._disk.sync_directory(self._directory)

    def _write_temporary(self, checkpoint: Checkpoint) -> None:
        with closing(self._disk.create(self._directory / _TEMPORARY)) as file:
            file.write(self._encode(checkpoint), 0)
            # The name must not point at bytes that are not on the disk.
            file.sync()

    def good_ones(self) -> Iterator[Checkpoint]:
        """The checkpoints that are there and hold together, the newest first.

        Raises:
            UnknownVersionError: Another version of Millrace wrote one.
        """
        names = self._disk.list(self._directory)
        for name in (NEWEST, PREVIOUS):
            if name in names and (checkpoint := self._read(self._directory / name)) is not None:
                yield checkpoint

    def _encode(self, checkpoint: Checkpoint) -> Sequence[bytes]:
        head = _HEAD.pack(_MAGIC, _VERSION, self._channel_id, *checkpoint.position, len(checkpoint.state))
        return [head, _CHECKSUM.pack(zlib.crc32(checkpoint.state, zlib.crc32(head))), checkpoint.state]

    def _read(self, path: Path) -> Checkpoint | None:
        try:
            with closing(self._disk.open(path)) as file:
                encoded = file.read(file.size(), 0)
        except OSError:
            # It cannot be read: that is damage too, and the one before may be good.
            return None
        start = _HEAD.size + _CHECKSUM.size
        if len(encoded) < start:
            return None
        magic, version, channel_id, segment_id, position, write_number, length = _HEAD.unpack_from(encoded)
        (checksum,) = _CHECKSUM.unpack_from(encoded, _HEAD.size)
        if checksum != zlib.crc32(encoded[start:], zlib.crc32(encoded[: _HEAD.size])) or len(encoded) != start + length:
            return None
        if version != _VERSION:
            raise UnknownVersionError(
                f"{path.name}: its format version is {version}; this program knows {_VERSION} only"
            )
        if (magic, channel_id) != (_MAGIC, self._channel_id):
            return None
        return Checkpoint(LogPosition(segment_id, position, write_number), encoded[start:])
