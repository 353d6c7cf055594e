"""Checkpoints: a channel's state at a position in its log, so that replay begins there and not at the beginning.

A checkpoint is one file, written next to the previous one, synced, and renamed. The previous one is kept under another
name: if the newest is damaged, replay begins at the older one and reads some more of the log.

    0   8  magic, "MILLCHKP"
    8   2  format version
   10   1  flags: how the state is encoded
   11   5  zeros
   16  16  channel id
   32   8  segment id of the log position
   40   8  byte offset of the log position
   48   8  LSN of the next record
   56   4  length of the encoded state
   60   4  CRC-32 of bytes 0 to 59 and of the encoded state
   64      the state, encoded
"""

import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from millrace_server.wal.disk import NO_SPACE, Disk, Piece
from millrace_server.wal.format import PAYLOAD_BYTES_MAX, Flags, UnknownVersionError, payload_checksum
from millrace_server.wal.payload_codec import KeyMismatchError, PayloadCodec
from millrace_server.wal.records import LogPosition
from millrace_server.wal.segments import LogCorruptError

NEWEST = "checkpoint"
PREVIOUS = "checkpoint.previous"

MAGIC = b"MILLCHKP"
VERSION = 3
# Version 1 has no runs, versions 1 and 2 have no times; what they have means the same.
_VERSIONS_READ = (1, 2, 3)
_HEAD = struct.Struct("<8sHB5x16sQQQI")
_CONTEXT = struct.Struct("<16sQQQ")
_CHECKSUM = struct.Struct("<I")
_STATE_START = _HEAD.size + _CHECKSUM.size
_TEMPORARY = "checkpoint.new"

# What a state is encoded with in place of a record's kind. No record has it, so neither decodes as the other.
_STATE_KIND = 0


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A channel's state at a position in its log."""

    position: LogPosition
    """Everything before it is in the state and was synced before the checkpoint was written."""
    state: bytes
    is_previous: bool = field(default=False, compare=False)
    """Whether it was read from the file of the previous checkpoint."""


