"""Checkpoints: how a channel stood at a place in its log, so that replay begins there and not at the beginning.

A checkpoint is one file, written beside the one before, synced, and renamed. The one before is kept under another
name: should the newest be damaged, replay begins at the older one and reads some more of the log.

    0   8  magic, "MILLCHKP"
    8   2  format version
   10   1  flags: how the state is sealed
   11   5  zeros
   16  16  channel id
   32   8  segment id of the log position
   40   8  byte offset of the log position
   48   8  write number of the record that comes next
   56   4  length of the state as it lies here
   60   4  CRC-32 of bytes 0 to 59 and of the state as it lies here
   64      the state, sealed
"""

import errno
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from millrace_server.wal.disk import Disk, Piece
from millrace_server.wal.format import PAYLOAD_BYTES_MAX, Flags, UnknownVersionError, payload_checksum
from millrace_server.wal.payload_codec import PayloadCodec
from millrace_server.wal.records import LogPosition
from millrace_server.wal.segments import LogCorruptError

NEWEST = "checkpoint"
PREVIOUS = "checkpoint.previous"

_MAGIC = b"MILLCHKP"
_VERSION = 1
_HEAD = struct.Struct("<8sHB5x16sQQQI")
_CONTEXT = struct.Struct("<16sQQQ")
_CHECKSUM = struct.Struct("<I")
_TEMPORARY = "checkpoint.new"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT}

# To what a sealed state is bound in place of a record's kind; no record has it.
_SEALED_KIND = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A channel's state at a place in its log."""

    position: LogPosition
    """Everything before it is in the state, and was synced before the checkpoint was written."""
    state: bytes
    is_previous: bool = field(default=False, compare=False)
    """Whether it was found under the name of the one before."""


class CheckpointFiles:
    """The checkpoints of one channel.

    Args:
        disk: Where they are.
        directory: The directory, which no other channel uses.
        channel_id: Whose they are, 16 bytes.
        keeps_previous: Whether the one before is kept.
        codec: How states are sealed.
    """

    def __init__(
        self, disk: Disk, directory: Path, channel_id: bytes, *, keeps_previous: bool, codec: PayloadCodec | None = None
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._channel_id = channel_id
        self._keeps_previous = keeps_previous
        self._codec = codec or PayloadCodec()

    def write(self, checkpoint: Checkpoint) -> None:
        """Puts a checkpoint in the place of the newest. Once this returns, it survives a power cut.

        Raises:
            OSError: The newest is still the one before, and good; or, where only the sync of the directory failed, it
                is this one, and may be the one before again after a power cut.
            ValueError: Its state is longer than a payload may be; nothing was written.
        """
        if len(checkpoint.state) > PAYLOAD_BYTES_MAX:
            raise ValueError(f"a checkpoint's state may have {PAYLOAD_BYTES_MAX} bytes; it has {len(checkpoint.state)}")
        names = self._disk.list(self._directory)
        if _TEMPORARY in names:
            self._disk.unlink(self._directory / _TEMPORARY)
        try:
            self._write_temporary(checkpoint)
        except OSError as error:
            is_spare = {NEWEST, PREVIOUS} <= set(names) and self._read(self._directory / NEWEST) is not None
            if error.errno not in _NO_ROOM or not is_spare:
                raise
            # It would go in a moment anyway, and what this one frees may be much more than it takes.
            self._disk.unlink(self._directory / PREVIOUS)
            self._write_temporary(checkpoint)
        if self._keeps_previous and NEWEST in names:
            # Between the two renames there is no newest; then the previous one, which is it, is read.
            self._disk.rename(self._directory / NEWEST, self._directory / PREVIOUS)
        self._disk.rename(self._directory / _TEMPORARY, self._directory / NEWEST)
        self._disk.sync_directory(self._directory)

    def _write_temporary(self, checkpoint: Checkpoint) -> None:
        path = self._directory / _TEMPORARY
        try:
            with closing(self._disk.create(path)) as file:
                file.write(self._encode(checkpoint), 0)
                # The name must not point at bytes that are not on the disk.
                file.sync()
        except OSError:
            with suppress(OSError):
                # On a full disk its room is wanted elsewhere.
                self._disk.unlink(path)
            raise

    def good_ones(self) -> Iterator[Checkpoint]:
        """The checkpoints that are there and hold together, the newest first.

        Raises:
            KeyMissingError: One is encrypted with a key that was not given.
            UnknownVersionError: Another version of Millrace wrote one.
        """
        names = self._disk.list(self._directory)
        for name in (NEWEST, PREVIOUS):
            if name in names and (checkpoint := self._read(self._directory / name)) is not None:
                yield checkpoint

    def _encode(self, checkpoint: Checkpoint) -> Sequence[Piece]:
        flags, pieces = self._codec.seal(_SEALED_KIND, [checkpoint.state], self._context(checkpoint.position))
        length = sum(map(len, pieces))
        head = _HEAD.pack(_MAGIC, _VERSION, flags, self._channel_id, *checkpoint.position, length)
        return [head, _CHECKSUM.pack(payload_checksum([head, *pieces])), *pieces]

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
        magic, version, flags, channel_id, *place, length = _HEAD.unpack_from(encoded)
        sealed = memoryview(encoded)[start:]
        (checksum,) = _CHECKSUM.unpack_from(encoded, _HEAD.size)
        if checksum != payload_checksum([encoded[: _HEAD.size], sealed]) or len(sealed) != length:
            return None
        if version != _VERSION:
            raise UnknownVersionError(
                f"{path.name}: its format version is {version}; this program knows {_VERSION} only"
            )
        if (magic, channel_id) != (_MAGIC, self._channel_id):
            return None
        return self._open(path, LogPosition(*place), flags, sealed)

    def _open(self, path: Path, position: LogPosition, flags: int, sealed: memoryview) -> Checkpoint | None:
        try:
            known_flags = Flags(flags)
        except ValueError:
            raise UnknownVersionError(f"{path.name}: its flags {flags} are not known") from None
        try:
            state = self._codec.open(_SEALED_KIND, known_flags, sealed, self._context(position))
        except LogCorruptError:
            return None
        return Checkpoint(position, bytes(state), is_previous=path.name == PREVIOUS)

    def _context(self, position: LogPosition) -> bytes:
        return _CONTEXT.pack(self._channel_id, *position)
