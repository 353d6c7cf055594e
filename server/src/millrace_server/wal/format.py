"""The encoding of a segment's header and records. FORMAT.md says why they look like this.

Segment header, 64 bytes, little-endian like everything here:

     0   8  magic, "MILLRACE"
     8   2  format version
    10   6  zeros
    16  16  channel id
    32   8  segment id
    40   8  LSN of the segment's first record
    48   8  length of the previous segment, 0 if there is none
    56   4  zeros
    60   4  CRC-32 of bytes 0 to 59

Record: a head of 32 bytes, then the payload.

     0   4  CRC-32 of bytes 4 to 31, seeded with the record's context: channel id, segment id and position
     4   4  CRC-32 of the payload, 0 if it is empty
     8   4  length of the payload
    12   1  kind
    13   1  flags: how the payload is encoded
    14   2  zeros
    16   8  LSN, +1 with each record of the log
    24   8  synced position: all of the segment below it was synced before this record was written
"""

import enum
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

# Magic, version and their offsets stay the same in all versions, so that each can recognize the others.
MAGIC = b"MILLRACE"
VERSION = 2
# Version 1 has no times, and what it has means the same.
_VERSIONS_READ = (1, 2)
# Smaller than a sector, so a header is written completely or not at all.
SEGMENT_HEADER_BYTES = 64
RECORD_HEAD_BYTES = 32
PAYLOAD_BYTES_MAX = (1 << 31) - 1024
"""Length of a payload before it is encoded. The margin leaves room for what encryption adds."""

# "<": little-endian, no padding; "x": bytes that are written as zeros and not interpreted.
_SEGMENT_HEADER = struct.Struct("<8sH6x16sQQQ4x")
_RECORD_HEAD = struct.Struct("<IIBB2xQQ")
RECORD_HEAD = struct.Struct("<IIIBB2xQQ")
"""A record's head with its checksum; `KINDS` and `FLAGS` have what two of the fields mean."""
RECORD_START = struct.Struct("<IIIBB")
"""Both checksums, the payload's length, kind and flags: the start of a record's head."""
_CHECKSUM = struct.Struct("<I")
_CONTEXT = struct.Struct("<16sQQ")
_POSITION = struct.Struct("<Q")
CHECKSUM_BYTES = _CHECKSUM.size


class FormatError(ValueError):
    """Raised when bytes are not what this module writes."""


class UnknownVersionError(FormatError):
    """Raised when another version of Millrace wrote the segment. None of it may be changed."""


class Kind(enum.IntEnum):
    """What a record means. The values are on the disk."""

    STATE = 1
    """The channel's state when the segment began: the first record of each segment."""
    PUT = 2
    """Events of one request."""
    TAKE = 3
    """Ranges of sequences that a transaction takes."""
    COMMIT = 4
    """Gives effect to puts and takes of transactions."""
    ROLLBACK = 5
    """Ends a transaction without effect."""
    CLAIM = 6
    """A reader's claim began or ended."""
    SYNC_POINT = 7
    """Only its synced position: all before it is durable."""
    MEMORY_STATE = 8
    """The state of a channel that has events in memory only, and which of them it has moved to the log."""


class Flags(enum.IntFlag, boundary=enum.STRICT):
    """How a payload is encoded. STRICT: an unknown flag is refused, since its payload could not be decoded."""

    COMPRESSED = 1
    ENCRYPTED = 2


# To look them up takes a fifth of the time that the enums take.
KINDS = {int(kind): kind for kind in Kind}
FLAGS = {value: Flags(value) for value in range(sum(Flags) + 1)}

