"""The messages of a channel's stream.

The stream is one chain: each message names the sequence that it expects to follow, so of two servers that append, one
is refused. All integers are little-endian.

     0   8  magic, "MILLSTRM"
     8   2  version
    10   1  kind: FENCE, GROUP or CHECKPOINT
    11   1  flags: how a checkpoint's state is encoded
    12   4  zeros
    16  16  channel id
    32   8  epoch: sequence of the owner's FENCE, 0 in the FENCE itself
    40   8  GROUP: sequence of its first part. CHECKPOINT: segment id of its log position
    48   8  position: of the group's first byte in its segment, or of the checkpoint
    56   8  LSN of the group's first record, or of the next record after the checkpoint
    64   8  CHECKPOINT: sequence of the previous one's last part, 0 if there is none
    72   4  index of this part
    76   4  number of parts
    80   4  CRC-32 of bytes 0 to 79 and of the body, seeded with the message's sequence
    84      the body
"""

import enum
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from zlib_ng.zlib_ng import crc32

from millrace_server.wal.disk import Piece
from millrace_server.wal.format import UnknownVersionError
from millrace_server.wal.records import LogPosition
from millrace_server.wal.segments import LogCorruptError

_MAGIC = b"MILLSTRM"
_VERSION = 1
_HEAD = struct.Struct("<8sHBB4x16sQQQQQII")
_CHECKSUM = struct.Struct("<I")
_SEQUENCE = struct.Struct("<Q")
HEAD_BYTES = _HEAD.size + _CHECKSUM.size

NOWHERE = LogPosition(0, 0, 1)
"""The end of a log that holds nothing."""


class MessageKind(enum.IntEnum):
    """What a message means. The values are in the stream."""

    FENCE = 1
    """A server owns the channel from here on: earlier owners can append nothing more."""
    GROUP = 2
    """Records that were written together, or a part of them."""
    CHECKPOINT = 3
    """A checkpoint, or a part of it."""


_KINDS = {int(kind): kind for kind in MessageKind}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a channel's stream, without its sequence."""

    kind: MessageKind
    channel_id: bytes
    """16 bytes."""
    epoch: int
    pieces: Sequence[Piece] = ()
    """The body."""
    position: LogPosition = NOWHERE
    """Where a group begins, or the position of a checkpoint."""
    flags: int = 0
    previous: int = 0
    """Sequence of the last part of the checkpoint before this one; 0 without any."""
    part: int = 0
    part_count: int = 1

    @property
    def body(self) -> Piece:
        return self.pieces[0] if len(self.pieces) == 1 else b"".join(self.pieces)

    def encode(self, sequence: int) -> list[Piece]:
        """Returns the message as it is stored at a sequence, and only there, in pieces."""
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            self.kind,
            self.flags,
            self.channel_id,
            self.epoch,
            *self.position,
            self.previous,
            self.part,
            self.part_count,
        )
        return [head + _CHECKSUM.pack(_checksum(sequence, head, self.pieces)), *self.pieces]

    @classmethod
    def decode(cls, encoded: bytes, sequence: int, channel_id: bytes) -> "Message":
        """Decodes the message at a sequence of a channel's stream.

        Raises:
            LogCorruptError: It is damaged, or of another channel.
            UnknownVersionError: Another version of Millrace wrote it.
        """
        head, body = encoded[: _HEAD.size], memoryview(encoded)[HEAD_BYTES:]
        if len(encoded) < HEAD_BYTES or not head.startswith(_MAGIC):
            raise LogCorruptError(f"message {sequence}: was not written by Millrace")
        (checksum,) = _CHECKSUM.unpack_from(encoded, _HEAD.size)
        if checksum != _checksum(sequence, head, [body]):
            raise LogCorruptError(f"message {sequence}: its checksum does not match")
        _, version, kind, flags, found_id, epoch, *position, previous, part, part_count = _HEAD.unpack(head)
        if version != _VERSION or kind not in _KINDS:
            raise UnknownVersionError(f"message {sequence}: its version is {version} and its kind {kind}")
        if found_id != channel_id:
            raise LogCorruptError(f"message {sequence}: is of channel {found_id.hex()}, not of {channel_id.hex()}")
        return cls(
            kind=_KINDS[kind],
            channel_id=found_id,
            epoch=epoch,
            pieces=[body],
            position=LogPosition(*position),
            flags=flags,
            previous=previous,
            part=part,
            part_count=part_count,
        )


def _checksum(sequence: int, head: bytes, pieces: Sequence[Piece]) -> int:
    # With the sequence, so that a message that was copied to another place is not taken for one that belongs there.
    checksum = crc32(head, crc32(_SEQUENCE.pack(sequence)))
    for piece in pieces:
        checksum = crc32(piece, checksum)
    return checksum