class CheckpointFiles:
    """The checkpoints of one channel.

    Args:
        disk: The disk.
        directory: The directory, which no other channel uses.
        channel_id: 16 bytes.
        keeps_previous: Whether the previous checkpoint is kept.
        codec: Encodes and decodes states.
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
        """Replaces the newest checkpoint. Once this returns, the new one survives a power cut.

        Raises:
            OSError: The newest checkpoint is still the previous one, and valid; or, if only the sync of the directory
                failed, it is this one, and may be the previous one again after a power cut.
            ValueError: Its state is longer than a payload may be; nothing was written.
        """
        if len(checkpoint.state) > PAYLOAD_BYTES_MAX:
            raise ValueError(f"a checkpoint's state may have {PAYLOAD_BYTES_MAX} bytes; it has {len(checkpoint.state)}")
        # Left by a crash or an error. `create` refuses an existing name, so it goes first; its content is worthless.
        names = self._disk.list(self._directory)
        if _TEMPORARY in names:
            self._disk.unlink(self._directory / _TEMPORARY)
        try:
            self._write_temporary(checkpoint)
        except OSError as error:
            # Not for lack of descriptors: removing a file frees none.
            if error.errno not in NO_SPACE or not self.remove_previous():
                raise
            self._write_temporary(checkpoint)
        # Renamed, not copied: the newest must stay complete under one of the two names at every moment.
        if self._keeps_previous and NEWEST in names:
            # A crash between the two renames leaves no newest; then the previous one, which is the same, is read.
            self._disk.rename(self._directory / NEWEST, self._directory / PREVIOUS)
        self._disk.rename(self._directory / _TEMPORARY, self._directory / NEWEST)
        # Before the caller removes segments: until then a power cut may restore the old names, and with them a
        # checkpoint that needs those segments.
        self._disk.sync_directory(self._directory)

    def remove_previous(self) -> bool:
        """Removes the previous checkpoint, for space on a full disk; returns False where the newest does not suffice.

        It is about to be replaced anyway, and what needs its space may free far more. Until the next checkpoint there
        is one only, which was just read and is valid.
        """
        if not {NEWEST, PREVIOUS} <= set(self._disk.list(self._directory)):
            return False
        if self._read(self._directory / NEWEST) is None:
            return False
        self._disk.unlink(self._directory / PREVIOUS)
        return True

    def _write_temporary(self, checkpoint: Checkpoint) -> None:
        path = self._directory / _TEMPORARY
        try:
            with closing(self._disk.create(path)) as file:
                file.write(self._encode(checkpoint), 0)
                # Before the rename: the name must never refer to bytes that are not durable.
                file.sync()
        except OSError:
            with suppress(OSError):
                # A full disk needs its space for other things.
                self._disk.unlink(path)
            raise

    def valid_checkpoints(self) -> Iterator[Checkpoint]:
        """Yields the checkpoints that exist and are valid, the newest first.

        Raises:
            KeyMissingError: One is encrypted with a key that was not given.
            UnknownVersionError: Another version of Millrace wrote one.
        """
        names = self._disk.list(self._directory)
        # Lazily: the previous one is read only if recovery from the newest fails.
        for name in (NEWEST, PREVIOUS):
            if name in names and (checkpoint := self._read(self._directory / name)) is not None:
                yield checkpoint

    def _encode(self, checkpoint: Checkpoint) -> Sequence[Piece]:
        flags, pieces = self._codec.encode(_STATE_KIND, [checkpoint.state], self._context(checkpoint.position))
        length = sum(map(len, pieces))
        head = _HEAD.pack(MAGIC, VERSION, flags, self._channel_id, *checkpoint.position, length)
        # The checksum covers the head and the state, but stands between them, so that the head has a fixed length.
        return [head, _CHECKSUM.pack(payload_checksum([head, *pieces])), *pieces]

    def _read(self, path: Path) -> Checkpoint | None:
        try:
            with closing(self._disk.open(path)) as file:
                encoded = file.read(file.size(), 0)
        except OSError:
            # A checkpoint that cannot be read is as good as a damaged one: the previous one, or the log, replaces it.
            return None
        # Anything that is not a valid checkpoint counts as none: it is an optimization, and the log has everything.
        if (head := _intact_head(encoded)) is None:
            return None
        magic, version, flags, channel_id, *position, _ = head
        # A later version is refused, since it may have removed segments.
        if version not in _VERSIONS_READ:
            raise UnknownVersionError(f"{path.name}: its format version is {version}; this program knows 1 to 3")
        # A copied file is no checkpoint of this channel, whatever its checksum says.
        if (magic, channel_id) != (MAGIC, self._channel_id):
            return None
        return self._decode(path, LogPosition(*position), flags, memoryview(encoded)[_STATE_START:])

    def _decode(self, path: Path, position: LogPosition, flags: int, encoded: memoryview) -> Checkpoint | None:
        try:
            known_flags = Flags(flags)
        except ValueError:
            raise UnknownVersionError(f"{path.name}: its flags {flags} are not known") from None
        try:
            state = self._codec.decode(_STATE_KIND, known_flags, encoded, self._context(position))
        except (LogCorruptError, KeyMismatchError):
            # Its checksum matches, so someone changed it or the key's content; the log shows which. A missing key, in
            # contrast, is raised: the operator can supply it.
            return None
        return Checkpoint(position, bytes(state), is_previous=path.name == PREVIOUS)

    def _context(self, position: LogPosition) -> bytes:
        return _CONTEXT.pack(self._channel_id, *position)


def channel_id_of(encoded: bytes) -> bytes | None:
    """Returns the channel id that a checkpoint's file states; None if it is damaged, or no checkpoint."""
    head = _intact_head(encoded)
    return head[3] if head is not None and head[0] == MAGIC else None


def _intact_head(encoded: bytes) -> tuple[Any, ...] | None:
    """Returns the fields of a checkpoint's head; None if the file's length or checksum does not match.

    The checksum comes before the version, unlike in a segment: no version may change it, so that damage to the version
    is not taken for a later one.
    """
    if len(encoded) < _STATE_START:
        return None
    head = _HEAD.unpack_from(encoded)
    state = memoryview(encoded)[_STATE_START:]
    (checksum,) = _CHECKSUM.unpack_from(encoded, _HEAD.size)
    is_intact = checksum == payload_checksum([encoded[: _HEAD.size], state]) and len(state) == head[-1]
    return head if is_intact else None