# A cheap filter in front of the checksum when damage is searched for the next record: kind, flags and the two zero
# bytes must be plausible. A lookahead, so that matches may overlap: a record can begin at any byte.
HEAD_SHAPE = re.compile(b"(?s)(?=.{12}[\x01-%c][\0-%c]\0\0)" % (max(Kind), sum(Flags)))
"""Matches in front of each byte sequence that may be a record's head."""


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """A segment's identity."""

    channel_id: bytes
    """16 bytes."""
    segment_id: int
    """From 1, +1 each."""
    first_lsn: int
    """LSN of the segment's first record."""
    # The evidence that a synced segment was cut short: its own records cannot show that.
    previous_length: int
    """Length of the previous segment, which was synced whole before this one was created; 0 if there is none."""

    def encode(self) -> bytes:
        """Returns the header's 64 bytes."""
        fields = (self.channel_id, self.segment_id, self.first_lsn, self.previous_length)
        head = _SEGMENT_HEADER.pack(MAGIC, VERSION, *fields)
        return head + _CHECKSUM.pack(crc32(head))

    @classmethod
    def decode(cls, encoded: bytes) -> "SegmentHeader":
        """Decodes a header.

        Raises:
            UnknownVersionError: It is the header of another format version.
            FormatError: It is no header, or damaged.
        """
        if len(encoded) < SEGMENT_HEADER_BYTES:
            raise FormatError(f"a segment begins with {SEGMENT_HEADER_BYTES} bytes; there are {len(encoded)}")
        magic, version, channel_id, segment_id, first_lsn, previous_length = _SEGMENT_HEADER.unpack_from(encoded)
        if magic != MAGIC:
            raise FormatError("it does not begin with the magic of a segment")
        (checksum,) = _CHECKSUM.unpack_from(encoded, _SEGMENT_HEADER.size)
        head = encoded[: _SEGMENT_HEADER.size]
        # The version counts before the checksum, since another version may compute the checksum differently.
        if version not in _VERSIONS_READ:
            raise _error_of_version(version, head, checksum)
        if checksum != crc32(head):
            raise FormatError("the checksum of its header does not match")
        return cls(channel_id, segment_id, first_lsn, previous_length)

    def context(self, position: int) -> bytes:
        """Returns 32 bytes that identify a record's position among all positions of all channels.

        They seed the record's checksum and are associated data of its encryption, so that bytes of a valid record
        elsewhere, as a copied or reused file may hold them, are invalid here.
        """
        # Of fixed length, so no two positions of any channels have the same bytes.
        return _CONTEXT.pack(self.channel_id, self.segment_id, position)

    def seed(self, position: int) -> int:
        """Returns the initial value of a record's checksum."""
        return crc32(self.context(position))

    def seeder(self) -> Callable[[int], int]:
        """Returns `seed` with a part of the work done, for many records."""
        # A checksum continues, so what all positions share is summed once.
        shared = crc32(self.context(0)[: -_POSITION.size])
        pack = _POSITION.pack
        return lambda position: crc32(pack(position), shared)


def _error_of_version(version: int, head: bytes, checksum: int) -> FormatError:
    """Returns the error for the head of a segment whose version is not known: another version's, or damaged."""
    for known in _VERSIONS_READ:
        _, _, *fields = _SEGMENT_HEADER.unpack(head)
        if checksum == crc32(_SEGMENT_HEADER.pack(MAGIC, known, *fields)):
            return FormatError(f"the format version in its header is damaged: {version} instead of {known}")
    doubt = "" if checksum == crc32(head) else "; or its header is damaged, as its checksum does not match"
    return UnknownVersionError(f"its format version is {version}; this program knows 1 and 2{doubt}")


# Payload and head have separate checksums: the head must be trusted before the payload's length is used to read it, and
# log tools can verify a payload without its key.
# A NamedTuple, since replay creates one for each record.
class RecordHead(NamedTuple):
    """The fixed part of a record."""

    payload_checksum: int
    payload_length: int
    kind: Kind
    flags: Flags
    # Redundant with the record's order, and therefore evidence: a missing or exchanged record shows as a jump.
    lsn: int
    # Evidence for replay: a hole below this position in front of a valid record is damage, not a torn tail.
    synced_position: int

    @property
    def record_length(self) -> int:
        """Bytes of the record, head and payload."""
        return RECORD_HEAD_BYTES + self.payload_length

    def encode(self, seed: int) -> bytes:
        """Returns the head's 32 bytes."""
        fields = (self.payload_checksum, self.payload_length, self.kind, self.flags, self.lsn)
        return encode_record_head(seed, *fields, self.synced_position)

    @classmethod
    def decode(cls, encoded: bytes | memoryview, seed: int) -> "RecordHead | None":
        """Decodes a head. Returns None if these bytes are not the head of a record at this position.

        Raises:
            UnknownVersionError: Its kind or flags are unknown.
        """
        if len(encoded) < RECORD_HEAD_BYTES:
            return None
        (checksum,) = _CHECKSUM.unpack_from(encoded)
        # The checksum comes first: until it matches, no field can be trusted, the length least of all.
        if checksum != crc32(encoded[_CHECKSUM.size : RECORD_HEAD_BYTES], seed):
            return None
        payload_checksum, length, kind, flags, lsn, synced = _RECORD_HEAD.unpack_from(encoded, _CHECKSUM.size)
        try:
            return cls(payload_checksum, length, KINDS[kind], FLAGS[flags], lsn, synced)
        except KeyError:
            # Not damage, since the checksum matches: a later version wrote it, and cutting it off would destroy data.
            raise UnknownVersionError(
                f"it has a record of kind {kind} with flags {flags}, which are not known"
            ) from None


def encode_record_head(seed: int, *fields: int) -> bytes:
    """Returns `RecordHead(*fields).encode(seed)` without the object, for the writer's loop."""
    # One struct call and no object: this runs for every record on the writer's thread.
    head = _RECORD_HEAD.pack(*fields)
    return _CHECKSUM.pack(crc32(head, seed)) + head


def payload_checksum(pieces: Sequence[bytes | memoryview]) -> int:
    """Returns the CRC-32 of a payload that is in pieces."""
    # Piece by piece: joining them would copy every payload once more.
    checksum = 0
    for piece in pieces:
        checksum = crc32(piece, checksum)
    return checksum
